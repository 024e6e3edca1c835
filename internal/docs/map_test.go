package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

const module = "example.com/schedlock/"

var quoted = regexp.MustCompile("`([^`]+)`")

// The map in CONTRIBUTING.md has each package once, and what the packages of a row
// import of the others, without those in internal, on every platform.
func TestTheMapIsThatOfTheCode(t *testing.T) {
	imports := map[string][]string{}
	walk(t, func(path string) {
		folder := filepath.ToSlash(filepath.Dir(path))
		imports[folder] = append(imports[folder], "")
		if strings.HasSuffix(path, "_test.go") {
			return // it may import anything
		}
		file, _ := parse(t, path)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			name, ok := strings.CutPrefix(imported, module)
			if ok && !strings.HasPrefix(name, "internal/") {
				imports[folder] = append(imports[folder], name)
			}
		}
	})
	names := func(cell string) []string {
		all := []string{}
		for _, found := range quoted.FindAllStringSubmatch(cell, -1) {
			all = append(all, found[1])
		}
		return all
	}
	_, table, found := strings.Cut(read(t, "CONTRIBUTING.md"),
		"| package | what it does | imports |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var mapped []string
	for _, line := range strings.Split(table, "\n")[1:] {
		cells := strings.Split(line, "|")
		require.Len(t, cells, 5, line)
		row := names(cells[1])
		mapped = append(mapped, row...)
		var actual []string
		for _, name := range row {
			actual = append(actual, imports[name]...)
		}
		actual = slices.DeleteFunc(actual, func(name string) bool {
			return name == "" || slices.Contains(row, name)
		})
		slices.Sort(actual)
		assert.Equal(t, slices.Compact(actual), names(cells[3]),
			"CONTRIBUTING.md: what %v import", row)
	}
	var all []string
	for name := range imports {
		all = append(all, name)
	}
	assert.ElementsMatch(t, all, mapped, "CONTRIBUTING.md: the packages")
}

// An app links the client of a server only with the package that needs it, and never an SQLite
// that database/sql has: it may have another of that name.
func TestAnAppLinksOnlyWhatItImports(t *testing.T) {
	missing.Long(t, "runs go list")
	t.Parallel()
	users := map[string]string{
		"github.com/go-sql-driver/mysql":       "schedlock/mysql",
		"github.com/jackc/pgx":                 "schedlock/postgres",
		"github.com/ncruces/go-sqlite3":        "schedlock/sqlite",
		"github.com/prometheus":                "schedlock/prom",
		"github.com/ncruces/go-sqlite3/driver": "",
		"github.com/mattn/go-sqlite3":          "",
		"modernc.org/sqlite":                   "",
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f",
		`{{.ImportPath}} {{join .Deps " "}}`, "./schedlock/...", "./tasks/...", "./startup/...",
		"./migrations/...")
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		user, deps, _ := strings.Cut(strings.TrimPrefix(line, module), " ")
		for client, needs := range users {
			assert.Equal(t, user == needs, strings.Contains(" "+deps, " "+client),
				"%s and %s", user, client)
		}
	}
}
