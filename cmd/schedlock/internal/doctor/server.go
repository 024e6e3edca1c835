package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"strings"
	"syscall"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/schedlock/driver"
)

const connectTimeout = 5 * time.Second

// A server is the one that is examined. Each check is a statement of its own: what one
// user may not ask, or one server does not know, costs only that check.
type server struct {
	*findings
	kind
	db     *sql.DB
	limits bounds
	at     string // the database, for a message
	user   string

	open func(context.Context) (store, error) // as an app does
	read func(context.Context) (store, error) // as one does that takes nothing
	safe func(error) error                    // an error of a connection as it may be shown
}

// A kind is in what the servers differ.
type kind struct {
	dialect
	product string
	who     string // what it calls a user
	admin   string // who may grant rights
	waits   string // the check that names who keeps others waiting
	tls     string // what an address says of TLS
	listens string // the setting of the server that says where it listens

	refusal func(error) (why, do string) // of the server itself; "": it is none
	grants  func(string) string          // the shortest form of statements with GRANT
}

// A store is that of a server.
type store interface {
	driver.Store
	Check(context.Context) error
	Close() error
}

func (s server) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.statement)
	defer cancel()
	return do(ctx)
}

// A queryer is a *sql.DB or a *sql.Tx.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// ask lets do send one statement, where unqualified names mean the app's schema.
func (s server) ask(ctx context.Context, do func(context.Context, queryer) error) error {
	return s.bounded(ctx, func(ctx context.Context) error {
		if s.first == "" {
			return do(ctx, s.db)
		}
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing was written
		if _, err := tx.ExecContext(ctx, s.first); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// row reads the one row of a query. If it cannot, that is a note.
func (s server) row(ctx context.Context, check, query string, dest ...any) bool {
	return s.looked(check, s.ask(ctx, func(ctx context.Context, q queryer) error {
		return q.QueryRowContext(ctx, query).Scan(dest...)
	}))
}

// each is row for a query with any number of rows: do is called after each was read.
func (s server) each(ctx context.Context, check, query string, args, dest []any, do func()) bool {
	return s.looked(check, s.ask(ctx, func(ctx context.Context, q queryer) error {
		return eachRow(ctx, q, query, args, dest, do)
	}))
}

// lines reads the only column of a query.
func (s server) lines(ctx context.Context, check, query string,
	args ...any) (lines []string, ok bool) {
	var line string
	ok = s.each(ctx, check, query, args, []any{&line}, func() { lines = append(lines, line) })
	return lines, ok
}

// looked reports whether a check could ask the server.
func (s server) looked(check string, err error) bool {
	if err != nil {
		s.note(check, "not looked at: "+err.Error()+rightToLook(err))
	}
	return err == nil
}

func (s server) checkConnection(ctx context.Context) bool {
	// more than one host, or with and without TLS
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	err := s.safe(s.db.PingContext(ctx))
	if err == nil {
		s.ok("connection", fmt.Sprintf("connected to %s as %s", s.at, s.user))
		return true
	}
	why, do := s.explainConnect(err)
	s.fail("connection", fmt.Sprintf("%s as %s: %s: %v", s.at, s.user, why, err), do)
	return false
}

// explainConnect says why there is no connection, and what to do.
func (k kind) explainConnect(err error) (why, do string) {
	var (
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	if why, do = k.refusal(err); why != "" {
		return why, do
	}
	switch {
	case errors.As(err, &dns):
		return "the host name is not known",
			"correct the host, or look at the DNS of this machine or container"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid),
		errors.As(err, &record), errors.Is(err, mysqldriver.ErrNoTLS),
		strings.Contains(err.Error(), "refused TLS"), strings.Contains(err.Error(), "tls: "):
		return "TLS does not work",
			"compare " + k.tls + " with what the server has: " +
				"its certificate must bear the host's name and be signed by a known root"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "nobody listens there",
			"start the server, or correct host and port (the server's " + k.listens + " and port)"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer",
			"look for a firewall or a wrong address between here and the server, " +
				"or a server that hangs"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET):
		why = "the connection was closed at once"
	default:
		why = "no connection"
	}
	return why, "is this port that of a " + k.product + "? Else look at the server's log"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func (s server) checkClock(ctx context.Context) {
	var server time.Time
	sent := time.Now()
	if !s.row(ctx, "server clock", s.clock, &server) {
		return
	}
	trip := time.Since(sent)
	apart := server.Sub(sent.Add(trip / 2)).Round(time.Millisecond)
	judgeClocks(s.findings, max(apart.Abs()-trip/2, 0), apart > 0)
}

// judgeClocks says what the distance of two clocks means.
func judgeClocks(f *findings, apart time.Duration, ahead bool) {
	direction := "behind"
	if ahead {
		direction = "ahead of"
	}
	found := fmt.Sprintf("the server's clock is %s %s this machine's", words.Span(apart), direction)
	switch {
	case apart > time.Minute:
		f.warn("server clock", found,
			"nothing is judged by it, but the times of logs and tables do not fit: "+
				"look at NTP on both machines")
	case apart > time.Second:
		f.note("server clock", found+"; nothing is judged by it")
	default:
		f.ok("server clock", "it agrees with this machine's")
	}
}

// A share of the connections, which has a limit of its own; below 0: none.
type share struct {
	of   string
	used int
	most int
	kept int // for others
}

// judgeConnections judges what is left of the share that ends first.
func (s server) judgeConnections(do string, shares ...share) {
	found, free := "", math.MaxInt
	for _, x := range shares {
		if left := x.most - x.kept - x.used; x.most >= 0 && left < free {
			free = left
			found = fmt.Sprintf("%d of the %s's %d connections are used", x.used, x.of, x.most)
			if x.kept > 0 {
				found += fmt.Sprintf(", %d are reserved", x.kept)
			}
		}
	}
	if free < s.limits.freeConnections {
		s.warn("connections", found+fmt.Sprintf(": %d are free", max(free, 0)),
			"each replica needs one for the lock, the leader a few more: "+
				"make the apps' pools smaller, "+do+"or raise the limit")
		return
	}
	s.ok("connections", found)
}

// checkGrants asks the store what this user may not do.
func (s server) checkGrants(ctx context.Context) {
	err := s.with(ctx, s.open, func(ctx context.Context, store store) error {
		return store.Check(ctx)
	})
	if err == nil {
		s.ok("grants", fmt.Sprintf("%s %s has the rights that the lock needs", s.who, s.user))
		return
	}
	if _, grants, found := strings.Cut(err.Error(), "a right is missing: "); found {
		s.fail("grants", fmt.Sprintf("%s %s lacks rights on the tables", s.who, s.user),
			"as "+s.admin+": "+s.grants(grants))
		return
	}
	if errors.Is(err, driver.ErrPermanent) {
		s.fail("grants", "no replica starts: "+err.Error(), "do what it says")
		return
	}
	s.note("grants", "not looked at to the end: "+err.Error())
}

func (s server) with(ctx context.Context, open func(context.Context) (store, error),
	do func(context.Context, store) error) error {
	return s.bounded(ctx, func(ctx context.Context) error {
		store, err := open(ctx)
		if err != nil {
			return err
		}
		defer store.Close()
		return do(ctx, store)
	})
}

func (s server) checkRows(ctx context.Context) {
	var x facts
	err := s.bounded(ctx, func(ctx context.Context) (err error) {
		x, err = readFacts(ctx, s.db, s.dialect)
		return err
	})
	switch {
	case err == nil:
		seen, looked := s.look(ctx, x)
		judge(s.findings, x, seen)
		judgeSign(s.findings, seen, looked)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		s.fail("tables", fmt.Sprintf("they cannot be read within %s", s.limits.statement),
			"somebody locks them (see "+s.waits+" above), or the server hangs")
	default:
		s.fail("tables", "they cannot be read: "+err.Error(),
			"a right is missing (see grants above), or a table was dropped: no migration makes it "+
				"anew, restore a backup")
	}
}

// toMake says what to do if there is no table of the lock.
func (s server) toMake(ctx context.Context) string {
	var applied int
	if s.row(ctx, "tables", s.exists, &applied) && applied > 0 {
		return toRestore
	}
	return toMake
}

// look is what a standby sees, which is the session of the holder, too.
func (s server) look(ctx context.Context, x facts) (seen driver.Snapshot, looked bool) {
	seen = x.view()
	_ = s.with(ctx, s.read, func(ctx context.Context, store store) error {
		seen, looked = x.look(ctx, store)
		return nil
	})
	return seen, looked
}
