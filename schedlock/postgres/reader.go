package postgres

import "context"

// OpenReader is Open for a tool that only looks: Look, Terms, Jobs, Run, Runs
// and Pending. It does not listen for hints, so it works on a hot standby too,
// whose answer may be older than the primary's.
func OpenReader(ctx context.Context, url string, opts ...Option) (*Store, error) {
	opts = append(opts[:len(opts):len(opts)], func(s *Store) error { s.reader = true; return nil })
	return Open(ctx, url, opts...)
}
