package app

import (
	"context"
	"net/http"

	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

type jobJSON struct {
	Job            string     `json:"job"`
	Spec           string     `json:"spec"`
	Known          bool       `json:"known"`
	NextTick       timestamp  `json:"next_tick"`
	Paused         *pauseJSON `json:"paused"`
	LastDone       timestamp  `json:"last_done"`
	LastFailed     timestamp  `json:"last_failed"`
	LastError      string     `json:"last_error"`
	FailureStreak  int64      `json:"failure_streak"`
	Done           int64      `json:"done"`
	Failed         int64      `json:"failed"`
	AverageSeconds float64    `json:"average_seconds"`
	LongestSeconds float64    `json:"longest_seconds"`
}

type pauseJSON struct {
	Job    string    `json:"job"` // "": the whole scheduler
	Since  timestamp `json:"since"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

func newPauseJSON(p *ledger.Pause) *pauseJSON {
	if p == nil {
		return nil
	}
	return &pauseJSON{p.Job, timestamp(p.Since), p.By, p.Reason}
}

func newJobJSON(j tasks.JobInfo) jobJSON {
	return jobJSON{
		Job: j.Name, Spec: j.Spec, Known: j.Known, NextTick: timestamp(j.Next),
		Paused:   newPauseJSON(j.Pause),
		LastDone: timestamp(j.LastDone), LastFailed: timestamp(j.LastFailed),
		LastError: j.LastError, FailureStreak: j.Streak, Done: j.Done, Failed: j.Failed,
		AverageSeconds: j.Average().Seconds(), LongestSeconds: j.Longest.Seconds(),
	}
}

func (a *app) serveJobs(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	jobs, err := a.sched.Runner().Jobs(ctx)
	if err != nil {
		a.log.Warn("jobs cannot be read", "err", err)
		answerError(w, http.StatusServiceUnavailable, publicError(err))
		return
	}
	list := make([]jobJSON, len(jobs))
	for i, j := range jobs {
		list[i] = newJobJSON(j)
	}
	writeJSON(w, http.StatusOK, list)
}
