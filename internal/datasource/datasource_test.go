package datasource

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhatNamesAFileAndWhatAServer(t *testing.T) {
	for text, want := range map[string]Kind{
		"app.db": File, "a:b.db": File, "ann@home.db": File, "./host=a b": File,
		"/a=b/password=x.db": File, "../x:y@z/app.db": File,
		`C:\data\a@b.db`: File, "": File, ":memory:": File, "file::memory:?cache=shared": File,
		"100% of #1? it's a=b&c.db":              File,
		"file:app.db?_pragma=busy_timeout(5000)": File, "file:///data/app.db": File,
		"file://localhost/app.db": File, "file:/a:b@c/app.db": File,

		"postgres://h/d": PostgreSQL, "postgresql://u:p@h": PostgreSQL,
		"host=h dbname=d": PostgreSQL, " user = x": PostgreSQL,
		"password = 'a b' host=h": PostgreSQL, "application_name=x\thost=h": PostgreSQL,

		"mysql://u:p@h/d": MySQL, "mysql://h": MySQL, "u:p@tcp(h:1)/d": MySQL,
		"u:p/?#:@tcp(h:1)/d?timeout=1s": MySQL, "u@unix(/run/mysqld.sock)/d": MySQL,
		"tcp(h)/d": MySQL,

		"MySQL://u:p@h/d": Unknown, "mariadb://u:p@h/d": Unknown, "u:p@tcp(h:1)": Unknown,
		"u:p@tcp(h/d": Unknown, "file:u:p@tcp(h:1)/d": Unknown, "Postgres://h/d": Unknown,
		" postgres://h/d":  Unknown,
		"'postgres://h/d'": Unknown, "redis://h": Unknown,
		"file:postgres://u:p@h/d": Unknown, "file://u:p@h/d": Unknown, "file://u:p?q@h/d": Unknown,
		"file://u:p": Unknown, "file:u:p#q@h/d": Unknown,
		"file:host=h password=p": Unknown, "u:p@h/d": Unknown,
		"p@h/d": Unknown, "postgres:/u:p@h": Unknown,
		"postgres//u:p": Unknown, "Host=h;Pwd=p": Unknown, "Server=h": Unknown,
		"HOST=h PASSWORD=p": Unknown, "app.db?password=p": Unknown,
		"hst=h pasword=p": Unknown, "/postgres://u:p@h/d": Unknown, "//u:p@h/d": Unknown,
	} {
		kind, err := Of(text)
		assert.Equal(t, want, kind, text)
		assert.Equal(t, want == Unknown, err != nil, text)
	}
}

func TestNothingIsShownThatWasNotUnderstood(t *testing.T) {
	for text, want := range map[string]string{
		"app.db": "app.db", "file:app.db?mode=ro&key=geheim": "file:app.db?…",
		"file:app.db": "file:app.db", "./a:geheim@b": "./a:geheim@b",
		"postgres://u:geheim@h/d": "postgres://…", "mysql://u:geheim@h/d": "mysql://…",
		"geheim://h":             "…://…",
		"host=h password=geheim": "a PostgreSQL database", "u:geheim@h/d": "…",
		"u:geheim@tcp(h:1)/d": "a MariaDB database",
		"file://u:geheim@h":   "file://…", "file:mysql://u:geheim@h": "file:…",
	} {
		assert.Equal(t, want, Shown(text), text)
	}
}
