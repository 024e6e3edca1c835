// Package dsntest spells addresses of databases around a password, for tests that
// look for it in everything a program says, and in the names of the files that it
// makes.
package dsntest

import (
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Fuzz tries addresses in every spelling, in an empty folder, and fails if what
// try returns, which is all that was said, or the name of a file, has a part of
// the password. Of its [Seeds] it takes one in every so many, with -short fewer.
func Fuzz(f *testing.F, every int, try func(t *testing.T, text string) (said []string)) {
	if testing.Short() {
		every *= 5
	}
	Seeds(every, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		text, secret := Spell(data)
		folder := t.TempDir()
		t.Chdir(folder)
		Check(t, text, secret, folder, try(t, text)...)
	})
}

// Seeds are what a fuzz test begins with, and what it does in a run without
// fuzzing: each form with each special character, raw, escaped and edited.
// Of them it takes one in every so many.
func Seeds(every int, add func(data []byte)) {
	n := 0
	take := add
	add = func(data []byte) {
		if n++; n%every == 0 {
			take(data)
		}
	}
	for form := range byte(forms) {
		for special := range byte(len(specials)) {
			for style := range byte(3) {
				add([]byte{form, special, style, form + special, style, special, 7 * form,
					11 * special, form, 3 * special})
			}
		}
		for edit := range byte(24) {
			add([]byte{form, 0, 0, edit, 1 + edit%5, edit, 1 + edit%4, 10 * edit, 3 * edit, edit})
		}
	}
}

const forms = 18

var specials = []string{"", "@", "/", "?", "#", " ", "=", "&", "%", ":", "'", `"`, `\`, ",", ";",
	"[", "]", "%41", "@ ", " x=", "' x=", "://", "\t", "ü", "\x00", "?a=", "&x="}

// A source gives the bytes that a fuzzer has chosen, and then zeros.
type source []byte

func (s *source) n(below int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % below
}

func (s *source) one(of ...string) string { return of[s.n(len(of))] }

// Spell returns an address and the password in it. All hosts are ones where
// nobody answers.
func Spell(data []byte) (text, secret string) {
	s := source(data)
	form, special, style := s.n(forms), s.one(specials...), s.n(3)
	secret = "Qz7kXw9v" + special + "Yh4tKq8n"
	var (
		user = s.one("ann", "app", "a-b", "")
		host = s.one("127.0.0.1:1", "localhost:1", "[::1]:1", "127.0.0.1:1,127.0.0.1:2")
		bad  = s.one("", "", "sslmode=sometimes", "connect_timeout=soon", "pool_max_conns=few",
			"port=high", "target_session_attrs=any_", "sslrootcert=/missing", "x=y",
			"default_query_exec_mode=odd", "service=none")
		clean = style == 0 || special == ""
	)
	put := secret
	if style == 0 {
		put = strings.ReplaceAll(url.QueryEscape(secret), "+", "%20")
	}
	parameters := ""
	if bad != "" {
		parameters = "?" + bad
	}
	also := strings.Replace(parameters, "?", "&", 1)
	switch form {
	case 0:
		text = "postgres://" + user + ":" + put + "@" + host + "/db" + parameters
	case 1:
		text = "postgresql://" + user + ":" + put + "@" + host + parameters
	case 2:
		text = "postgres://" + host + "/db?user=ann&password=" + put + also
	case 3:
		text = "postgres://" + user + "@" + host + "/db?sslpassword=" + put + also
	case 4, 5, 6, 7:
		text = spellPairs(&s, secret, user, bad, style)
	case 8:
		text = "mysql://" + user + ":" + put + "@" + host + "/db"
	case 9:
		text = "root:" + put + "@tcp(127.0.0.1:1)/db"
	case 10:
		text = "jdbc:postgresql://" + host + "/db?user=ann&password=" + put
	case 11:
		text = s.one("file:", "file://", "file:///", " ", `"`, "'") + "postgres://" + user + ":" +
			put + "@" + host + "/db"
	case 12:
		text = "Server=127.0.0.1;Uid=ann;" + s.one("Pwd", "Password", "PASSWORD") + "=" + put +
			";Database=db"
	case 13:
		text = s.one("POSTGRES", "Postgresql", "postgre", "pg", "http", "redis", "file") + "://" +
			user + ":" + put + "@" + host + "/db"
	case 14:
		text = s.one("postgres:", "postgres:/", "postgres//", "") + "ann:" + put + "@127.0.0.1:1/db"
	case 16:
		text = "mysql://" + user + ":" + put + "@" + host + s.one("/db", "", "/") + s.one("",
			"?timeout=soon", "?tls=odd", "?x=y", "?charset=odd", "?collation=odd")
	case 17:
		text = user + ":" + put + "@" + s.one("tcp(127.0.0.1:1)", "unix(/missing)", "tcp(") +
			s.one("/db", "", "/") + s.one("", "?timeout=soon", "?tls=odd", "?x=y")
	case 15:
		text = s.one("app.db", "file:app.db") + "?" + s.one("password", "pwd", "x=y&password") +
			"=" + put
	}
	// With a raw special character nobody knows where it ends.
	if clean && (form < 10 || form > 15) {
		text = edit(&s, text, put)
	}
	return text, secret
}

// spellPairs spells keyword=value pairs.
func spellPairs(s *source, secret, user, bad string, style int) string {
	equals := s.one("=", " = ", "= ", " =", "\t=\n")
	put := secret
	escaped := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(secret)
	switch style {
	case 0:
		put = "'" + escaped + "'"
	case 1:
		put = "'" + secret + "'"
	}
	pairs := []string{
		s.one("host", "hostaddr") + equals + s.one("127.0.0.1", "'127.0.0.1'", "/missing"), "port" +
			equals + "1",
		"dbname" + equals + s.one("db", "'a db'", "''"), s.one("password", "password",
			"sslpassword", "PASSWORD") + equals + put,
	}
	if user != "" {
		pairs = append(pairs, "user"+equals+user)
	}
	if bad != "" {
		pairs = append(pairs, bad)
	}
	for i := range pairs {
		j := i + s.n(len(pairs)-i)
		pairs[i], pairs[j] = pairs[j], pairs[i]
	}
	return strings.Join(pairs, s.one(" ", "  ", "\n"))
}

// edit makes one mistake, not in the password. Without the colon before it, it
// would be a good name of a user, which nobody can tell.
func edit(s *source, text, put string) string {
	kind, at := s.n(5), s.n(256)
	begin := strings.Index(text, put)
	if kind == 0 || begin < 0 {
		return text
	}
	if before := text[:begin]; kind == 4 && !strings.Contains(before, "://") &&
		!strings.Contains(before, "=") {
		return text // root:password can be a file
	}
	end := begin + len(put)
	at %= len(text)
	for at >= begin-1 && at < end {
		at = (at + 1) % len(text)
	}
	odd := s.one("@", "/", "?", "#", " ", "=", "&", "%", ":", "'", `\`, ",", "[")
	switch kind {
	case 1:
		return text[:at] + text[at+1:]
	case 2:
		return text[:at] + odd + text[at:]
	case 3:
		return text[:at] + odd + text[at+1:]
	}
	return text[:end] // the rest is missing
}

// Leak returns a part of the secret, of four characters or more, that an output
// has, also in another case or percent-encoded; "" if there is none.
func Leak(secret, output string) string {
	output = strings.ToLower(output)
	decoded, err := url.PathUnescape(output)
	if err != nil {
		decoded = output
	}
	const least = 4
	runes := []rune(strings.ToLower(secret))
	for i := 0; i+least <= len(runes); i++ {
		if part := string(runes[i : i+least]); strings.Contains(output, part) ||
			strings.Contains(decoded, part) {
			return part
		}
	}
	return ""
}

// Check fails the test if a part of the secret is in an output, or in the name of
// a file below the folder.
func Check(t *testing.T, text, secret, folder string, outputs ...string) {
	t.Helper()
	for _, out := range outputs {
		if part := Leak(secret, out); part != "" {
			t.Fatalf("of the password in %q the part %q is shown:\n%s", text, part, shorten(out))
		}
	}
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(folder, path); Leak(secret, name) != "" {
			return fmt.Errorf("of the password in %q a part is in the name of the file %q",
				text, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func shorten(s string) string {
	if utf8.RuneCountInString(s) > 3000 {
		return s[:3000] + "…"
	}
	return s
}
