package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/cmd/schedlock/internal/doctor"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/schedlock/statuspage"
)

// A watchedStore is for a standby that judges, and takes nothing.
type watchedStore struct{ store }

func (watchedStore) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	return driver.Grant{}, errors.New("this standby only watches")
}

// alterAt is alter where EARLIER stands for an hour ago, and LATER for in a day.
func alterAt(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	const at = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', "
	words := []string{"EARLIER", at + "'-1 hour')", "LATER", at + "'+1 day')"}
	switch {
	case isPostgres(dsn):
		words = []string{"EARLIER", "now() - interval '1 hour'",
			"LATER", "now() + interval '1 day'"}
	case isMySQL(dsn):
		words = []string{"EARLIER", "utc_timestamp(6) - INTERVAL 1 HOUR",
			"LATER", "utc_timestamp(6) + INTERVAL 1 DAY", "timeline", "server"}
	}
	for _, s := range statements {
		alter(t, dsn, strings.NewReplacer(words...).Replace(s))
	}
}

// lockOn is on a store of its own.
func lockOn(t *testing.T, dsn string, watches bool) (lock *schedlock.Lock, cut func()) {
	t.Helper()
	store := openAs(t, dsn)
	cut = sync.OnceFunc(func() { require.NoError(t, store.Close()) })
	t.Cleanup(cut)
	var of driver.Store = store
	if watches {
		of = watchedStore{store}
	}
	lock, err := schedlock.New(of, schedlock.WithTTL(10*time.Minute),
		schedlock.WithHeartbeatInterval(2*time.Minute), schedlock.WithSessionGrace(5*time.Second),
		schedlock.WithLogger(discard))
	require.NoError(t, err)
	return lock, cut
}

// What everybody says of a lock comes from one judgement.
func TestEverybodySaysTheSameOfALock(t *testing.T) {
	missing.Costly(t, "tries each state on each database")
	t.Parallel()
	const (
		file, server, maria = 1, 2, 4
		servers             = server | maria
		all                 = file | servers
		deleted             = `DELETE FROM scheduler_lock`
		failedOver          = `UPDATE scheduler_lock SET timeline = 'F00D'`
		ended               = `UPDATE scheduler_terms SET ended_at = EARLIER, end_reason = 'released'`
	)
	never := func(*testing.T, string) {}
	led := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, dsn string) {
			lock, _ := lockOn(t, dsn, false)
			_, err := lock.Acquire(bg)
			require.NoError(t, err)
			alterAt(t, dsn, statements...)
		}
	}
	released := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, dsn string) {
			lock, cut := lockOn(t, dsn, false)
			lease, err := lock.Acquire(bg)
			require.NoError(t, err)
			require.NoError(t, lease.Release(bg))
			cut()
			alterAt(t, dsn, statements...)
		}
	}
	died := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, dsn string) {
			cmd := startReplica(t, dsn, "10m")
			leads(t, dsn, cmd)
			kill(cmd)
			alterAt(t, dsn, statements...)
		}
	}
	for _, tc := range []struct {
		name    string
		on      int
		make    func(*testing.T, string)
		verdict verdict
		atOnce  bool // a standby takes it now
		says    []string
	}{
		{"a leader", all, led(), held, false, nil},
		{"it drains", all, led(`UPDATE scheduler_lock SET state = 'draining'`), held, false, nil},
		{"it has expired", all, led(`UPDATE scheduler_lock SET heartbeat_at = EARLIER`), stale,
			false, nil},
		{"its stamp lies far ahead", all, led(`UPDATE scheduler_lock SET heartbeat_at = LATER`),
			stale, false, nil},
		{"its process has ended", file, died(), dead, true, nil},
		{"its session has ended", server, died(), stale, false, []string{"session"}},
		{"it has expired, and its session has ended", server,
			died(`UPDATE scheduler_lock SET heartbeat_at = EARLIER`), stale, false,
			[]string{"session"}},
		{"its term has ended, its row stands", servers, led(ended), dead, true, nil},
		{"its term has ended, its row stands, its process lives", file, led(ended), held,
			false, nil},
		{"its term has ended, its row stands, its process has ended", file, died(ended), dead,
			true, nil},
		{"its row was deleted", all, led(deleted), unfinished, false, nil},
		{"its row was deleted, its process has ended", file, died(deleted), dead, true, nil},
		{"its row was deleted, its session has ended", server, died(deleted), unfinished,
			false, nil},
		{"its row was deleted, its term has ended, its process lives", file, led(deleted, ended),
			unfinished, false, nil},
		{"nobody ever led", all, never, free, true, nil},
		{"nobody leads", all, released(), free, true, nil},
		{"nobody leads, the server has failed over", servers,
			released(`UPDATE scheduler_terms SET timeline = 'F00D'`), free, false,
			[]string{"failed over"}},
		{"a leader, the server has failed over", servers, led(failedOver), held, false, nil},
		{"its session has ended, the server has failed over", server, died(failedOver), held,
			false, nil},
	} {
		for _, db := range []struct {
			name string
			on   int
			make func(testing.TB) string
		}{{"SQLite", file, func(t testing.TB) string { return migrated(t, folder(t)) }},
			{"PostgreSQL", server, migratedServer}, {"MariaDB", maria, migratedMaria}} {
			if tc.on&db.on == 0 || db.on == maria && !missing.Full() {
				continue // by default PostgreSQL stands for what it shares with MariaDB
			}
			t.Run(tc.name+"/"+db.name, func(t *testing.T) {
				t.Parallel()
				dsn := db.make(t)
				tc.make(t, dsn)

				var s statusJSON
				// The server notices the end of a session soon.
				eventually(t, "status: "+string(tc.verdict), func() bool {
					s = statusJSON{}
					strict(t, call(t, "status", "--json", "--db", dsn).out, &s)
					return s.Verdict == tc.verdict && (len(tc.says) == 0 ||
						strings.Contains(s.Summary, tc.says[0]))
				})
				assert.Equal(t, tc.atOnce, s.Standby.AtOnce, s.Standby)

				found := lockFinding(t, dsn)
				calm := tc.verdict == held || tc.verdict == free
				assert.Equal(t, calm, found.Level != doctor.Warning, "doctor: %+v", found)
				said := ages.ReplaceAllString(s.Summary, "")
				assert.True(t, strings.HasPrefix(ages.ReplaceAllString(found.Found, ""), said),
					"doctor: %+v, status: %s", found, s.Summary)
				if !calm {
					assert.Equal(t, s.ToDo, found.Do, "doctor: %+v", found)
				}

				lock, _ := lockOn(t, dsn, true)
				ctx, cancel := context.WithCancel(bg)
				ended := make(chan struct{})
				go func() { defer close(ended); _, _ = lock.Wait(ctx) }()
				defer func() { cancel(); <-ended }()
				eventually(t, "the standby has looked", func() bool {
					return lock.Status().State == schedlock.SelfStandby
				})
				reason := lock.Status().Reason
				takesIt := strings.Contains(reason, "about to take") ||
					strings.Contains(reason, "cannot take the lock") // its claims are refused
				assert.Equal(t, tc.atOnce, takesIt, "standby: %s", reason)

				headline, body := page(t, lock)
				switch {
				case s.Lock == nil:
					assert.Equal(t, "nobody leads", headline)
				case tc.verdict == held:
					assert.Regexp(t, " (leads|is leaving)", headline)
				default:
					assert.NotContains(t, headline, " leads")
				}
				takes := strings.Contains(body, "takes over at once") ||
					strings.Contains(body, "takes it at its next look")
				assert.Equal(t, tc.atOnce, takes, "page: %s", body)

				for _, says := range tc.says {
					for who, text := range map[string]string{"doctor": found.Found,
						"standby": reason, "page": body} {
						assert.Contains(t, text, says, who)
					}
				}
				assert.Equal(t, map[string]float64{"schedlock_leader": 0, "standby": 1},
					gauges(t, lock))
			})
		}
	}
}

// lockFinding is what doctor says of the lock.
func lockFinding(t *testing.T, dsn string) doctor.Finding {
	t.Helper()
	r := doctor.Examine(bg, dsn, "")
	for _, f := range r.Findings {
		if f.Check == "lock" {
			return f
		}
	}
	t.Fatalf("doctor does not speak of the lock: %+v", r)
	return doctor.Finding{}
}

var (
	ages       = regexp.MustCompile(`-?\d[\dhms.µ ]*s`)
	titlePart  = regexp.MustCompile(`<title>(.*) – `)
	leaderPart = regexp.MustCompile(`(?s)<div id="leader">(.*)<div id="beat"`)
)

// page is what the live page says of who leads.
func page(t *testing.T, lock *schedlock.Lock) (headline, body string) {
	t.Helper()
	h, err := statuspage.New(statuspage.Config{Lock: lock, Log: discard})
	require.NoError(t, err)
	var w *httptest.ResponseRecorder
	eventually(t, "the page reads the database", func() bool { // that may be slow
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/", nil))
		return w.Code == http.StatusOK
	})
	title, leader := titlePart.FindStringSubmatch(w.Body.String()),
		leaderPart.FindStringSubmatch(w.Body.String())
	require.True(t, title != nil && leader != nil, w.Body.String())
	return title[1], leader[1]
}

// gauges are those that are about leading, and the state that is 1.
func gauges(t *testing.T, lock *schedlock.Lock) map[string]float64 {
	t.Helper()
	m := prom.New()
	m.Watch(lock, nil)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.Metric {
			value := metric.GetGauge().GetValue()
			switch {
			case f.GetName() == "schedlock_leader":
				found[f.GetName()] = value
			case f.GetName() == "schedlock_state" && value != 0:
				found[metric.Label[0].GetValue()] = value
			}
		}
	}
	return found
}
