//go:build !unix

package filesystem

// SyncFolder does nothing where folders cannot be opened: names are durable with the
// files there.
func SyncFolder(string) error { return nil }
