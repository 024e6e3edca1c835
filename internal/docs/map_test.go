package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
