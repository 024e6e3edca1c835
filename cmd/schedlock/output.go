package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/schedlock/ledger"
)

// timestamp is a time as all answers write it: RFC 3339, UTC, six fractional
// digits; the zero time is null.
type timestamp time.Time

// MarshalJSON implements json.Marshaler.
func (t timestamp) MarshalJSON() ([]byte, error) { //nolint:unparam // the interface
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

type errorJSON struct {
	Error string `json:"error"`
}

// A lostOutput is standard output, and keeps the first error of it.
type lostOutput struct {
	to  io.Writer
	err error
}

func (o *lostOutput) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// encode writes v to standard output. Of an error run tells at the end.
func (t *tool) encode(v any) { t.encodeWith("  ", v) }

func (t *tool) encodeWith(indent string, v any) {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	_ = e.Encode(v)
}

// say answers in JSON, or in one line.
func (t *tool) say(v any, format string, args ...any) {
	if t.json {
		t.encode(v)
	} else {
		fmt.Fprintln(t.out, plain(fmt.Sprintf(format, args...)))
	}
}

// logger logs to standard error what needs a look; verbose: also who leads.
func (t *tool) logger(verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(t.errOut, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "to_do" {
				a.Value = slog.StringValue(t.ownRemedies(a.Value.String()))
			}
			return a
		}}))
}

// ownRemedies puts what the command can do into what is said of a lock that another app
// has, in place of what a program in Go can.
func (t *tool) ownRemedies(text string) string {
	before, _, found := strings.Cut(text, "give each app a lock of its own: ")
	if !found || t.remedies == "" {
		return text
	}
	return before + "take a lock of its own: " + t.remedies
}

// The colours of a terminal.
type colour string

const (
	bold   colour = "1"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

func (t *tool) paint(c colour, s string) string {
	if !t.colour || c == "" {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

func (t *tool) wantsColour() bool {
	if noColor, _ := t.lookup("NO_COLOR"); noColor != "" || t.noColor || t.json {
		return false
	}
	if kind, _ := t.lookup("TERM"); kind == "dumb" {
		return false
	}
	return isTerminal(t.out)
}

func isTerminal(stream any) bool {
	if o, ok := stream.(*lostOutput); ok {
		stream = o.to
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// line writes one aligned line under a headline.
func (t *tool) line(name, format string, args ...any) {
	fmt.Fprintf(t.out, "  %-10s %s\n", name, plain(fmt.Sprintf(format, args...)))
}

// convert is a list of what do makes of the items of another, empty but not nil.
func convert[T, J any](list []T, do func(T) J) []J {
	made := make([]J, len(list))
	for i, item := range list {
		made[i] = do(item)
	}
	return made
}

// list looks for something, and shows it.
func list[T, J any](ctx context.Context, t *tool,
	find func(ctx context.Context, s store) ([]T, error),
	line func(T) J, none string, table func([]T)) (int, error) {
	var found []T
	err := t.look(ctx, func(ctx context.Context, s store) (err error) {
		found, err = find(ctx, s)
		return err
	})
	if err != nil {
		return 0, err
	}
	showList(t, found, line, none, table)
	return exitDone, nil
}

// showList writes what was found: as JSON, one line for each; as a table; or that
// there is nothing.
func showList[T, J any](t *tool, list []T, line func(T) J, none string, table func([]T)) {
	switch {
	case t.json:
		t.encode(convert(list, line))
	case len(list) == 0:
		fmt.Fprintln(t.out, none)
	default:
		table(list)
	}
}

// narrow is how wide a table is without -o wide.
const narrow = 60

// A column of a table.
type column struct {
	name string
	wide bool // is there with -o wide only
	cut  bool // is cut where the table would be wider than narrow
}

func fixed(name string) column    { return column{name: name} }
func cutting(name string) column  { return column{name: name, cut: true} }
func wideOnly(name string) column { return column{name: name, wide: true} }

// A table has columns as wide as their widest cell; the last is not padded.
type table struct {
	columns []column
	rows    [][]string // the first one has the names
	colour  []colour   // of the rows
}

func newTable(columns ...column) *table {
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.name
	}
	return &table{columns: columns, rows: [][]string{head}, colour: []colour{bold}}
}

func (b *table) add(c colour, cells ...any) {
	b.rows = append(b.rows, convert(cells, func(cell any) string {
		return cmp.Or(plain(fmt.Sprint(cell)), "-")
	}))
	b.colour = append(b.colour, c)
}

// widths are how wide each column is shown; 0: it is not.
func (b *table) widths(wide bool) []int {
	width := make([]int, len(b.columns))
	total := -2
	for i, c := range b.columns {
		if c.wide && !wide {
			continue
		}
		for _, row := range b.rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
		total += width[i] + 2
	}
	for ; !wide && total > narrow; total-- {
		widest := -1
		for i, c := range b.columns {
			if c.cut && width[i] > len(c.name) && (widest < 0 || width[i] > width[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // all that is left are names, times and numbers
		}
		width[widest]--
	}
	return width
}

func (t *tool) table(b *table) {
	width := b.widths(t.wide)
	for n, row := range b.rows {
		var cells []string
		for i, cell := range row {
			if width[i] == 0 {
				continue
			}
			text := []rune(cell)
			if len(text) > width[i] {
				text = append(text[:width[i]-1:width[i]-1], '…')
			}
			cells = append(cells, string(text)+strings.Repeat(" ", width[i]-len(text)))
		}
		line := strings.TrimRight(strings.Join(cells, "  "), " ")
		_, _ = io.WriteString(t.out, t.paint(b.colour[n], line)+"\n")
	}
}

// plain makes text from a database harmless to a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
}

// zone is that of the times in text.
func (t *tool) zone() *time.Location {
	if t.local {
		return time.Local
	}
	return time.UTC
}

// at shows a time to the second, with its zone.
func (t *tool) at(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return when.In(t.zone()).Format("2006-01-02 15:04:05Z07:00")
}

// nearNow is how far from now a time is shown without its year. It is below half a year,
// so that the day and the month are those of one year only.
const nearNow = 180 * 24 * time.Hour

// cell is at for a table. Without -o wide it leaves out the year of a time near now, and
// the time of the day of another. It goes by the distance and not by the year, so that at
// New Year the times of last night stay.
func (t *tool) cell(when time.Time) string {
	if t.wide || when.IsZero() {
		return t.at(when)
	}
	return short(when.In(t.zone()), time.Now())
}

func short(when, now time.Time) string {
	if when.Sub(now).Abs() > nearNow {
		return when.Format(time.DateOnly)
	}
	return when.Format("01-02 15:04:05Z0700")
}

// pauseWords is the sentence of a pause that is in force, in the zone of the answer.
func (t *tool) pauseWords(p ledger.Pause) string {
	return strings.Replace(p.String(), p.Since.UTC().Format(time.RFC3339), t.at(p.Since), 1)
}

func span(d time.Duration) string { return words.Span(d) }

// seconds is a duration in JSON, null if it is not known.
func seconds(d time.Duration, known bool) *float64 {
	if !known {
		return nil
	}
	return new(d.Seconds())
}
