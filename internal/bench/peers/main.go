//go:build linux

// Command peers measures what else a web app may use today so that one replica
// leads, beside this module, in one run on one machine. It is a module of its
// own, so that no user downloads a peer. In this folder:
//
//	go run . -page ../../../docs/benchmarks.md
//
// puts the figures into the section "Beside the peers" of that page. `go run .`
// alone prints them. -quick tries the program out: its figures say nothing.
//
// It starts PostgreSQL, Redis, etcd and a stub of the Kubernetes API, on free
// ports of 127.0.0.1. Each replica is a process. All that it starts ends with it.
//
// # Add a peer
//
// Write a contestant and its replica (contestant.go) in a file of its own, and add
// it to contestants. A peer in another language speaks the protocol of child.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"example.com/schedlock/internal/bench/page"
)

func main() {
	if len(os.Args) > 1 && serve(os.Args[1], os.Args[2:]) {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// serve is the program as a server or a replica that run has started.
func serve(what string, args []string) bool {
	switch what {
	case "etcd":
		serveEtcd(args)
	case "kubernetes":
		serveKubernetes(args)
	case "guard":
		guard(args)
	case "replica":
		serveReplica(args)
	default:
		return false
	}
	return true
}

func run(ctx context.Context, args []string, progress io.Writer) (err error) {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(progress)
	file := flags.String("page", "", "the page whose section is written; empty: standard output")
	only := flags.String("only", "", "measure those whose name matches this regular expression")
	quick := flags.Bool("quick", false, "a few rounds of each: the figures say nothing")
	b := &bench{progress: progress, calls: 300, handovers: 20, crashes: 5,
		idle: 20 * time.Second, patience: 90 * time.Second}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		b.calls, b.handovers, b.crashes, b.idle = 20, 2, 1, 2*time.Second
	}
	names, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	for _, c := range contestants {
		if names.MatchString(c.name) {
			b.contestants = append(b.contestants, c)
		}
	}
	begin := time.Now()
	servers, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.stop()) }()
	b.env = servers.env
	if err := b.measure(ctx); err != nil {
		return err
	}
	text := b.section(begin, versions(ctx, b.env))
	if *file == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	old, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	others, _ := page.Split(string(old))
	return os.WriteFile(*file, []byte(page.Join(others, text)), 0o644)
}
