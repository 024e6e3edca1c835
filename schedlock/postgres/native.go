package postgres

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/columns"
)

// native lets pgx scan into types of its own, which have the same fields as those
// of database/sql: through a sql.Scanner each column of a look costs two
// allocations.
func native(dest []any) []any {
	for i, d := range dest {
		switch d := d.(type) {
		case *sql.NullInt64:
			dest[i] = (*pgtype.Int8)(d)
		case *sql.NullString:
			dest[i] = (*pgtype.Text)(d)
		case *columns.Time:
			dest[i] = (*timestamp)(d)
		}
	}
	return dest
}

type timestamp columns.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *timestamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*t = timestamp{}
	case v.InfinityModifier != pgtype.Finite:
		return (*columns.Time)(t).Scan(v.InfinityModifier.String())
	default:
		*t = timestamp{Time: v.Time.UTC(), Valid: true}
	}
	return nil
}

var _ pgtype.TimestamptzScanner = (*timestamp)(nil)
