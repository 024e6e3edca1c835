//go:build !unix

package child

// Alone does nothing here.
func Alone() (end func()) { return func() {} }
