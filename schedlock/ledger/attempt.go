package ledger

import (
	"context"
	"slices"
	"time"
)

// KeepAttempts is how many attempts of a run stay besides the latest: each new
// attempt deletes those before.
const KeepAttempts = 100

// An Attempt is one attempt of a run.
type Attempt struct {
	Number     int // 1, 2, …
	StartedAt  time.Time
	FinishedAt time.Time // when its end was written down; zero: it has not ended
	Status     Status
	Term       int64
	PID        int
	Hostname   string
	Error      string // of a failed one, as [Cut] makes it
}

// Latest returns the latest attempt of a run, the one that its row tells of; ok
// is false if there was none, because the run was skipped. The error in the row of
// an abandoned attempt, or of one that is under way, is that of an attempt before.
func (r Run) Latest() (a Attempt, ok bool) {
	a = Attempt{Number: r.Attempt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		Status: r.Status, Term: r.Term, PID: r.PID, Hostname: r.Hostname}
	if r.Status == Failed {
		a.Error = r.Error
	}
	return a, r.Attempt > 0
}

// Attempts returns the attempts of a run, newest first: the latest as run tells
// of it, and those before that the database has kept, [KeepAttempts] at most.
// Those that a replica of an older release has replaced are missing. A run with
// one attempt asks nothing of the database.
func Attempts(ctx context.Context, s Store, run Run) ([]Attempt, error) {
	latest, ok := run.Latest()
	if !ok {
		return nil, nil
	}
	list := []Attempt{latest}
	if run.Attempt == 1 {
		return list, nil
	}
	earlier, err := s.Attempts(ctx, run.ID)
	if err != nil {
		return nil, err
	}
	// It may have gone on since run was read.
	return append(list, slices.DeleteFunc(earlier, func(a Attempt) bool {
		return a.Number >= run.Attempt
	})...), nil
}
