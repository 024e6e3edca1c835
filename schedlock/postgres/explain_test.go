package postgres

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func TestAnErrorIsExplainedOnce(t *testing.T) {
	t.Parallel()
	s := &Store{config: &pgx.ConnConfig{Config: pgconn.Config{Host: "h", Port: 1, User: "u",
		Database: "d"}}}
	for _, code := range []string{codeNoTable, codeNoSchema, codeNoPrivilege, codeBadPassword,
		codeNoDatabase, "XX001"} {
		err := fmt.Errorf("somewhere: %w", s.explain(&pgconn.PgError{Code: code, Message: "no"}))
		require.Equal(t, err.Error(), s.explain(err).Error())
	}
	require.ErrorContains(t, s.explain(&pgconn.PgError{Code: codeNoTable}),
		driver.ErrPermanent.Error())
}
