package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/schedlock/driver"
)

// AwaitHint implements driver.Store: it returns at a release, with what the
// notification says of it, or when the connection is lost. Behind a pooler it just waits.
func (s *Store) AwaitHint(ctx context.Context, _ driver.Snapshot) driver.Release {
	for ctx.Err() == nil {
		switch how, told := s.listen(ctx, s.prime); how {
		case hinted:
			return told
		case deaf:
			<-ctx.Done()
		}
	}
	return driver.Release{}
}

// released reads what the notification of a release says, or one of an older replica, or of
// somebody else, does not.
func released(payload string) (r driver.Release) {
	term, at, _ := strings.Cut(payload, " ")
	number, err := strconv.ParseInt(term, 10, 64)
	micros, err2 := strconv.ParseInt(at, 10, 64)
	if err != nil || err2 != nil || number <= 0 || micros <= 0 {
		return driver.Release{}
	}
	return driver.Release{Term: number, At: time.UnixMicro(micros).UTC()}
}

// What listen can end with.
type heard int

const (
	hinted    heard = iota // look now
	disturbed              // somebody else needs the connection: listen again after them
	deaf                   // nothing can be heard
)

// primers are the statements of a take-over and of what follows, for a lock
// that nobody has: an epoch, a token and a term that do not exist. They find
// nothing, and write nothing.
var primers = []struct {
	query string
	args  []any
}{
	{sqlTakeFree, []any{1, "", "", 0, 1, 1, 1, "", keepTerms,
		nil, nil, nil, "", "", "", 0, 0, false}},
	{sqlTakeOver, []any{1, "", "", 0, 1, 1, 1, "", keepTerms,
		nil, nil, nil, "", "", "", "", 0, 0, ""}},
	{sqlHeartbeat, []any{"", "", 0, nil}},
	{sqlReleaseTelling, []any{1, "", "", 0, "", ""}},
	{sqlNothingLeft, []any{"", 0}},
	{sqlRetries, nil},
	{sqlPending, []any{0}},
	{sqlJobs, nil},
	{sqlDecide, []any{"", 0, "", "", time.Time{}, nil, 1, "", nil, []time.Time{}, []time.Time{},
		[]int64{}, []string{}, "", false}},
}

// primeFor bounds prime: the next look waits for its turn meanwhile.
const primeFor = time.Second

// prime prepares, plans and tries what a standby will need in the moment in
// which it takes over, while it has nothing else to do; the turn is held. The
// server reads its catalogs and plans a statement when it first executes it,
// which took two thirds of an acquisition. A server that does not answer in
// time, or that refuses to write, is not asked for it again (the driver closes
// the connection in the first case, by which others would judge a leader): it
// will do all that when it must.
func (s *Store) prime(ctx context.Context) {
	if s.primed == s.conn || s.unprimed {
		return
	}
	s.primed = s.conn
	if s.mode() != pgx.QueryExecModeCacheStatement {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.primeFor)
	defer cancel()
	for _, p := range primers {
		// Exec would prepare nothing that has no arguments.
		rows, err := s.conn.Query(ctx, p.query, append([]any{s.mode()}, p.args...)...)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		if err != nil {
			s.unprimed = true
			return
		}
	}
}

// listen waits for a notification on the lock's connection, which it gives up
// as soon as somebody else needs it. told is what the notification says. Before
// that, prepare is called; nil: nothing is.
func (s *Store) listen(ctx context.Context, prepare func(context.Context)) (how heard,
	told driver.Release) {
	select {
	case s.turn.Turn <- struct{}{}:
		defer s.turn.Give()
	case <-ctx.Done():
		return deaf, told
	case <-s.closed:
		return deaf, told
	}
	if s.conn != nil && s.conn.IsClosed() { // whoever used it did not notice
		s.drop()
		return hinted, told
	}
	if s.conn == nil || s.pooled.Load() {
		return deaf, told
	}
	if prepare != nil {
		prepare(ctx)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.turn.Watch(cancel, s.isClosed)()
	for {
		select {
		case told = <-s.session.heard:
			return hinted, told
		default:
		}
		switch err := s.conn.PgConn().WaitForNotification(waiting); {
		case err == nil: // of whatever channel: see dial
		case s.conn.IsClosed():
			s.drop() // the next look opens another
			return hinted, told
		default:
			return disturbed, told
		}
	}
}
