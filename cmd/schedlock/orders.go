package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/internal/assess"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const pauseHelp = `Once it has returned nothing starts any more, whoever leads; what runs goes on.
With --all instead of JOB it pauses the whole scheduler. Ticks that are due
meanwhile are missed ones, for which the job's catch-up rule decides.

Examples:
  schedlock pause import --reason "the disk is full"
  schedlock pause --all
`

const resumeHelp = `Ends the pause of JOB, or with --all the one of the whole scheduler: neither
ends the other. It says which pauses still keep jobs from starting.

Examples:
  schedlock resume import
`

const runHelp = `The leader starts it within a second; if nobody leads, whoever leads next does.

Examples:
  schedlock run import --reason "the list is new" --wait 1m
`

func byFlag(flags *pflag.FlagSet, by *string) {
	flags.StringVar(by, "by", userAtHost(), "who")
}

func orderFlags(flags *pflag.FlagSet) *ledger.Action {
	o := &ledger.Action{}
	byFlag(flags, &o.By)
	flags.StringVar(&o.Reason, "reason", "", "why")
	return o
}

// checkWhoAndWhy returns what is wrong with --by and --reason.
func checkWhoAndWhy(by, reason string) error {
	if strings.TrimSpace(by) == "" {
		return wrong("--by is empty: it says who gives the order")
	}
	if err := cmp.Or(names.Check("--by", by), names.CheckReason(reason)); err != nil {
		return wrong("%v", err)
	}
	return nil
}

// checkOrder returns what is wrong with an order to a job, or to all of them.
func checkOrder(o ledger.Action) error {
	if err := names.Check("the name of the job", o.Job); err != nil {
		return wrong("%v", err)
	}
	return checkWhoAndWhy(o.By, o.Reason)
}

// act opens the database for writing, and closes it.
func (t *tool) act(ctx context.Context, do func(ctx context.Context, s store) error) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := t.bounded(ctx, func(ctx context.Context) error {
		_, err := t.checkSchema(ctx, s)
		return err
	}); err != nil {
		return err
	}
	return do(ctx, s)
}

// actOnce is act for one statement. Its own error begins with what, unless that is "".
func (t *tool) actOnce(ctx context.Context, what string,
	do func(ctx context.Context, s store) error) error {
	return t.act(ctx, func(ctx context.Context, s store) error {
		err := t.bounded(ctx, func(ctx context.Context) error { return do(ctx, s) })
		if err != nil && what != "" {
			return fmt.Errorf("%s: %w", what, err)
		}
		return err
	})
}

func (t *tool) job() string {
	if len(t.args) == 0 {
		return ""
	}
	return t.args[0]
}

// jobOrAll is the job, "" for every job. What a script has left empty is not
// every job.
func (t *tool) jobOrAll(command string, all bool) (string, error) {
	job := t.job()
	switch {
	case all && len(t.args) > 0:
		return "", wrong("%s takes a job or --all, not both", command)
	case !all && len(t.args) == 0:
		return "", wrong("%s needs the name of a job, or --all for every job", command)
	case !all && strings.TrimSpace(job) == "":
		return "", wrong("the name of the job is empty: %s every job with --all", command)
	}
	return job, nil
}

func pause(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	o := orderFlags(flags)
	all := flags.Bool("all", false, "every job, also those to come")
	return func(ctx context.Context) (_ int, err error) {
		if o.Job, err = t.jobOrAll("pause", *all); err != nil {
			return 0, err
		}
		if err := checkOrder(*o); err != nil {
			return 0, err
		}
		var (
			p    ledger.Pause
			done pausedJSON
		)
		err = t.actOnce(ctx, "pause", func(ctx context.Context, s store) error {
			before, err := s.Pending(ctx)
			if err != nil {
				return err
			}
			if p, err = s.Pause(ctx, *o); err != nil {
				return t.offerJobs(ctx, s, o.Job, err)
			}
			done.AlreadyPaused = slices.ContainsFunc(before.Pauses, func(b ledger.Pause) bool {
				return b.Job == p.Job && b.InForce()
			})
			return nil
		})
		if err != nil {
			return 0, err
		}
		done.pauseJSON = newPauseJSON(p)
		prefix := ""
		if done.AlreadyPaused {
			prefix = "nothing has changed: "
		}
		t.say(done, "%s%s; it ends with: schedlock resume %s", prefix, t.pauseWords(p),
			resumed(p.Job))
		return exitDone, nil
	}
}

// resumed is the argument of resume that ends the pause of a job, or with "" of the scheduler.
func resumed(job string) string {
	if job == "" {
		return "--all"
	}
	return words.Argument(job)
}

type pausedJSON struct {
	pauseJSON
	AlreadyPaused bool `json:"already_paused"` // so this order has changed nothing
}

type resumeJSON struct {
	Job     string `json:"job"` // "": the whole scheduler
	Resumed bool   `json:"resumed"`
	By      string `json:"by"`
	// the other pauses that keep it from starting; null: not known
	StillPaused []pauseJSON `json:"still_paused"`
}

// stillPaused are the pauses that stay in force after the end of the one of job: the
// scheduler's, or, after the end of that, those of jobs by themselves.
func stillPaused(inbox ledger.Pending, job string) (left []ledger.Pause) {
	for _, p := range inbox.Pauses {
		if p.InForce() && p.Job != job && (job == "" || p.Job == "") {
			left = append(left, p)
		}
	}
	slices.SortFunc(left, func(a, b ledger.Pause) int { return strings.Compare(a.Job, b.Job) })
	return left
}

func resume(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	var by string
	byFlag(flags, &by)
	all := flags.Bool("all", false, "end the pause of the whole scheduler")
	return func(ctx context.Context) (code int, err error) {
		done := resumeJSON{By: by}
		var left []ledger.Pause
		if done.Job, err = t.jobOrAll("resume", *all); err != nil {
			return 0, err
		}
		if err := checkOrder(ledger.Action{Job: done.Job, By: by}); err != nil {
			return 0, err
		}
		err = t.actOnce(ctx, "", func(ctx context.Context, s store) (err error) {
			if done.Resumed, err = s.Resume(ctx, done.Job, by); err != nil {
				return t.offerJobs(ctx, s, done.Job, err)
			}
			if !done.Resumed && done.Job != "" {
				if err := t.knownJob(ctx, s, done.Job); err != nil {
					return err
				}
			}
			// What was done stays done, also if the other pauses cannot be read.
			if inbox, err := s.Pending(ctx); err == nil {
				left = stillPaused(inbox, done.Job)
				done.StillPaused = convert(left, newPauseJSON)
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("resume: %w", err)
		}
		what, how := "the scheduler", "is resumed"
		if done.Job != "" {
			what = fmt.Sprintf("job %q", done.Job)
		}
		if !done.Resumed {
			code, how = exitNothing, "was not paused"
		}
		switch {
		case len(left) == 0:
		case done.Job != "":
			how += fmt.Sprintf(", but it does not start yet: %s", t.pauseWords(left[0]))
		default:
			how += "; still paused by themselves: " +
				someNames(convert(left, func(p ledger.Pause) string { return p.Job }))
		}
		t.say(done, "%s %s", what, how)
		return code, nil
	}
}

// A requestJSON is a run that was asked for, and its outcome once it is known.
type requestJSON struct {
	Job         string    `json:"job"`
	RequestedAt timestamp `json:"requested_at"`
	RequestedBy string    `json:"requested_by"`
	Reason      string    `json:"request_reason"`
	Run         *runJSON  `json:"run"` // null: its end was not waited for
}

func runJob(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	o := orderFlags(flags)
	wait := flags.Duration("wait", 0, "wait so long for its outcome, retries included")
	return func(ctx context.Context) (code int, err error) {
		if o.Job = t.job(); o.Job == "" {
			return 0, wrong("run needs the name of a job")
		}
		if *wait < 0 {
			return 0, wrong("--wait %v is below 0", *wait)
		}
		if err := checkOrder(*o); err != nil {
			return 0, err
		}
		err = t.act(ctx, func(ctx context.Context, s store) error {
			code, err = t.trigger(ctx, s, *o, *wait)
			return err
		})
		return code, err
	}
}

func (t *tool) trigger(ctx context.Context, s store, o ledger.Action,
	wait time.Duration) (int, error) {
	var (
		request ledger.Request
		view    driver.Snapshot
		unseen  error // why nobody knows who leads: what was asked for stays asked for
	)
	err := t.bounded(ctx, func(ctx context.Context) (err error) {
		request, err = s.Trigger(ctx, o)
		if paused, is := errors.AsType[*ledger.PausedError](err); is {
			return fmt.Errorf("run: %w; it ends with: schedlock resume %s", err,
				resumed(paused.Job))
		}
		if err != nil {
			return t.offerJobs(ctx, s, o.Job, fmt.Errorf("run: %w", err))
		}
		view, unseen = assess.LookAtSession(ctx, s)
		return nil
	})
	if err != nil {
		return 0, err
	}
	answer := requestJSON{Job: o.Job, RequestedAt: timestamp(request.At), RequestedBy: o.By,
		Reason: o.Reason}
	if !t.json {
		fmt.Fprintf(t.out, "job %q is asked to run, at %s\n", o.Job, t.at(request.At))
		switch judged := judge(view); {
		case unseen != nil:
			t.say(nil, "whether anybody leads is not known: %s", message.OneLine(unseen.Error()))
		case judged.verdict != held:
			fmt.Fprintln(t.out, t.paint(yellow,
				plain("it starts once somebody leads; "+judged.summary)))
		}
	}
	if wait == 0 {
		if t.json {
			t.encode(answer)
		}
		return exitDone, nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	run, err := ledger.Await(waiting, s, o.Job, request.At)
	if err != nil {
		return 0, err
	}
	code := exitNothing
	if run.Status == ledger.Done {
		code = exitDone
	}
	if t.json {
		answer.Run = new(newRunJSON(run))
		t.encode(answer)
	} else {
		t.showRuns([]ledger.Run{run})
	}
	return code, nil
}

const resetHelp = `The cursor of a job says which of its ticks were decided. If a wrong clock, or a
hand, has set it far ahead, or to what is no time, this sets it to now. Ticks
before now that were not decided are not run. Ticks to come that have run
already do not run again, as long as the ledger has their runs.

Whoever leads goes on from there within one heartbeat interval.

Examples:
  schedlock reset-cursor import --reason "the clock was a year ahead"
`

// A cursorJSON is where a job goes on.
type cursorJSON struct {
	Job      string    `json:"job"`
	Cursor   timestamp `json:"cursor"`
	NextTick timestamp `json:"next_tick"`
}

func resetCursor(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	o := orderFlags(flags)
	return func(ctx context.Context) (int, error) {
		if o.Job = t.job(); o.Job == "" {
			return 0, wrong("reset-cursor needs the name of a job")
		}
		if err := checkOrder(*o); err != nil {
			return 0, err
		}
		var j ledger.Job
		err := t.actOnce(ctx, "reset-cursor", func(ctx context.Context, s store) (err error) {
			j, err = s.ResetCursor(ctx, *o)
			return t.offerJobs(ctx, s, o.Job, err)
		})
		if err == nil {
			t.say(cursorJSON{j.Name, timestamp(j.Cursor), timestamp(nextTick(j))},
				"job %q goes on from %s; its next tick is at %s", j.Name, t.at(j.Cursor),
				t.at(nextTick(j)))
		}
		return exitDone, err
	}
}
