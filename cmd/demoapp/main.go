// Command demoapp is a small ban-list web app that shows schedlock at work:
// start it several times on one database, and exactly one replica imports the
// block lists and expires old bans, while all of them serve.
//
// It is configured by environment variables (DEMOAPP_…) and flags; see
// demoapp -h and the README. Exit codes: 0 clean, 1 failed, 2 bad
// configuration, 3 another replica holds the lock (strict mode).
//
// demoapp healthcheck asks the app that serves on the same address whether it
// is up, and exits with 0 or 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock"
)

const (
	exitFailed    = 1
	exitBadConfig = 2
	exitHeld      = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run is main, returning the exit code.
func run(args []string, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "healthcheck" {
		return healthcheck(args[1:], stderr)
	}
	cfg, err := loadConfig(args, os.LookupEnv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "demoapp: bad configuration:", err)
		return exitBadConfig
	}
	log := newLogger(cfg.logFormat, stderr)
	app, err := newApp(cfg, log)
	if err != nil {
		fmt.Fprintln(stderr, "demoapp: bad configuration:", err)
		return exitBadConfig
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		log.Info("shutting down", "signal", (<-signals).String())
		stop()
		log.Warn("second signal: exiting at once", "signal", (<-signals).String())
		os.Exit(exitFailed)
	}()

	err = app.Run(ctx)
	switch {
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Canceled):
		log.Info("stopped")
		return 0
	case errors.Is(err, schedlock.ErrHeld):
		fmt.Fprintln(stderr, "demoapp:", err)
		return exitHeld
	}
	fmt.Fprintln(stderr, "demoapp:", message.OneLine(err.Error()))
	return exitFailed
}

// logLevel is INFO; tests that need to see every start of a run lower it.
var logLevel slog.LevelVar

func newLogger(format string, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: &logLevel}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
