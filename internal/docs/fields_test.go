package docs

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	inApp     = "cmd/demoapp/app"
	inCommand = "cmd/schedlock"
	inDoctor  = "cmd/schedlock/internal/doctor"
	inNamed   = "schedlock/driver/namedlock"
)

// objects are the tables of docs/http.md by their headings: the structs of the
// columns "App", and "Command" or "Sidecar". A struct without a name is called after
// its function, with a number from the second one on.
var objects = map[string][2][]string{
	"The answer of `GET /lock`": {{inApp + ".serveLock 2"}, {inCommand + ".serveLock 2"}},
	"The lock":                  {{inApp + ".lockJSON"}, {inCommand + ".lockJSON"}},
	"This replica":              {{inApp + ".selfJSON"}, {inCommand + ".selfJSON"}},
	"A term": {{inApp + ".termJSON"},
		{inCommand + ".termJSON", inCommand + ".historyJSON"}},
	"An order to leave":   {nil, {inCommand + ".revokedJSON"}},
	"A run":               {{inApp + ".runJSON"}, {inCommand + ".runJSON"}},
	"An attempt":          {nil, {inCommand + ".attemptJSON"}},
	"A job":               {{inApp + ".jobJSON"}, {inCommand + ".jobJSON"}},
	"A pause":             {{inApp + ".pauseJSON"}, {inCommand + ".pauseJSON"}},
	"An order":            {nil, {inCommand + ".auditJSON"}},
	"A replica":           {nil, {inCommand + ".replicaJSON"}},
	"A request for a run": {{inApp + ".requestJSON"}, {inCommand + ".requestJSON"}},
}

// others are the structs of the rows of "Other answers"; those of one row are equal.
var others = map[string][]string{
	"an error": {inApp + ".errorJSON", inCommand + ".errorJSON"},
	"of the app or the sidecar to `GET /lock`, the database can't be read": {inApp + ".serveLock",
		inCommand + ".serveLock"},
	"of the app to an order for a job that is paused": {inApp + ".answerFailed"},
	"of the app to `POST …/pause`":                    {inApp + ".orderPause"},
	"of the app to `POST …/resume`":                   {inApp + ".orderResume"},
	"of the sidecar to `GET /leader`":                 {inCommand + ".leaderJSON"},
	"of the sidecar to `POST /release`":               {inCommand + ".serveRelease"},
	"`status`":                                        {inCommand + ".statusJSON"},
	"`standby` of `status`":                           {inCommand + ".standbyJSON"},
	"`watch`, one a line":                             {inCommand + ".change"},
	"`pause`":                                         {inCommand + ".pausedJSON"},
	"`resume`":                                        {inCommand + ".resumeJSON"},
	"`reset-cursor`":                                  {inCommand + ".cursorJSON"},
	"`release`":                                       {inCommand + ".releaseJSON"},
	"`locks`, each":                                   {inCommand + ".namedLockJSON"},
	"`locks release`":                                 {inCommand + ".releasedLockJSON"},
	"`revoked` of `locks`":                            {inNamed + ".Revocation"},
	"`queue`, each":                                   {inCommand + ".countJSON"},
	"`queue list`, each":                              {inCommand + ".taskJSON"},
	"`queue requeue`":                                 {inCommand + ".requeuedJSON"},
	"`queue prune`":                                   {inCommand + ".prunedJSON"},
	"`fence`":                                         {inCommand + ".fence"},
	"`migrate`":                                       {inCommand + ".migrateJSON"},
	"`doctor`":                                        {inDoctor + ".Report"},
	"a finding of `doctor`":                           {inDoctor + ".Finding"},
	"`version`":                                       {inCommand + ".versionJSON"},
}

// docs/http.md has each field of each answer, and no other; and each column that it
// names is one of its table. One that is called like a field is named.
func TestTheFieldsPageIsThatOfTheCode(t *testing.T) {
	structs := map[string][]string{}
	for _, folder := range []string{inApp, inCommand, inDoctor, inNamed} {
		for name, fields := range encoded(t, folder) {
			structs[folder+"."+name] = fields
		}
	}
	used := map[string]bool{}
	fields := func(names []string) (all []string) {
		for _, name := range names {
			require.NotEmpty(t, structs[name], "%s: no such struct with json tags", name)
			used[name] = true
			for _, f := range structs[name] {
				if !slices.Contains(all, f) {
					all = append(all, f)
				}
			}
		}
		return all
	}
	columns := commented(t)
	text := read(t, "docs/http.md")
	for heading, where := range objects {
		rows := rowsUnder(t, text, heading)
		for i, names := range where {
			var listed []string
			for _, row := range rows[1:] {
				if row[1+i] != "" {
					require.Equal(t, "yes", row[1+i], "%s: %s", heading, row)
					listed = append(listed, bareName(t, row[0]))
				}
			}
			assert.ElementsMatch(t, fields(names), listed, "%s, %s", heading, rows[0][1+i])
		}
		table, ok := strings.CutPrefix(rows[0][3], "Column of ")
		if !ok {
			continue
		}
		columns := columns[bareName(t, table)]
		require.NotEmpty(t, columns, table)
		for _, row := range rows[1:] {
			field := bareName(t, row[0])
			switch {
			case row[3] != "":
				assert.Contains(t, columns, bareName(t, row[3]), "%s: %s", heading, field)
			case slices.Contains(columns, field):
				t.Errorf("%s: %s is a column, which is not named", heading, field)
			}
		}
	}
	rows := rowsUnder(t, text, "Other answers")[1:]
	assert.Len(t, rows, len(others))
	for _, row := range rows {
		require.NotEmpty(t, others[row[0]], "the row %s", row[0])
		for _, name := range others[row[0]] {
			var listed []string
			for _, f := range strings.Split(row[1], ", ") {
				listed = append(listed, bareName(t, f))
			}
			assert.Equal(t, fields([]string{name}), listed, "%s: %s", row[0], name)
		}
	}
	for name := range structs {
		assert.True(t, used[name], "docs/http.md lacks the fields of %s", name)
	}
}

// commented are the columns by their tables: in PostgreSQL each has a comment.
func commented(t *testing.T) map[string][]string {
	paths, err := filepath.Glob(filepath.Join(root, "migrations", "postgres", "*.sql"))
	require.NoError(t, err)
	columns := map[string][]string{}
	comment := regexp.MustCompile(`COMMENT ON COLUMN (\w+)\.(\w+) IS`)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, found := range comment.FindAllStringSubmatch(string(text), -1) {
			columns[found[1]] = append(columns[found[1]], found[2])
		}
	}
	return columns
}

// rowsUnder are the cells of the table that follows a heading, with its head.
func rowsUnder(t *testing.T, text, heading string) (rows [][]string) {
	_, section, found := strings.Cut(text, "\n## "+heading+"\n")
	require.True(t, found, "no heading %q", heading)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	require.Greater(t, len(rows), 1, heading)
	return rows
}

var codeName = regexp.MustCompile("^`([a-z_]+)`$")

func bareName(t *testing.T, cell string) string {
	found := codeName.FindStringSubmatch(cell)
	require.NotNil(t, found, "%q is no name", cell)
	return found[1]
}

// encoded are the JSON fields of the structs of a folder that have some.
func encoded(t *testing.T, folder string) map[string][]string {
	found := map[string]*ast.StructType{}
	for _, file := range sources(t, folder) {
		add := func(name string, within ast.Node) {
			n := 0
			ast.Inspect(within, func(node ast.Node) bool {
				s, ok := node.(*ast.StructType)
				if !ok || len(jsonNames(s, nil)) == 0 {
					return true
				}
				key := name
				if n++; n > 1 {
					key = fmt.Sprintf("%s %d", name, n)
				}
				require.NotContains(t, found, key)
				found[key] = s
				return true
			})
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				add(d.Name.Name, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						add(spec.Name.Name, spec)
					}
				}
			}
		}
	}
	fields := map[string][]string{}
	for name, s := range found {
		fields[name] = jsonNames(s, found)
	}
	return fields
}

// jsonNames are the names of a struct's fields, with those of the structs in it.
func jsonNames(s *ast.StructType, known map[string]*ast.StructType) (names []string) {
	for _, f := range s.Fields.List {
		if within, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 && known[within.Name] != nil {
			names = append(names, jsonNames(known[within.Name], known)...)
		}
		if f.Tag == nil {
			continue
		}
		tag, _ := literal(f.Tag)
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}
