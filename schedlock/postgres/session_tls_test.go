//go:build unix

package postgres_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/postgres"
)

// Under TLS the socket is looked at, not what it carries.
func TestTheEndOfAnEncryptedSessionIsSeen(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	databaseURL := server.Database(t)
	migrate(t, databaseURL)
	certify(t, server)
	admin := session(t, databaseURL)
	exec(t, admin, `ALTER SYSTEM SET ssl = on`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	q := u.Query()
	q.Set("sslmode", "require")
	u.RawQuery = q.Encode()
	var holder *postgres.Store
	eventually(t, "the server speaks TLS", func() bool {
		holder, err = postgres.Open(ctx, u.String(), silent)
		return err == nil
	})
	t.Cleanup(func() { require.NoError(t, holder.Close()) })
	ref, s := acquireWatched(t, holder, time.Minute)
	require.NotNil(t, s)
	require.True(t, value[bool](t, admin,
		`SELECT s.ssl FROM pg_stat_ssl s JOIN scheduler_lock l ON s.pid = l.backend_pid`))
	for range 20 {
		heartbeat(t, holder, ref)
		eventually(t, "nothing is left to read", s.Alive)
	}
	require.False(t, servertest.HasEnded(s))
	require.True(t, value[bool](t, admin,
		`SELECT pg_terminate_backend(backend_pid, 5000) FROM scheduler_lock`))
	ends(t, s.Ended())
	require.False(t, s.Alive())
}

// certify gives the server a certificate of its own.
func certify(t testing.TB, server *pgtest.Server) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	data := filepath.Join(server.Dir(), "data")
	info, err := os.Stat(data)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY",
			Bytes: private},
	} {
		path := filepath.Join(data, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			require.NoError(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
		}
	}
}
