//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDatabaseFileThatWasDeletedIsNeverMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", "LOCK_TTL=6s", "LOCK_HEARTBEAT=300ms", "TICK=200ms")
	leader, _ := f.startLeader()
	standby := f.start()
	leader.awaitImport() // else it fails
	before := f.files()
	require.NoError(t, os.Remove(f.db))

	for _, r := range []*replica{leader, standby} {
		eventually(t, "it says that it does not lead and is not ready", func() error {
			a := r.get("/lock")
			if a.status != http.StatusServiceUnavailable {
				return fmt.Errorf("GET /lock: %d %s", a.status, a.body)
			}
			require.Equal(t, []string{"error", "self"}, a.keys(t))
			var said struct {
				Error string    `json:"error"`
				Self  selfState `json:"self"`
			}
			decode(t, a.body, &said)
			require.NotEmpty(t, said.Error)
			if said.Self.Leader || said.Self.State != "standby" {
				return fmt.Errorf("%+v", said.Self)
			}
			return nil
		})
		require.Equal(t, http.StatusServiceUnavailable, r.get("/readyz").status)
		page := r.get("/")
		require.Equal(t, http.StatusServiceUnavailable, page.status)
		require.True(t, page.contains("the database file is not the one that was opened"), "%s",
			page.body)
		require.Equal(t, http.StatusOK, r.get("/healthz").status, "the web app goes on")
		text := r.everything()
		require.NotContains(t, text, f.dir, "a stranger learns no paths")
		require.NotContains(t, text, "bans.db")
	}
	leader.awaitLine("lost the lock", f.db) // it names the file

	for _, r := range []*replica{leader, standby} {
		r.stop()
		for _, line := range r.errorLines() {
			require.Contains(t, line, "scheduler lock is lost", "a run that was under way")
		}
	}
	after := slices.DeleteFunc(f.files(), func(name string) bool {
		return slices.Contains(before, name)
	})
	require.Empty(t, after, "new files")
	_, err := os.Stat(f.db)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// keys are those of the answer, a JSON object, sorted.
func (a answer) keys(t *testing.T) []string {
	t.Helper()
	return objectKeys(t, a.body)
}

func objectKeys(t *testing.T, object []byte) (keys []string) {
	t.Helper()
	var m map[string]json.RawMessage
	decode(t, object, &m)
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (a answer) contains(s string) bool { return strings.Contains(string(a.body), s) }
