// Package spans has the OpenTelemetry spans of a scheduler lock and its runs, and
// the log records that belong to them.
//
//	s := spans.New(provider)
//	app, err := startup.NewApp(startup.Config{
//		Jobs: s.Jobs(jobs),
//		Lock: []schedlock.Option{schedlock.WithObserver(s.Observe)}, …})
//
// It is a module of its own, so that an app without it neither links OpenTelemetry
// nor has it in its go.mod. It needs only the API: the app brings the SDK, and
// without one all of this does nothing.
//
//	acquire the lock   one acquisition: the statement that succeeded. A look that
//	                   found another holder has none, since a standby looks again
//	                   and again
//	hand over the lock the way out: from the order to leave, or the start of the
//	                   drain, to the release of the row. A release that fails is
//	                   an event; a lease that is lost meanwhile ends it as an error
//	run NAME           one attempt of the job NAME. It is the span of the context
//	                   that the job is given, so what the job calls is below it.
//	                   An error or a panic makes it an error
//
// Each has the attribute schedlock.term. An acquisition also has
// schedlock.previous_end, which says how the term before ended, and
// schedlock.gap_seconds: for how long nobody led, at the most; both are missing if
// there was no term before. A hand-over has schedlock.revoked, which is true if an
// operator gave the order, and schedlock.end. A run has schedlock.job,
// schedlock.tick (RFC 3339, UTC), schedlock.attempt and, if somebody asked for it,
// schedlock.requested_by.
//
// A run is a trace of its own with a link to the acquisition of its term. So is a
// hand-over. The acquisition of the next term is on another replica, and nothing
// carries a trace there: the terms tell which belongs to which. A process that is
// killed exports no span that has not ended.
//
// Spans of the lock are made when the observer is told. That is at most a moment
// after the change, unless observers are slow: see schedlock.WithObserver.
package spans
