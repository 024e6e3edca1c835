//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
)

// FuzzNoOutputOfTheAppHasAPartOfAPassword gives it addresses in every spelling, as
// a database and where none belongs. A minute of it:
//
//	go test ./cmd/demoapp -run '^$' -fuzz FuzzNoOutput -fuzztime 1m
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
		load := func(name string, args ...string) (config, error) {
			cfg, err := loadConfig(args, func(v string) (string, bool) {
				return text, v == variable(name)
			}, &out)
			said(err)
			return cfg, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		for _, name := range []string{"database-url", "lock-database-url"} {
			if cfg, err := load(name); err == nil {
				database, err := openDatabase(ctx, cfg.databaseURL)
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

func TestAPostgresThatIsNamedByPairsIsNoFile(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, url := range []string{
		"host=127.0.0.1 port=1 dbname=app password=geheim",
		"password = geheim host = 127.0.0.1 port = 1 dbname = app",
		"dbname='app' password='ge heim' host='127.0.0.1' port=1 connect_timeout=5",
	} {
		r := f.launch("DATABASE_URL=" + url)
		require.Equal(t, exitFailed, r.wait())
		require.Contains(t, r.log.String(), "127.0.0.1:1")
		require.Contains(t, r.log.String(), "refused")
		require.NotContains(t, r.log.String(), "heim")
		require.Empty(t, f.files())
	}
	for _, url := range []string{
		"host=127.0.0.1 password = geheim sslmode = sometimes", "Host=127.0.0.1;Pwd=geheim",
		"app:geheim@127.0.0.1/app",
		"mysql://app:geheim@127.0.0.1/app", "postgres://app:x@geheim@127.0.0.1/app",
		"file:postgres://app:geheim@127.0.0.1/app",
	} {
		r := f.launch("DATABASE_URL=" + url)
		require.Equal(t, exitBadConfig, r.wait(), r.log.String())
		require.NotContains(t, r.log.String(), "heim")
		requireOneLine(t, r, "DEMOAPP_DATABASE_URL")
		require.Empty(t, f.files())
	}
}

func TestANameThatOnlyLooksLikeAnAddressIsAFileWithADotInFront(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r := f.start("DATABASE_URL=./host=a b")
	r.stop()
	_, err := os.Stat(f.dir + "/host=a b")
	require.NoError(t, err)
}
