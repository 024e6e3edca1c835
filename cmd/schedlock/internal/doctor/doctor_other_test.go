//go:build !linux

package doctor

func childMain() bool { return false }
