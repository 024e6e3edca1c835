// Package bench has the benchmarks that need a real database. Their results
// are in docs/benchmarks.md.
//
//	go test -run '^$' -bench . ./internal/bench
package bench
