// Package app is the demo app: its configuration, its jobs, its pages, and what
// package startup puts around them. A reader begins with app.go.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/build"
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

// Main is the program. It returns the exit code.
func Main(args []string, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "healthcheck" {
		return healthcheck(args[1:], stderr)
	}
	cfg, err := LoadConfig(args, os.LookupEnv, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case errors.Is(err, errVersion):
		fmt.Println("demoapp", build.Version())
		return 0
	case err != nil:
		say(stderr, "demoapp: bad configuration:", err)
		return exitBadConfig
	}
	log := newLogger(cfg.logFormat, stderr)
	app, err := New(cfg, log)
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
	bounded.FlushLog(log, lastWords) // the line below is the last
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

// LogLevel is INFO; tests that need to see every start of a run lower it.
var LogLevel slog.LevelVar

func newLogger(format string, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: &LogLevel}
	if format == "json" {
		return bounded.Log(slog.New(slog.NewJSONHandler(w, opts)))
	}
	return bounded.Log(slog.New(slog.NewTextHandler(w, opts)))
}
