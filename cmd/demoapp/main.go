// Command demoapp is a small ban-list web app that shows schedlock at work:
// start it several times on one database, and exactly one replica imports the
// block lists and expires old bans, while all of them serve.
//
// It is configured by environment variables (DEMOAPP_…) and flags; see
// demoapp -h and docs/configuration.md. Exit codes: 0 clean, 1 failed, 2 bad
// configuration, 3 another replica holds the lock (strict mode).
//
// demoapp --version says the version of the module.
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
	"time"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/internal/logqueue"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock"
)

const (
	exitFailed    = 1
	exitBadConfig = 2
	exitHeld      = 3
)

// together is how long signals count as the first one: a supervisor may send
// two, and a terminal and a parent process both pass on a Ctrl-C.
const together = 500 * time.Millisecond

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
	case errors.Is(err, errVersion):
		fmt.Println("demoapp", build.Version())
		return 0
	case err != nil:
		say(stderr, "demoapp: bad configuration:", err)
		return exitBadConfig
	}
	log := newLogger(cfg.logFormat, stderr)
	app, err := newApp(cfg, log)
	if err != nil {
		say(stderr, "demoapp: bad configuration:", err)
		return exitBadConfig
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		first := <-signals
		stop() // before the log, which may block
		log.Info("shutting down", "signal", first.String())
		time.Sleep(together)
		for len(signals) > 0 {
			<-signals
		}
		log.Warn("second signal: exiting at once", "signal", (<-signals).String())
		os.Exit(exitFailed)
	}()

	err = app.Run(ctx)
	clean := err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled)
	if clean {
		log.Info("stopped")
	}
	logqueue.Flush(log, lastWords) // the line below is the last
	switch {
	case clean:
		return 0
	case errors.Is(err, schedlock.ErrHeld):
		say(stderr, "demoapp:", err)
		return exitHeld
	}
	say(stderr, "demoapp:", message.OneLine(err.Error()))
	return exitFailed
}

// lastWords is how long the end of the process waits for who reads stderr.
const lastWords = 2 * time.Second

// say writes the line with which the process ends. A pipe that nobody reads does
// not keep it from ending.
func say(stderr io.Writer, line ...any) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintln(stderr, line...)
	}()
	select {
	case <-said:
	case <-time.After(lastWords):
	}
}

// logLevel is INFO; tests that need to see every start of a run lower it.
var logLevel slog.LevelVar

func newLogger(format string, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: &logLevel}
	if format == "json" {
		return logqueue.Wrap(slog.New(slog.NewJSONHandler(w, opts)))
	}
	return logqueue.Wrap(slog.New(slog.NewTextHandler(w, opts)))
}
