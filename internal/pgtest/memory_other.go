//go:build !linux

package pgtest

// Memory is "": there is no file system in memory that is known.
func Memory() string { return "" }
