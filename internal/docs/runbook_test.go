package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const runbook = "docs/operating.md"

// composed are the log lines whose text is put together, by where that is.
var composed = map[string][]string{
	"schedlock/log.go: first": {"database does not answer", "database refuses us",
		"lock row cannot be taken over", "release failed"},
}

// Whoever is called at night finds a heading for what the alert, the log or the
// doctor says.
func TestTheRunbookHasAHeadingForEachAlertLogLineAndFinding(t *testing.T) {
	known := map[string]string{}
	alert := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	for _, found := range alert.FindAllStringSubmatch(read(t, "docs/alerts.yaml"), -1) {
		known[found[1]] = "alert"
	}
	require.NotEmpty(t, known)
	walk(t, func(path string) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
		case strings.HasPrefix(path, filepath.Join("cmd", "schedlock", "internal", "doctor")):
			for _, check := range checks(t, path) {
				known[check] = "finding of doctor"
			}
		case strings.HasPrefix(path, filepath.Join("internal", "bench")),
			strings.HasPrefix(path, filepath.Join("internal", "pgtest")):
		default:
			for _, line := range logged(t, path) {
				known[line] = "log line of " + path
			}
		}
	})
	assert.Contains(t, known, "lost the lock")
	assert.Contains(t, known, "journal mode")

	var headings []string
	for _, line := range prose(read(t, runbook)) {
		if strings.HasPrefix(line, "#") {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
				headings = append(headings, name[1])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !slices.Contains(headings, name) {
			t.Errorf("%s has no heading with `%s`: %s", runbook, name, known[name])
		}
	}
	for _, name := range headings {
		if known[name] == "" {
			t.Errorf("%s has a heading with `%s`, which nothing says", runbook, name)
		}
	}
}

// What "By symptom" quotes of status and doctor is what they say: each piece between ellipses
// stands in the command's code, and each finding is a check of doctor.
func TestTheSymptomsAreQuotedAsTheCommandSaysThem(t *testing.T) {
	var said []string
	var known []string
	walk(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		if strings.HasPrefix(path, filepath.Join("cmd", "schedlock")) {
			said = append(said, texts(t, path)...)
		}
		if strings.HasPrefix(path, filepath.Join("cmd", "schedlock", "internal", "doctor")) {
			known = append(known, checks(t, path)...)
		}
	})
	require.Contains(t, known, "flapping")
	says := func(piece string) bool {
		return slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, piece) })
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := rowsUnder(t, read(t, runbook), "By symptom")[1:]
	require.NotEmpty(t, rows)
	for _, row := range rows {
		for column, cell := range row[1:3] {
			for _, quote := range quoted.FindAllStringSubmatch(cell, -1) {
				if check, _, _ := strings.Cut(quote[1], ":"); column == 1 {
					assert.Contains(t, known, check, "no check of doctor: %q", quote[1])
				}
				for _, piece := range strings.Split(quote[1], "…") {
					piece = strings.Trim(piece, " :;")
					assert.True(t, says(piece), "nothing says %q of %q", piece, quote[1])
				}
			}
		}
	}
}

// texts are the strings of a file; those that are added up in the code are one.
func texts(t *testing.T, path string) (all []string) {
	file, _ := parse(t, path)
	var whole func(ast.Expr) string
	whole = func(e ast.Expr) string {
		if sum, ok := e.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
			return whole(sum.X) + whole(sum.Y)
		}
		text, _ := literal(e)
		return text
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text := whole(e)
		if text != "" {
			all = append(all, text)
		}
		return text == ""
	})
	return all
}

// parse parses a file. Functions may have constants of one name, with values of their own.
func parse(t *testing.T, path string) (file *ast.File, constants map[string][]string) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, 0)
	require.NoError(t, err)
	constants = map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
			if text, ok := literal(spec.Values[0]); ok {
				name := spec.Names[0].Name
				constants[name] = append(constants[name], text)
			}
		}
		return true
	})
	return file, constants
}

// sources parses the Go files of a folder, without its tests.
func sources(t *testing.T, folder string) (files []*ast.File) {
	paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			file, _ := parse(t, filepath.Join(folder, filepath.Base(path)))
			files = append(files, file)
		}
	}
	return files
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// logged are the texts of the lines that a file logs at level WARN or ERROR. What
// is not a constant in them is an ellipsis.
func logged(t *testing.T, path string) (lines []string) {
	file, constants := parse(t, path)
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := literal(e)
			return s
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			all := constants[e.Name]
			if len(all) == 1 {
				return all[0]
			}
			all = append(all, composed[filepath.ToSlash(path)+": "+e.Name]...)
			if len(all) > 0 {
				lines = append(lines, all...)
				return ""
			}
		}
		return "…"
	}
	calls(file, func(on, name string, args []ast.Expr) {
		message := -1
		switch name {
		case "Warn", "Error":
			message = 0
		case "WarnContext", "ErrorContext":
			message = 1
		case "Log", "LogAttrs", "logFailure", "NewRecord":
			message = 2
		}
		if message < 0 || len(args) <= message || on == "http" || on == "t" {
			return
		}
		level, ok := args[max(message-1, 0)].(*ast.SelectorExpr)
		if ok && (level.Sel.Name == "LevelInfo" || level.Sel.Name == "LevelDebug") {
			return
		}
		if line := text(args[message]); line != "" && line != "…" {
			lines = append(lines, line)
		}
	})
	return lines
}

// calls hands over the calls of a file: of methods and functions, with the name of the variable or
// package that they are called on, if it is one.
func calls(file *ast.File, do func(on, name string, args []ast.Expr)) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch called := call.Fun.(type) {
		case *ast.Ident:
			do("", called.Name, call.Args)
		case *ast.SelectorExpr:
			on := ""
			if name, ok := called.X.(*ast.Ident); ok {
				on = name.Name
			}
			do(on, called.Sel.Name, call.Args)
		}
		return true
	})
}

// checks are the names of the findings of a file of package doctor.
func checks(t *testing.T, path string) (names []string) {
	file, constants := parse(t, path)
	calls(file, func(_, name string, args []ast.Expr) {
		at, known := map[string]int{"ok": 0, "note": 0, "warn": 0, "fail": 0, "failToRead": 1}[name]
		if !known || len(args) <= at {
			return
		}
		switch arg := args[at].(type) {
		case *ast.BasicLit:
			check, _ := literal(arg)
			names = append(names, check)
		case *ast.Ident:
			names = append(names, constants[arg.Name]...)
		}
	})
	return names
}

// settable are the packages whose options and configurations an app sets.
var settable = []string{"migrations", "schedlock", "schedlock/sqlite", "schedlock/postgres",
	"schedlock/mysql", "schedlock/named", "schedlock/prom", "schedlock/statuspage", "startup",
	"tasks", "tasks/queue"}

// configurations are the structs that are filled in by an app.
var configurations = []string{"startup.Config", "startup.Stage", "tasks.Job", "tasks.Retry",
	"statuspage.Config"}

func TestTheConfigurationPageHasEverySetting(t *testing.T) {
	page := read(t, "docs/configuration.md")
	for _, folder := range settable {
		for _, file := range sources(t, folder) {
			for _, name := range settings(file) {
				if !strings.Contains(page, "`"+name+"`") {
					t.Errorf("docs/configuration.md has no `%s`", name)
				}
			}
		}
	}
	variables := regexp.MustCompile(`fs\.\w+Var\(&[\w.]+, "([a-z-]+)"`).
		FindAllStringSubmatch(read(t, "cmd/demoapp/app/config.go"), -1)
	require.NotEmpty(t, variables)
	for _, v := range variables {
		name := "DEMOAPP_" + strings.ToUpper(strings.ReplaceAll(v[1], "-", "_"))
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/configuration.md has no `%s`", name)
		}
	}
}

// settings are the options of a file, and the fields of its configurations, as a
// user writes them.
func settings(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && (strings.HasPrefix(d.Name.Name, "With") ||
				strings.HasSuffix(d.Name.Name, "FromEnv")) {
				names = append(names, file.Name.Name+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok || !slices.Contains(configurations, file.Name.Name+"."+typ.Name.Name) {
					continue
				}
				for _, field := range typ.Type.(*ast.StructType).Fields.List {
					for _, name := range field.Names {
						if name.IsExported() {
							names = append(names, file.Name.Name+"."+typ.Name.Name+"."+name.Name)
						}
					}
				}
			}
		}
	}
	return names
}
