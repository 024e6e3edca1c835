package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"example.com/schedlock/internal/datasource/dsntest"
)

// FuzzNoOutputOfTheCommandHasAPartOfAPassword gives it addresses in every spelling,
// as --db and where none belongs. A minute of it:
//
//	go test ./cmd/schedlock -run '^$' -fuzz FuzzNoOutput -fuzztime 1m
func FuzzNoOutputOfTheCommandHasAPartOfAPassword(f *testing.F) {
	dsntest.Fuzz(f, 7, func(t *testing.T, text string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var outputs []string
		try := func(env map[string]string, args ...string) {
			var out bytes.Buffer
			lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
			call := &tool{lookup: lookup, in: strings.NewReader("yes\n"), out: &out, errOut: &out}
			call.run(ctx, append(args, "--timeout", "100ms"))
			outputs = append(outputs, out.String())
		}
		commands := []string{"status", "history", "runs", "jobs", "doctor", "migrate",
			"release --force", "pause work", "resume work", "run work"}
		command := strings.Fields(commands[len(text)%len(commands)])
		try(nil, append(command, "--json", "--db", text)...)
		try(nil, append(command, "--db="+text)...)
		try(map[string]string{databaseVariable: text}, "status")
		// In the wrong place, or cut in pieces by a shell.
		pieces := strings.Fields(text)
		for _, args := range [][]string{{text}, {"--" + text}, {"help", text},
			append([]string{"--db"}, pieces...), append([]string{"status", "--db"}, pieces...)} {
			try(nil, args...)
			try(nil, append([]string{"--json"}, args...)...)
		}
		try(nil, "status", text, "--db", "x")
		try(nil, "status", "--timeout", text)
		if isAddress(text) { // else it may be a job's name
			try(nil, "run", text, "--db", "x")
		}
		return outputs
	})
}
