package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"example.com/schedlock/internal/message"
)

const sinceHelp = `  --since WHEN    not before that: 90m, 7d, 2026-03-01, or 2026-03-01T02:00:00Z
`

var days = regexp.MustCompile(`^([0-9]{1,5})d$`)

// since reads the flag --since: a span up to now, or a time, of UTC unless it says
// otherwise. What it returns asks the database's clock, as what is compared with the
// time was written by that; the zero time is "always".
func (t *tool) since(command,
	text string) (func(context.Context, store) (time.Time, error), error) {
	fixed := func(at time.Time) func(context.Context, store) (time.Time, error) {
		return func(context.Context, store) (time.Time, error) { return at, nil }
	}
	if text == "" {
		return fixed(time.Time{}), nil
	}
	span, err := time.ParseDuration(text)
	if m := days.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // it has five digits at most
		span, err = time.Duration(n)*24*time.Hour, nil
	}
	if err == nil && span >= 0 {
		return func(ctx context.Context, s store) (time.Time, error) {
			view, err := s.Look(ctx)
			return view.Now.Add(-span), err
		}, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.ParseInLocation(form, text, t.zone()); err == nil {
			return fixed(at), nil
		}
	}
	return nil, &usageError{command, fmt.Sprintf("--since %s is neither a span such as 90m or "+
		"7d, nor a time such as 2026-03-01 or 2026-03-01T02:00:00Z", message.Shown(text))}
}
