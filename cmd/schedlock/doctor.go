package main

import (
	"context"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/doctor"
	"example.com/schedlock/internal/message"
)

const doctorHelp = `Looks at the database, its files and settings, and at what the rows say, and
tells what to do. It repairs nothing. All of it takes six times --timeout at
most.

Examples:
  schedlock doctor
  schedlock doctor --quiet
`

func examine(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	quiet := flags.Bool("quiet", false, "warnings and errors only; nothing if there are none")
	return func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 6*min(t.timeout, math.MaxInt64/6))
		defer cancel()
		report := doctor.Examine(ctx, t.dsn, t.inside)
		if *quiet {
			report = report.ToDo()
		}
		if t.json {
			t.encode(report)
		} else {
			t.showReport(report)
		}
		switch report.Worst() {
		case doctor.Warning:
			return exitNothing, nil
		case doctor.Error:
			return exitStale, nil
		}
		return exitDone, nil
	}
}

func (t *tool) showReport(r doctor.Report) {
	const width = 9 // of "[warning]"
	paint := map[doctor.Level]colour{doctor.OK: green, doctor.Warning: yellow, doctor.Error: red}
	for _, f := range r.Findings {
		level := fmt.Sprintf("%-*s", width, "["+string(f.Level)+"]")
		fmt.Fprintf(t.out, "%s %s: %s\n", t.paint(paint[f.Level], level), plain(f.Check),
			plain(message.OneLine(f.Found)))
		if f.Do != "" {
			fmt.Fprintf(t.out, "%*s %s\n", width, "", plain("→ "+message.OneLine(f.Do)))
		}
	}
}
