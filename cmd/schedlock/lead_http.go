package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/internal/forms"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

const (
	readLimit  = 3 * time.Second // of one look at the database for one request
	readyLimit = 2 * time.Second // of what /readyz asks
	maxForm    = 64 << 10
)

// listen listens on a port, or on a Unix socket that only this user may use. What a
// process that has died left behind is replaced.
func listen(addr string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(addr, "unix:")
	if !isSocket {
		return net.Listen("tcp", addr)
	}
	defer lockFolder(filepath.Dir(path)).Close() // of several at once, one replaces the socket
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another process answers there", addr)
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // nobody listens there any more, or it is no socket
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			_ = os.Remove(path)
		}
	}
	listener, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func (s *sidecar) server() *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

func (s *sidecar) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.metrics, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusForbidden, errorJSON{"orders of other sites are not taken"})
	}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", s.serveLeader)
	mux.HandleFunc("GET /lock", s.serveLock)
	mux.HandleFunc("GET /livez", s.serveLive)
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("POST /release", origins.Handler(http.HandlerFunc(s.serveRelease)))
	checked := s.hosts.Handler(mux, "give --host if this sidecar has that name", "/livez",
		"/readyz")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		checked.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

type leaderJSON struct {
	Leader     bool  `json:"leader"`
	Term       int64 `json:"term"` // 0: it does not lead
	ValidForMS int64 `json:"valid_for_ms"`
}

func (s *sidecar) serveLeader(w http.ResponseWriter, _ *http.Request) {
	term, valid := s.promise()
	status := http.StatusOK
	if valid == 0 {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, leaderJSON{valid > 0, term, valid.Milliseconds()})
}

type selfJSON struct {
	Leader bool                `json:"leader"`
	State  schedlock.SelfState `json:"state"`
	Term   int64               `json:"term"`
	Reason string              `json:"reason"`
}

func (s *sidecar) self() selfJSON {
	status := s.lock.Status()
	return selfJSON{status.Leader, status.State, status.Term, status.PublicReason(unreadable)}
}

// unreadable is what a client is told of an error. The log has the rest.
func unreadable(error) string { return "the database cannot be read" }

func (s *sidecar) serveLock(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	info, err := schedlock.GetLockInfo(ctx, s.store)
	if err != nil {
		s.log.Warn("lock cannot be read", "err", err)
		answer(w, http.StatusServiceUnavailable, struct {
			Error string   `json:"error"`
			Self  selfJSON `json:"self"`
		}{unreadable(err), s.self()})
		return
	}
	answer(w, http.StatusOK, struct {
		Held    bool      `json:"held"`
		Lock    *lockJSON `json:"lock"`
		Self    selfJSON  `json:"self"`
		App     string    `json:"app"`
		Version string    `json:"version"`
	}{info != nil, newLockJSON(info), s.self(), s.lock.App().Name, build.Version()})
}

func (s *sidecar) serveLive(w http.ResponseWriter, _ *http.Request) {
	if err := s.lock.Healthy(0); err != nil {
		s.log.Warn("not alive", "err", err)
		http.Error(w, "not alive: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *sidecar) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyLimit)
	defer cancel()
	if _, err := schedlock.GetLockInfo(ctx, s.store); err != nil {
		s.log.Warn("not ready", "err", err)
		http.Error(w, "not ready: "+unreadable(err), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// serveRelease revokes the lease, as an operator does, so that the history says who
// and why.
func (s *sidecar) serveRelease(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := forms.Parse(r, maxForm); err != nil {
		answer(w, http.StatusBadRequest, errorJSON{err.Error()})
		return
	}
	owner := s.lock.Owner()
	by := cmp.Or(strings.TrimSpace(r.FormValue("by")),
		fmt.Sprintf("sidecar of %s pid %d", owner.Hostname, owner.PID))
	reason := cmp.Or(strings.TrimSpace(r.FormValue("reason")), "POST /release")
	if err := cmp.Or(names.Check("by", by), names.CheckReason(reason)); err != nil {
		answer(w, http.StatusBadRequest, errorJSON{err.Error()})
		return
	}
	s.mu.Lock()
	lease := s.lease
	s.mu.Unlock()
	if lease == nil || lease.Err() != nil {
		answer(w, http.StatusConflict, errorJSON{"this replica does not lead"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	order, err := schedlock.Revoke(ctx, s.store, lease.Term(), by, reason)
	switch {
	case errors.Is(err, driver.ErrConflict):
		answer(w, http.StatusConflict, errorJSON{"this replica does not lead any more"})
	case err != nil:
		s.log.Warn("hand-over failed", "err", err)
		answer(w, http.StatusServiceUnavailable, errorJSON{"it cannot be written: " + unreadable(err)})
	default:
		_ = lease.Heartbeat(ctx) // which sees it at once; else the next one does
		answer(w, http.StatusAccepted, struct {
			Term   int64  `json:"term"`
			By     string `json:"by"`
			Reason string `json:"reason"`
		}{lease.Term(), order.By, order.Reason})
	}
}
