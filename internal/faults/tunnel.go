//go:build linux

package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/pgtest"
)

// A tunnel is what ssh -L makes: a process has a network of its own, in which
// something listens on the very address and port that the server has. Nothing
// in the server's address gives it away, and it may end what it has with the
// server without a word to its client.

// ownNetwork lets a process have a network of its own.
func ownNetwork(attr *unix.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWNET
	if os.Getuid() == 0 {
		return
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}} // as root there
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
}

// mayTunnel is why this process cannot do that, nil if it can.
func mayTunnel() error {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), programEnv+"=null") // which ends at once
	cmd.SysProcAttr = &unix.SysProcAttr{}
	ownNetwork(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Wait() // it could be started
	return nil
}

// tunnelEnd is the end of a slot's tunnel that is not in its network; "" if
// there are no tunnels.
func (s *postgresServer) tunnelEnd(slot int) string {
	if s.tunnel == "" {
		return ""
	}
	return filepath.Join(s.tunnel, strconv.Itoa(slot))
}

// serveTunnel is the near end, in the process itself.
func serveTunnel(s Settings) error {
	if err := pgtest.LoopbackUp(); err != nil {
		return fmt.Errorf("the loopback of the process: %w", err)
	}
	config, err := pgx.ParseConfig(s.DSN)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort(config.Host,
		strconv.Itoa(int(config.Port))))
	if err != nil {
		return err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				far, err := net.Dial("unix", s.Tunnel)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					_, _ = io.Copy(client, far)
					client.Close()
				}()
				_, _ = io.Copy(far, client)
			}()
		}
	}()
	return nil
}

// ForwarderBetween: the tunnel ends the leader's connections to the server, and
// the leader does not hear of it, nor of anything else for more than a TTL. The
// end of its session must be no sign. Otherwise as PartitionLeader.
func ForwarderBetween(ctx context.Context, c *Cluster, in *Injection, s *postgresServer) error {
	if s.tunnel == "" {
		return fmt.Errorf("%w: no tunnel is in between", errCannotInject)
	}
	if row, _, err := s.Row(ctx); err != nil {
		return err
	} else if row.Session {
		in.note("the end of the leader's session is a sign, although a tunnel is in between")
	}
	return c.cutOff(ctx, in, s, func(p *proxy) { p.Abandon() })
}
