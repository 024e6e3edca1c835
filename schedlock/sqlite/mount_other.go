//go:build !linux

package sqlite

func checkMount(string) error { return nil }
