//go:build !unix || aix || solaris || illumos

package postgres

import "syscall"

const canPeek = false

func silent(syscall.RawConn) bool { return false }
