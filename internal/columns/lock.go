package columns

import (
	"database/sql"

	"example.com/schedlock/schedlock/driver"
)

// Of the lock row, as l.
const LockColumns = `l.pid, l.hostname, l.created_at, l.heartbeat_at, l.token, l.term, l.beat,
       l.state, l.ttl_ms, l.renew_deadline_ms, l.heartbeat_ms, l.app, l.program`

// Lock takes LockColumns.
type Lock struct {
	pid, term, beat, ttl, renew, heartbeat sql.NullInt64
	hostname, token, state, app, program   sql.NullString
	created, heartbeatAt                   Time
}

// Dest returns the places of LockColumns, and of more that follow.
func (c *Lock) Dest() []any {
	return []any{&c.pid, &c.hostname, &c.created, &c.heartbeatAt, &c.token, &c.term, &c.beat,
		&c.state, &c.ttl, &c.renew, &c.heartbeat, &c.app, &c.program}
}

// Row returns the row, nil if there is none.
func (c *Lock) Row() *driver.Row {
	if !c.pid.Valid {
		return nil
	}
	return &driver.Row{
		Ref:         ref(c.token, c.term, c.pid, c.hostname),
		RawToken:    c.token.String,
		Beat:        c.beat.Int64,
		State:       driver.State(c.state.String),
		CreatedAt:   c.created.Time,
		HeartbeatAt: c.heartbeatAt.Time,
		Timing: driver.Timing{
			TTL:               Millis(c.ttl.Int64),
			RenewDeadline:     Millis(c.renew.Int64),
			HeartbeatInterval: Millis(c.heartbeat.Int64),
		},
		App: driver.App{Name: c.app.String, Program: c.program.String},
	}
}

func ref(token sql.NullString, term, pid sql.NullInt64, hostname sql.NullString) driver.Ref {
	t, _ := driver.ParseToken(token.String) // an edited one is nobody's
	return driver.Ref{Owner: driver.Owner{PID: int(pid.Int64), Hostname: hostname.String},
		Token: t, Term: term.Int64}
}

// Of a term in the history, as t.
const TermColumns = `t.term, t.token, t.pid, t.hostname, t.acquired_at, t.ended_at,
       t.end_reason, t.next_term, t.ttl_ms, t.revoked_at, t.revoked_by, t.revoke_reason,
       t.app, t.program`

// Term takes TermColumns.
type Term struct {
	term, pid, next, ttl     sql.NullInt64
	token, hostname, reason  sql.NullString
	acquired, ended, revoked Time
	revokedBy, revokeReason  sql.NullString
	app, program             sql.NullString
}

// Dest returns the places of TermColumns.
func (c *Term) Dest() []any {
	return []any{&c.term, &c.token, &c.pid, &c.hostname, &c.acquired, &c.ended, &c.reason,
		&c.next, &c.ttl, &c.revoked, &c.revokedBy, &c.revokeReason, &c.app, &c.program}
}

// Newest returns the term, nil if there is none.
func (c *Term) Newest() *driver.Term {
	if !c.term.Valid {
		return nil
	}
	t := c.Value()
	return &t
}

// Value returns the term.
func (c *Term) Value() driver.Term {
	return driver.Term{
		Ref:        ref(c.token, c.term, c.pid, c.hostname),
		AcquiredAt: c.acquired.Time,
		EndedAt:    c.ended.End(),
		EndReason:  driver.EndReason(c.reason.String),
		NextTerm:   c.next.Int64,
		TTL:        Millis(c.ttl.Int64),
		App:        driver.App{Name: c.app.String, Program: c.program.String},
		Revoked: driver.Revocation{At: c.revoked.Time, By: c.revokedBy.String,
			Reason: c.revokeReason.String},
	}
}
