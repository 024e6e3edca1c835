//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// asNobody makes the process one of an ordinary user.
func asNobody(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534,
			Gid: 65534}}
	}
}
