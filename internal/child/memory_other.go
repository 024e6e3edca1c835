//go:build !linux

package child

// memory is "": there is no file system in memory that is known.
func memory() string { return "" }
