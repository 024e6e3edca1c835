package app

import (
	"fmt"
	"net/http"
)

// serveLive says whether a restart would mend something: it fails only while
// this process still does a leader's work although its TTL has passed without a
// heartbeat, such as a job that ignores its cancellation. It asks no database,
// and a standby is as alive as the leader.
func (a *app) serveLive(w http.ResponseWriter, _ *http.Request) {
	if err := a.sched.Lock().Healthy(0); err != nil {
		a.log.Warn("not alive", "err", err)
		http.Error(w, "not alive: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
