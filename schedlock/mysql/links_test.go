package mysql_test

import (
	process "os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// Only a program that imports this package links its driver: the demo app and the command do.
func TestNobodyElseLinksTheDriver(t *testing.T) {
	missing.Long(t, "runs go list")
	t.Parallel()
	const driver = "github.com/go-sql-driver/mysql"
	deps := func(folders ...string) string {
		out, err := process.Command("go", append([]string{"list", "-deps"}, folders...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Contains(t, deps("."), driver)
	require.NotContains(t, deps("..", "../../startup", "../../tasks", "../../tasks/queue",
		"../../migrations", "../sqlite", "../postgres", "../named", "../locktest", "../prom",
		"../statuspage"), driver)
	require.NotContains(t, strings.ToLower(deps("../memory")), "sql-driver")
}
