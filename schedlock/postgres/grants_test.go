package postgres_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

var grantTo = regexp.MustCompile(`(?m)^GRANT (.*) ON (.*) TO app;$`)

// documented calls do with each right that a page of the documents grants to an app.
func documented(t testing.TB, page string, do func(privilege, on string)) {
	text, err := os.ReadFile("../../docs/" + page)
	require.NoError(t, err)
	found := grantTo.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, grant := range found {
		for _, privilege := range strings.Split(grant[1], ", ") {
			for _, on := range strings.Split(grant[2], ", ") {
				do(privilege, on)
			}
		}
	}
}

// granted is a migrated database and a role that has the rights of the lock, or of these pages, and
// no more.
func granted(t testing.TB, pages ...string) (admin *pgx.Conn, role, url string) {
	direct := migrated(t)
	admin, role = session(t, direct), newRole(t, direct, "")
	exec(t, admin, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	if pages == nil {
		pages = []string{"databases.md"}
	}
	for _, page := range pages {
		documented(t, page, func(privilege, on string) {
			exec(t, admin, fmt.Sprintf(`GRANT %s ON %s TO %s`, privilege, on, role))
		})
	}
	return admin, role, as(t, direct, role)
}

func opened(t testing.TB, url string, opts ...postgres.Option) *postgres.Store {
	t.Helper()
	store, err := postgres.Opener(url, append([]postgres.Option{silent}, opts...)...).Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	store.PrimeFor(patience)
	return store
}

// The documented rights are enough: see TestConformance.
func TestOpenerNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	refused := func(t *testing.T, wanted ...string) {
		t.Helper()
		store, err := postgres.Opener(url, silent)(ctx)
		require.True(t, store == nil, "not an interface with a nil pointer in it")
		require.ErrorIs(t, err, driver.ErrPermanent)
		for _, text := range append(wanted, databaseName(t, url)) {
			require.ErrorContains(t, err, text)
		}
	}
	documented(t, "databases.md", func(privilege, on string) {
		t.Run(privilege+" ON "+on, func(t *testing.T) {
			exec(t, admin, fmt.Sprintf(`REVOKE %s ON %s FROM %s`, privilege, on, role))
			if privilege == "USAGE" { // ON SCHEMA
				refused(t, "GRANT USAGE")
				require.ErrorContains(t, open(t, url).Check(ctx), "GRANT USAGE")
			} else {
				refused(t, "GRANT "+privilege+" ON ", on, role)
			}
			exec(t, admin, fmt.Sprintf(`GRANT %s ON %s TO %s`, privilege, on, role))
		})
	})
	t.Run("several", func(t *testing.T) {
		exec(t, admin, `REVOKE ALL ON scheduler_requests, scheduler_pauses FROM `+role)
		refused(t, "GRANT SELECT ON public.scheduler_pauses TO "+role,
			"GRANT DELETE ON public.scheduler_requests TO "+role)
		exec(t, admin, `GRANT ALL ON scheduler_requests, scheduler_pauses TO `+role)
	})
	opened(t, url)
}
