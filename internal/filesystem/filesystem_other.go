//go:build !linux

package filesystem

// Check knows of nothing to refuse here.
func Check(string) error { return nil }
