// Package hosts answers requests by the name of the host that they ask for.
//
// A site that points its own name at this machine (DNS rebinding) has the
// browser of its visitor send requests here that are of the same origin as the
// site: it reads what they are answered, and no check of the origin refuses its
// orders. It cannot choose the header Host, which says that name. So only hosts
// on a list are answered.
package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A List is what is answered: the loopback names and addresses, the address that
// the connection has come to, and the names that were added. Ports do not count,
// as a port may be published as another one. The zero value adds no names.
type List struct {
	names []string
	any   bool
}

// New makes a list. A name is a host name or an IP address, with or without a
// port; "*" is any.
func New(names ...string) (List, error) {
	var l List
	var errs []error
	for _, name := range names {
		host, ok := normal(name)
		switch {
		case strings.TrimSpace(name) == "*":
			l.any = true
		case !ok:
			errs = append(errs, fmt.Errorf("host %.60q is not a host name or an IP address", name))
		default:
			l.names = append(l.names, host)
		}
	}
	return l, errors.Join(errs...)
}

// Handler answers what the list allows by next, and everything else with 421.
// hint says how to add a host.
//
// The paths of probes are answered under any name: an orchestrator or a load balancer may
// send one. They say hardly more than "ok" and change nothing, and one that fails for its
// name would restart an app that is well.
func (l List) Handler(next http.Handler, hint string, probes ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(probes, r.URL.Path) && !l.Allows(r) {
			Refuse(w, r, hint)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refuse answers in one line.
func Refuse(w http.ResponseWriter, r *http.Request, hint string) {
	host, cut := r.Host, ""
	if len(host) > 100 {
		host, cut = host[:100], "…"
	}
	text := fmt.Sprintf("host %s%s is not answered here: %s", strconv.QuoteToASCII(host), cut, hint)
	http.Error(w, text, http.StatusMisdirectedRequest)
}

// Allows reports whether the request asks for a host on the list.
//
// The address that the connection has come to is one, because what a browser asks
// for by its address it connects to by that address: there is no name that could
// be pointed elsewhere. So probes and scrapers that know only the address of a
// container are answered.
func (l List) Allows(r *http.Request) bool {
	if l.any {
		return true
	}
	host, ok := normal(r.Host)
	if !ok {
		return false
	}
	if host == "localhost" || slices.Contains(l.names, host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	// To dial 0.0.0.0 or :: means this machine.
	return addr.IsLoopback() || addr.IsUnspecified() || addr == local(r)
}

// local is the address that the connection has come to.
func local(r *http.Request) netip.Addr {
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if to == nil {
		return netip.Addr{}
	}
	port, err := netip.ParseAddrPort(to.String())
	if err != nil {
		return netip.Addr{}
	}
	return port.Addr().Unmap().WithZone("")
}

// normal is a host in its one spelling, without its port: small letters, no dot
// at the end, an address as net/netip writes it. ok is false for what is neither
// a name nor an address.
func normal(host string) (_ string, ok bool) {
	host = strings.TrimSpace(host)
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return "", false
		}
		if strings.Contains(name, ":") && host[0] != '[' {
			return "", false
		}
		host = name
	} else if inner, found := strings.CutPrefix(host, "["); found {
		if host, found = strings.CutSuffix(inner, "]"); !found {
			return "", false
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().WithZone("").String(), true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || len(host) > 253 {
		return "", false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", false
		}
	}
	return host, true
}
