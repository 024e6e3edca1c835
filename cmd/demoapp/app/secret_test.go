package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
)

// FuzzNoOutputOfTheAppHasAPartOfAPassword gives it addresses in every spelling, as
// a database and where none belongs. A minute of it:
//
//	go test ./cmd/demoapp/app -run '^$' -fuzz FuzzNoOutput -fuzztime 1m
func FuzzNoOutputOfTheAppHasAPartOfAPassword(f *testing.F) {
	dsntest.Fuzz(f, 17, func(t *testing.T, text string) []string {
		var out bytes.Buffer
		log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		said := func(err error) {
			if err != nil {
				log.Error("it says", "err", err)
				out.WriteString(publicError(err))
				for ; err != nil; err = errors.Unwrap(err) {
					out.WriteString(err.Error() + "\n")
				}
			}
		}
		load := func(name string, args ...string) (Config, error) {
			cfg, err := LoadConfig(args, func(v string) (string, bool) {
				return text, v == variable(name)
			}, &out)
			said(err)
			return cfg, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		for _, name := range []string{"database-url", "lock-database-url"} {
			if cfg, err := load(name); err == nil {
				database, err := openDatabase(ctx, cfg.databaseURL, time.Minute)
				said(err)
				if err == nil {
					said(database.check(ctx))
					require.NoError(t, database.close())
				}
				store, err := openLock(cfg.lockDatabaseURL, log)(ctx)
				said(err)
				if err == nil {
					require.NoError(t, store.(io.Closer).Close())
				}
			}
		}
		// In the wrong place, or cut in pieces by a shell.
		others := []string{"addr", "hosts", "mode", "lock-ttl", "workers", "tick", "tick-catchup",
			"tick-overlap", "control", "drain", "blocklists", "log"}
		load(others[len(text)%len(others)])
		load("", text)
		load("", "--"+text)
		load("", "--tick="+text)
		load("", append([]string{"--database-url"}, strings.Fields(text)...)...)
		return []string{out.String()}
	})
}
