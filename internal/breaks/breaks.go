// Package breaks shows that the tests of this module can fail. Each break in
// testdata is a change of the code that some test must notice. The test of this
// package applies it as an overlay of go test, so that no file is changed, and
// runs the tests that it names:
//
//	go test ./internal/breaks                          each break still applies
//	go test ./internal/breaks -v -breaks.run='fence'   those whose subject or name matches
//	go test ./internal/breaks -v -breaks.share=3/40    a fortieth of them
//	go test ./internal/breaks -v -breaks.all           all; add -timeout 0
//
// A file of testdata has the breaks of one subject. A break is a name, the tests that
// must be red, and one or more edits:
//
//	# The deadline of a lease counts from the answer, not from the request.
//	red schedlock ^TestTheDeadlineOfAHeartbeatCountsFromItsSending$
//	edit schedlock/lease.go
//	-	sent := l.lock.clock.Read()
//	+	sent := later(l.lock.clock.Read())
//
// In an edit, the lines after - and after a space must stand in the file exactly
// once, one below the other, and are replaced by those after + and after a space.
// What is left out at the beginning of the first line, or at the end of the last
// one, does not matter.
//
// Each line with red names a package by its folder, and tests as -run does, and
// must be red. After them, race turns the race detector on, and hang says that the
// tests do not end, instead of failing.
package breaks

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Break is a change that tests must notice.
type Break struct {
	Subject string // the file that it is from
	Name    string
	Red     []Red
	Edits   []Edit
}

// Red are tests that a break must make fail.
type Red struct {
	Folder  string
	Run     string
	Options []string
}

// An Edit replaces a part of a file that occurs there once.
type Edit struct{ File, Old, New string }

// Load reads the breaks of a folder, by subject.
func Load(folder string) (all []*Break, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		breaks, err := Parse(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, breaks...)
	}
	return all, nil
}

// Parse reads the breaks of one subject.
func Parse(subject, text string) (all []*Break, err error) {
	var b *Break
	naming := false
	for i, line := range strings.Split(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(rest)
		switch {
		case line == "":
		case word == "#" && naming:
			b.Name += " " + rest
		case word == "#":
			b = &Break{Subject: subject, Name: rest}
			all = append(all, b)
		case b == nil:
			return nil, fmt.Errorf("line %d: before the name of a break", i+1)
		case word == "red" && len(fields) > 1 && len(b.Edits) == 0:
			for _, option := range fields[2:] {
				if option != "race" && option != "hang" {
					return nil, fmt.Errorf("line %d: unknown option %q", i+1, option)
				}
			}
			b.Red = append(b.Red, Red{fields[0], fields[1], fields[2:]})
		case word == "edit" && len(fields) == 1 && len(b.Red) > 0:
			b.Edits = append(b.Edits, Edit{File: fields[0]})
		case strings.ContainsRune("-+ ", rune(line[0])) && len(b.Edits) > 0:
			edit := &b.Edits[len(b.Edits)-1]
			if line[0] != '+' {
				edit.Old += line[1:] + "\n"
			}
			if line[0] != '-' {
				edit.New += line[1:] + "\n"
			}
		default:
			return nil, fmt.Errorf("line %d: %q is not expected here", i+1, line)
		}
		naming = word == "#"
	}
	for _, b := range all {
		if len(b.Edits) == 0 || slices.ContainsFunc(b.Edits, func(e Edit) bool {
			return e.Old == "" || e.Old == e.New
		}) {
			return nil, fmt.Errorf("%q has no edit, or one that changes nothing", b.Name)
		}
	}
	return all, nil
}

// Apply returns the files that a break changes, by their paths from root, as it
// leaves them.
func (b *Break) Apply(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, edit := range b.Edits {
		text, ok := files[edit.File]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, edit.File))
			if err != nil {
				return nil, fmt.Errorf("does not apply any more: %w", err)
			}
			text = string(read)
		}
		before, after := strings.TrimSuffix(edit.Old, "\n"), strings.TrimSuffix(edit.New, "\n")
		if n := strings.Count(text, before); n != 1 {
			return nil, fmt.Errorf("does not apply any more: %s has %d times, not once:\n%s",
				edit.File, n, before)
		}
		files[edit.File] = strings.Replace(text, before, after, 1)
	}
	for file, text := range files {
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), file, text, 0); err != nil {
			return nil, fmt.Errorf("is no Go any more: %w", err)
		}
	}
	return files, nil
}
