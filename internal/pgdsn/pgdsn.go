// Package pgdsn parses the address of a PostgreSQL database, and shows of it only
// what cannot be a password.
//
// The errors of pgx quote what they could not parse, with the passwords removed
// that they recognise. Ours quote nothing.
package pgdsn

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/schedlock/internal/datasource"
)

// Form is what an address looks like.
const Form = "postgres://user:password@host:port/database?parameters, or host=… dbname=… pairs; " +
	"in a URL write special characters of the password as %XX, in a pair quote it"

// Parse is pgxpool.ParseConfig with errors that show nothing of the address. It
// also refuses what pgx takes apart otherwise than it is meant: the rest of a
// password after an unescaped @ would be the host, which is looked up and shown.
func Parse(text string) (*pgxpool.Config, error) {
	if err := checkURL(text); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errors.New(reason(err)) // and not wrapped, as it has the whole text
	}
	isURL := strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
	if isURL && strings.Contains(config.ConnConfig.User, ":") {
		return nil, errors.New("the name of the user contains a colon: " +
			"write it as it is where the password follows")
	}
	if isURL && strings.Contains(config.ConnConfig.Database, "@") {
		return nil, errAt
	}
	if strings.Contains(config.ConnConfig.Database+config.ConnConfig.User, "=") {
		return nil, errors.New("the name of the database, or of the user, contains an =: " +
			"is a parameter taken for it?")
	}
	if err := Check(config.ConnConfig); err != nil {
		return nil, err
	}
	return config, nil
}

var errAt = errors.New("there is an @ after the one that ends user and password, " +
	"or behind a / or ?: write / ? and @ of the password as %2F %3F %40")

var parameter = regexp.MustCompile(`\?\w*=`)

// checkURL refuses a URL whose password may end elsewhere than where pgx ends it.
func checkURL(text string) error {
	rest, found := strings.CutPrefix(text, "postgresql://")
	if !found {
		if rest, found = strings.CutPrefix(text, "postgres://"); !found {
			return nil
		}
	}
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' { // so does pgx
		if parameter.MatchString(rest[:i]) {
			return errAt
		}
		rest = rest[i+1:]
	}
	address, _, _ := strings.Cut(rest, "?")
	if strings.Contains(address, "@") {
		return errAt
	}
	return nil
}

// Check refuses hosts that can be none, and may be a part of a password.
func Check(config *pgx.ConnConfig) error {
	hosts := []string{config.Host}
	for _, f := range config.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range hosts {
		if network, _ := pgconn.NetworkAddress(host, 0); network != "unix" &&
			strings.ContainsFunc(host, notInHost) {
			return errors.New("the host has characters that no host has: " +
				"is a part of the password taken for it?")
		}
	}
	if strings.Contains(config.Database, "://") || strings.Contains(config.User, "://") {
		return errors.New("the name of the database, or of the user, is a URL itself")
	}
	return nil
}

func notInHost(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_:%", r)
}

// reasons are the constant parts of pgx's messages, so that one can be given
// without the rest.
var reasons = []string{
	"failed to parse as URL", "failed to parse as keyword/value", "invalid port",
	"invalid connect_timeout",
	"invalid sslcertmode", "failed to configure TLS", "unknown target_session_attrs",
	"could not match", "failed to read service",
	"invalid min_protocol_version", "invalid max_protocol_version",
	"min_protocol_version cannot be greater",
	"unknown channel_binding", "invalid require_auth", "cannot parse statement_cache_capacity",
	"cannot parse description_cache_capacity", "invalid default_query_exec_mode",
	"pool_max_conns too small",
	"cannot parse pool_max_conns", "cannot parse pool_min_conns",
	"cannot parse pool_min_idle_conns",
	"cannot parse pool_max_conn_lifetime_jitter", "cannot parse pool_max_conn_lifetime",
	"cannot parse pool_max_conn_idle_time",
	"cannot parse pool_health_check_period", "cannot parse pool_ping_timeout",
}

// explained says more than pgx does, of what pgx says in a part that is not shown.
var explained = map[string]string{
	"failed to parse as URL":           "it cannot be parsed as a URL",
	"failed to parse as keyword/value": "it cannot be parsed as keyword=value pairs",
	"could not match":                  "there are as many ports as hosts, or one",
	"failed to configure TLS": "sslmode, or a file that one of the ssl parameters names, " +
		"cannot be used",
	"failed to read service": "its service is not in the service file",
}

// reason is the cause of an error of pgx, in words that are constants of ours.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	for _, r := range reasons {
		if strings.HasPrefix(text, r) {
			if more, found := explained[r]; found {
				return more
			}
			return r
		}
	}
	return "it cannot be parsed"
}

// Shown is the database of a parsed config: user, host, port and name.
func Shown(config *pgx.ConnConfig) string {
	u := url.URL{Scheme: "postgres", User: url.User(config.User), Path: "/" + config.Database}
	if network, _ := pgconn.NetworkAddress(config.Host, config.Port); network == "unix" {
		u.RawQuery = "host=" + config.Host + "&port=" + strconv.Itoa(int(config.Port))
	} else {
		u.Host = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	}
	return u.String()
}

// Safe is the error of an attempt to connect as it may be shown: a server that
// does not know a parameter names it, and quotes its value; behind a password
// that ends too early that is a part of the password. It wraps err.
func Safe(err error) error {
	var refused *pgconn.ConnectError
	var answer *pgconn.PgError
	if !errors.As(err, &refused) || !errors.As(err, &answer) {
		return err
	}
	switch answer.Code {
	case "42704", "42602", "22023", "42501", "55P02", "42601":
		// They mean an undefined, invalid or forbidden parameter.
		return datasource.Refused(err, "SQLSTATE "+answer.Code)
	}
	return err
}
