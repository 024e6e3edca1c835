package columns

import (
	"database/sql"
	"math"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Named takes the columns of a named lock that a server judges: token, term, pid, hostname,
// acquired_at, expires_at, hold_until, the TTL in milliseconds, and the server's time.
type Named struct {
	Term, TTL                    sql.NullInt64 // NULL: there is no row; it is not known
	token, hostname              sql.NullString
	pid                          sql.NullInt64
	acquired, expires, hold, now Time
}

// Dest returns the places of the columns.
func (c *Named) Dest() []any {
	return []any{&c.token, &c.Term, &c.pid, &c.hostname, &c.acquired, &c.expires, &c.hold, &c.TTL,
		&c.now}
}

// Row returns the row, which must be there.
func (c *Named) Row(key namedlock.Key) *namedlock.Row {
	now, end := c.now.Time, c.expires.Time
	token, _ := driver.ParseToken(c.token.String)               // an edited one is nobody's
	ttl := period(c.TTL.Int64, time.Millisecond, math.MaxInt64) // OncePer has more than a day
	row := &namedlock.Row{Token: token, TTL: ttl, Info: namedlock.Info{
		Key:        key,
		Owner:      driver.Owner{PID: int(c.pid.Int64), Hostname: c.hostname.String},
		Term:       c.Term.Int64,
		AcquiredAt: c.acquired.Time,
		Age:        now.Sub(c.acquired.Time),
		Resting:    !c.token.Valid,
	}}
	if hold := c.hold.Time; row.Resting || hold.After(end) {
		end = hold
	}
	row.Left = max(end.Sub(now), 0)
	row.Unsure = c.TTL.Valid && row.Left > row.TTL // the clock was set back
	row.Revoked = namedlock.RevocationOf(c.token.String)
	return row
}

// AfterFailOver is what a look at a named lock returns: c is its row, or that there is none; free
// tells whether it is; noted whether somebody has noticed that the server has failed over, if it
// has; and since how many milliseconds ago, NULL if it has not.
func (c *Named) AfterFailOver(key namedlock.Key, free, noted bool,
	since sql.NullInt64) *namedlock.Row {
	if c.Term.Valid && !free {
		row := c.Row(key)
		row.Unsure = row.Unsure || !noted // so that a Take notices it
		return row
	}
	left := namedlock.DefaultTTL
	if c.TTL.Valid {
		left = min(Millis(c.TTL.Int64), namedlock.MaxTTL)
	}
	switch {
	case !noted:
		return FailedOver(key, left)
	case since.Valid && Millis(since.Int64) < left:
		return FailedOver(key, left-Millis(since.Int64))
	}
	return nil
}

// FailedOver is the row of a key that the server may have forgotten.
func FailedOver(key namedlock.Key, left time.Duration) *namedlock.Row {
	return &namedlock.Row{Info: namedlock.Info{Key: key, Left: left, FailedOver: true},
		Unsure: true}
}
