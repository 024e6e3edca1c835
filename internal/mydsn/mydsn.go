// Package mydsn parses the address of a MariaDB database, and shows of it only what
// cannot be a password.
//
// The errors of the driver quote what they could not parse. Ours quote nothing.
package mydsn

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode"

	"github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/datasource"
)

// Form is what an address looks like.
const Form = "mysql://user:password@host:3306/database?parameters, or " +
	"user:password@tcp(host:3306)/database?parameters; " +
	"in a URL write special characters of the password as %XX"

var (
	errAt = errors.New("there is a / ? or # before the @ that ends user and password, " +
		"or an @ or # behind it: write / ? # and @ of the password as %2F %3F %23 %40")
	errParse = errors.New("it cannot be taken apart, or a parameter has a wrong value")
	errHost  = errors.New("the host has characters that no host has: " +
		"is a part of the password taken for it?")
	errName = errors.New("the name of the user or the database has a character that is no " +
		"letter, digit or one of _$.-: is it a part of the password?")
	errParameter = errors.New("a parameter is no name of a variable, or one for a user or a " +
		"password, which stand before the @")
)

// Parse reads an address.
func Parse(text string) (*mysql.Config, error) {
	var c *mysql.Config
	var err error
	switch {
	case strings.HasPrefix(text, "mysql://"):
		c, err = parseURL(text)
	case strings.Contains(text, "://"):
		err = errors.New("its scheme is another")
	default:
		c, err = parseDSN(text)
	}
	if err != nil {
		return nil, err
	}
	return c, check(c)
}

func parseURL(text string) (*mysql.Config, error) {
	before, after, found := strings.Cut(strings.TrimPrefix(text, "mysql://"), "@")
	if found && strings.ContainsAny(before, "/?#") || strings.ContainsAny(after, "@#") {
		return nil, errAt
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("it cannot be taken apart")
	}
	if u.Hostname() == "" {
		return nil, errors.New("it names no host")
	}
	c := mysql.NewConfig()
	c.Net = "tcp"
	c.Addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
	c.DBName = strings.TrimPrefix(u.Path, "/")
	dsn, _, _ := strings.Cut(c.FormatDSN(), "?")
	// The driver takes the last slash for the one before the database.
	if c, err = parseDSN(dsn + "?" + strings.ReplaceAll(u.RawQuery, "/", "%2F")); err != nil {
		return nil, err
	}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	return c, nil
}

func parseDSN(text string) (*mysql.Config, error) {
	c, err := mysql.ParseDSN(text)
	if err != nil {
		return nil, errParse
	}
	return c, nil
}

var (
	variable = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	login    = regexp.MustCompile(`pass|pwd|user|token|secret`)
)

// check refuses what the driver takes apart otherwise than it is meant, and parameters
// that a server would quote, or obey: it takes each that it doesn't know for a variable.
func check(c *mysql.Config) error {
	if c.DBName == "" {
		return errors.New("it names no database")
	}
	if strings.ContainsFunc(c.DBName, notInName) || strings.ContainsFunc(c.User, notInUser) {
		return errName
	}
	switch {
	case c.Net != "tcp" && c.Net != "unix":
		return errors.New("between the @ and the bracket stands neither tcp nor unix")
	case c.Net == "tcp" && !isAddress(c.Addr):
		return errHost
	}
	for name, value := range c.Params {
		lower := strings.ToLower(name)
		if !variable.MatchString(lower) || login.MatchString(lower) {
			return errParameter
		}
		delete(c.Params, name)
		c.Params[lower] = value // so that it cannot stand beside one of the store's own
	}
	return nil
}

func notInName(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_$.- ", r)
}

func notInUser(r rune) bool { return r != '@' && notInName(r) }

// isAddress reports whether text is a host and a port.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.Trim(port, "0123456789") != "" {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_", r)
	})
}

// Shown is the database of a parsed address: user, host, port and name.
func Shown(c *mysql.Config) string {
	u := url.URL{Scheme: "mysql", Host: c.Addr, Path: "/" + c.DBName}
	if c.User != "" {
		u.User = url.User(c.User)
	}
	if c.Net == "unix" {
		u.Host, u.RawQuery = "localhost", "socket="+c.Addr
	}
	return u.String()
}

// Safe is the error of an attempt to connect as it may be shown: a server that does not
// take a parameter of the address quotes it, which may be a part of the password.
// It wraps err.
func Safe(c *mysql.Config, err error) error {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || len(c.Params) == 0 {
		return err
	}
	switch e.Number {
	case 1064, 1193, 1227, 1229, 1231, 1232, 1238:
		// They mean an undefined, invalid or forbidden variable.
		return datasource.Refused(err, fmt.Sprint("error ", e.Number))
	}
	return err
}
