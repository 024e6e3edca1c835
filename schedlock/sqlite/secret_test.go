package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
)

// FuzzNoFileIsNamedByAPassword opens the addresses of servers in every spelling.
// A minute of it:
//
//	go test ./schedlock/sqlite -run '^$' -fuzz FuzzNoFile -fuzztime 1m
func FuzzNoFileIsNamedByAPassword(f *testing.F) {
	dsntest.Fuzz(f, 7, func(t *testing.T, text string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var said []string
		store, err := Open(ctx, text)
		if err != nil {
			said = append(said, err.Error())
		} else {
			require.NoError(t, store.Close())
		}
		err = Read(ctx, text, func(ctx context.Context, s *Store) error {
			_, err := s.Look(ctx)
			return err
		})
		if err != nil {
			said = append(said, err.Error())
		}
		return said
	})
}
