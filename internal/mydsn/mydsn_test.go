package mydsn

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
	"example.com/schedlock/internal/missing"
)

func TestParseTakesAURLAndADSN(t *testing.T) {
	for text, want := range map[string]string{
		"mysql://ann:a%2Fb%3Fc%23d%40e@db/app":      "mysql://ann@db:3306/app",
		"mysql://ann:a%2Fb%3Fc%23d%40e@db:3307/app": "mysql://ann@db:3307/app",
		"mysql://ann:a%2Fb%3Fc%23d%40e@[::1]:1/app": "mysql://ann@[::1]:1/app",
		"ann:a/b?c#d@e@tcp(db:3307)/app?timeout=1s": "mysql://ann@db:3307/app",
		"ann:a/b?c#d@e@tcp(db)/app":                 "mysql://ann@db:3306/app",
		"ann:a/b?c#d@e@unix(/run/mysqld/mysqld.sock)/app": "mysql://ann@localhost/app" +
			"?socket=/run/mysqld/mysqld.sock",
		"mysql://ann:a%2Fb%3Fc%23d%40e@db/app?tls=true&time_zone='Europe/Berlin'": "" +
			"mysql://ann@db:3306/app",
	} {
		c, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, Shown(c))
		assert.Equal(t, "a/b?c#d@e", c.Passwd, text)
		assert.Equal(t, "app", c.DBName)
	}
	c, err := Parse("mysql://db/app")
	require.NoError(t, err)
	assert.Equal(t, "mysql://db:3306/app", Shown(c))
}

// The driver sends each parameter that it doesn't know as SET name = value.
func TestParametersThatAServerWouldObeyOrQuote(t *testing.T) {
	for _, parameter := range []string{"password=hush", "PASSWORD=hush", "user=hush", "pwd=hush",
		"@@sql_mode=hush", "session%20sql_mode=hush", "a,b=hush", "=hush"} {
		for _, address := range []string{"mysql://ann@db/app?", "ann@tcp(db)/app?"} {
			_, err := Parse(address + parameter)
			require.Error(t, err, address+parameter)
			assert.NotContains(t, err.Error(), "hush")
		}
	}
	c, err := Parse("mysql://ann@db/app?TIME_ZONE=SYSTEM")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"time_zone": "SYSTEM"}, c.Params)
}

func TestSafeHidesAParameterThatTheServerRefuses(t *testing.T) {
	err := &mysql.MySQLError{Number: 1193, Message: "Unknown system variable 'hush'"}
	c, parsed := Parse("mysql://ann@db/app?hush=1")
	require.NoError(t, parsed)
	assert.NotContains(t, Safe(c, err).Error(), "hush")
	require.ErrorIs(t, Safe(c, err), err)
	c, parsed = Parse("mysql://ann@db/app")
	require.NoError(t, parsed)
	assert.Equal(t, error(err), Safe(c, err), "it is not of the address")
}

// FuzzNothingShownHasAPartOfAPassword: a minute of it is
//
//	go test ./internal/mydsn -run '^$' -fuzz FuzzNothing -fuzztime 1m
func FuzzNothingShownHasAPartOfAPassword(f *testing.F) {
	every := 7
	if missing.Full() {
		every = 1
	}
	dsntest.Fuzz(f, every, func(_ *testing.T, text string) []string {
		c, err := Parse(text)
		if err != nil {
			return []string{err.Error()}
		}
		return []string{Shown(c)}
	})
}
