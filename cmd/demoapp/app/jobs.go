package app

import (
	"context"
	"net/http"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

type jobJSON struct {
	Name           string     `json:"name"`
	Spec           string     `json:"spec"`
	Known          bool       `json:"known"`
	Next           timestamp  `json:"next"`
	Paused         *pauseJSON `json:"paused"`
	LastSuccess    timestamp  `json:"last_success"`
	LastFailure    timestamp  `json:"last_failure"`
	LastError      string     `json:"last_error"`
	Streak         int64      `json:"streak"`
	Done           int64      `json:"done"`
	Failed         int64      `json:"failed"`
	AverageSeconds float64    `json:"average_seconds"`
	LongestSeconds float64    `json:"longest_seconds"`
}

type pauseJSON struct {
	By         string    `json:"by"`
	Reason     string    `json:"reason"`
	Since      timestamp `json:"since"`
	Everything bool      `json:"everything"` // it is not of this job alone
}

func newPauseJSON(p *ledger.Pause) *pauseJSON {
	if p == nil {
		return nil
	}
	return &pauseJSON{By: p.By, Reason: p.Reason, Since: timestamp(p.Since),
		Everything: p.Job == ""}
}

func newJobJSON(j tasks.JobInfo) jobJSON {
	return jobJSON{
		Name: j.Name, Spec: j.Spec, Known: j.Known, Next: timestamp(j.Next),
		Paused:      newPauseJSON(j.Pause),
		LastSuccess: timestamp(j.LastDone), LastFailure: timestamp(j.LastFailed),
		LastError: j.LastError,
		Streak:    j.Streak, Done: j.Done, Failed: j.Failed,
		AverageSeconds: j.Average().Seconds(), LongestSeconds: j.Longest.Seconds(),
	}
}

func (a *app) serveJobs(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	jobs, err := a.sched.Runner().Jobs(ctx)
	if err != nil {
		a.log.Warn("jobs cannot be read", "err", err)
		writeJSON(w, http.StatusServiceUnavailable, errorJSON{publicError(err)})
		return
	}
	list := make([]jobJSON, len(jobs))
	for i, j := range jobs {
		list[i] = newJobJSON(j)
	}
	writeJSON(w, http.StatusOK, list)
}
