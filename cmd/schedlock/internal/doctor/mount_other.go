//go:build !linux

package doctor

func mountOf(string) (mount, bool) { return mount{}, false }
