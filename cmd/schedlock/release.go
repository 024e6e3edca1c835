package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const releaseHelp = `Tells the leader to leave. At its next heartbeat it starts nothing new, waits
for what runs up to its drain limit, and releases the lock; another replica
leads then, or the same one again if there is no other. The history keeps who
and why. It deletes no row: that of a dead or hung holder goes by the rules of
every other one, never earlier.

Examples:
  schedlock release --force --reason "host is going down"
  schedlock release --force --yes --by deploy --reason "release 42" --wait 2m
`

const whyForce = "a lock is normally released by stopping the replica that leads: " +
	"its clean shutdown drains and releases it. " +
	"release tells the leader to leave although its process goes on; if you mean that, add --force"

// The looks of a wait for the end of a term.
const releasePoll = 250 * time.Millisecond

type releaseOrder struct {
	insistence
	yes, noWait bool
	wait        time.Duration
}

// An insistence is what it takes to tell somebody to leave.
type insistence struct {
	force      bool
	by, reason string
}

func (i *insistence) declare(flags *pflag.FlagSet) {
	flags.BoolVar(&i.force, "force", false, "required")
	flags.StringVar(&i.reason, "reason", "", "why (required)")
	byFlag(flags, &i.by)
}

// check returns what is missing; why is why it has to be forced.
func (i *insistence) check(why, keeper string) error {
	switch {
	case !i.force:
		return wrong("%s", why)
	case strings.TrimSpace(i.reason) == "":
		return wrong("--reason is required: the %s keeps why", keeper)
	}
	return checkWhoAndWhy(i.by, i.reason)
}

// A releaseJSON says what a release did.
type releaseJSON struct {
	Term     int64        `json:"term"` // 0: nobody led
	PID      int          `json:"pid"`
	Hostname string       `json:"hostname"`
	Revoked  *revokedJSON `json:"revoked"`
	Running  []runJSON    `json:"running"` // that it drains
	Ended    bool         `json:"ended"`
	EndedAt  timestamp    `json:"ended_at"`
	Reason   string       `json:"end_reason"`
	Next     *termJSON    `json:"next"` // who leads since; null: nobody yet
	Message  string       `json:"message"`
}

func release(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	var o releaseOrder
	o.declare(flags)
	flags.BoolVar(&o.yes, "yes", false, "do not ask; without a terminal it is required")
	flags.BoolVar(&o.noWait, "no-wait", false, "do not wait until the term has ended")
	flags.DurationVar(&o.wait, "wait", time.Minute,
		"how long to wait until the term has ended")
	return func(ctx context.Context) (int, error) {
		if err := o.check(whyForce, "history"); err != nil {
			return 0, err
		}
		if o.wait <= 0 {
			return 0, wrong("--wait %v is not above 0: use --no-wait", o.wait)
		}
		if !o.yes && !isTerminal(t.in) {
			return 0, wrong("standard input is no terminal, so nobody can be asked; add --yes")
		}
		return t.release(ctx, o)
	}
}

func (t *tool) release(ctx context.Context, o releaseOrder) (int, error) {
	shown, err := t.toRelease(ctx)
	if err != nil {
		return 0, err
	}
	row, judged := shown.view.Row, judge(shown.view)
	switch {
	case row == nil && judged.verdict == free:
		message := "nothing to release: " + judged.summary
		t.say(releaseJSON{Running: []runJSON{}, Message: message}, "%s", message)
		return exitNothing, nil
	case row == nil:
		return 0, fmt.Errorf("there is no row that could be revoked; %s: %s", judged.summary,
			judged.advice)
	}
	t.showRelease(shown, judged)
	if err := t.confirm(ctx, o, row); err != nil {
		return 0, err
	}
	s, err := t.open(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return t.revoke(ctx, s, o, shown)
}

// What release shows before it asks.
type toRelease struct {
	view    driver.Snapshot
	running []ledger.Run // that would be drained
	unknown error        // why that may not be all of them: no reason not to release
}

func (t *tool) toRelease(ctx context.Context) (found toRelease, err error) {
	err = t.look(ctx, func(ctx context.Context, s store) error {
		found = toRelease{}
		var err error
		if found.view, err = assess.LookAtSession(ctx, s); err != nil || found.view.Row == nil {
			return err
		}
		found.running, found.unknown = runningIn(ctx, s, found.view.Row.Term)
		return nil
	})
	return found, err
}

// runningIn looks at the newest runs of each job.
func runningIn(ctx context.Context, s store, term int64) (running []ledger.Run, err error) {
	jobs, err := s.Jobs(ctx)
	for _, job := range jobs {
		newest, runsErr := s.Runs(ctx, job.Name, 1000)
		err = errors.Join(err, runsErr)
		for _, r := range newest {
			if r.Status == ledger.InProgress && r.Term == term {
				running = append(running, r)
			}
		}
	}
	return running, err
}

func (t *tool) showRelease(r toRelease, judged assessment) {
	if t.json {
		return
	}
	i := r.view.Info()
	fmt.Fprintln(t.out, t.paint(judged.verdict.colour(), plain(judged.summary)))
	t.line("term", "%d", i.Term)
	t.line("since", "%s, for %s", t.at(i.CreatedAt), span(i.Age))
	if i.State == driver.StateRevoked {
		t.line("revoked", "already, %s", t.revokedWords(i.Revoked))
	}
	for _, run := range r.running {
		t.line("running", "job %q of %s, attempt %d, for %s: it is drained", run.Job,
			t.at(run.ScheduledAt), run.Attempt, span(r.view.Now.Sub(run.StartedAt)))
	}
	switch {
	case r.unknown != nil:
		t.line("running", "cannot tell all: %v", r.unknown)
	case len(r.running) == 0:
		t.line("running", "nothing")
	}
	if judged.verdict != held {
		t.line("note", "%s", notHeeded)
	}
}

const notHeeded = "its heartbeat is stale, or it is dead: it will not read the order, " +
	"and its row goes by the rules, not earlier"

// confirm asks on a terminal.
func (t *tool) confirm(ctx context.Context, o releaseOrder, row *driver.Row) error {
	if o.yes {
		return nil
	}
	fmt.Fprintf(t.errOut, "Revoke term %d of pid %d on host %s? [y/N] ", row.Term, row.PID,
		plain(row.Hostname))
	answer := make(chan string, 1)
	go func() { // ends with the process, if nobody answers
		line, _ := bufio.NewReader(t.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(t.errOut)
		return errors.New("interrupted: nothing was revoked")
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return errors.New("not confirmed: nothing was revoked")
	}
}

func (t *tool) revoke(ctx context.Context, s store, o releaseOrder, shown toRelease) (int, error) {
	row := shown.view.Row
	var revoked schedlock.Revocation
	err := t.bounded(ctx, func(ctx context.Context) (err error) {
		revoked, err = schedlock.Revoke(ctx, s, row.Term, o.by, o.reason)
		return err
	})
	if err != nil {
		return 0, err
	}
	report := releaseJSON{Term: row.Term, PID: row.PID, Hostname: row.Hostname,
		Revoked: newRevokedJSON(revoked), Running: convert(shown.running, newRunJSON)}
	if o.noWait {
		report.Message = fmt.Sprintf("term %d is revoked; "+
			"its holder leaves at its next heartbeat (every %v)",
			row.Term, row.Timing.HeartbeatInterval)
		if judge(shown.view).verdict != held {
			report.Message += "; " + notHeeded
		}
		t.say(report, "%s", report.Message)
		return exitDone, nil
	}
	if !t.json {
		fmt.Fprintf(t.out, "term %d is revoked; waiting up to %v for its end\n", row.Term, o.wait)
	}
	end, next, err := t.awaitEnd(ctx, s, o, row)
	if err != nil {
		return 0, err
	}
	report.Ended, report.EndedAt, report.Reason = true, timestamp(end.EndedAt),
		string(end.EndReason)
	report.Message = fmt.Sprintf("term %d has ended (%s)", row.Term, end.EndReason)
	if next != nil {
		report.Next = new(newTermJSON(*next))
		report.Message += fmt.Sprintf("; pid %d on host %q leads now (term %d)", next.PID,
			next.Hostname, next.Term)
	}
	t.say(report, "%s", report.Message)
	return exitDone, nil
}

// awaitEnd waits until the term has ended, and then a moment for the next one.
func (t *tool) awaitEnd(ctx context.Context, s store, o releaseOrder,
	row *driver.Row) (end driver.Term, next *driver.Term, err error) {
	waiting, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	const graceLooks = 8
	seen, after := driver.Snapshot{Row: row}, 0
	for {
		var terms []driver.Term
		lookErr := t.bounded(ctx, func(ctx context.Context) error {
			v, err := assess.LookAtSession(ctx, s)
			if err != nil {
				return err
			}
			seen = v
			terms, err = s.Terms(ctx, sightTerms)
			return err
		})
		for i, term := range terms {
			if term.Term != row.Term || term.Open() {
				continue
			}
			if end = term; i > 0 {
				next = &terms[i-1]
			}
			if after++; next != nil || after > graceLooks {
				return end, next, nil
			}
		}
		select {
		case <-waiting.Done():
		case <-time.After(releasePoll):
			continue
		}
		switch {
		case after > 0:
			return end, next, nil
		case ctx.Err() != nil:
			return end, nil, fmt.Errorf("interrupted: term %d is revoked, and has not ended yet",
				row.Term)
		case lookErr != nil:
			return end, nil,
				fmt.Errorf("term %d is revoked, but whether it has ended is not known: %w",
					row.Term, lookErr)
		}
		judged := judge(seen)
		message := fmt.Sprintf("term %d is revoked, but has not ended within %v: %s", row.Term,
			o.wait, judged.summary)
		if judged.verdict != held {
			message += "; " + notHeeded
		}
		return end, nil, errors.New(message)
	}
}

// userAtHost is who gives an order unless --by says so.
func userAtHost() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
