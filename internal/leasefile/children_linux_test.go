package leasefile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/schedlock/driver"
)

func init() {
	child.Modes["lease hold"] = childHold
	child.Modes["lease linger"] = func() { io.Copy(io.Discard, os.Stdin) }
	child.Modes["lease probe"] = childProbe
	child.Modes["lease open"] = childOpen
	child.Modes["lease nobody"] = childNobody
}

// childHold holds the byte of a token; with a third argument it starts a
// process that outlives it.
func childHold() {
	f, err := Open(os.Args[1], nil)
	child.Check(err)
	token, err := driver.ParseToken(os.Args[2])
	child.Check(err)
	held, err := f.Hold(token)
	child.Check(err)
	if len(os.Args) > 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child.Env+"=lease linger")
		cmd.Stdin = os.Stdin
		child.Check(cmd.Start())
		fmt.Println(cmd.Process.Pid)
		for { // leaves stdin to the other
			time.Sleep(time.Hour)
		}
	}
	fmt.Println(held.ID)
	io.Copy(io.Discard, os.Stdin)
}

// childProbe probes all the time until its stdin ends.
func childProbe() {
	f, err := Open(os.Args[1], nil)
	child.Check(err)
	token, err := driver.ParseToken(os.Args[2])
	child.Check(err)
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(ended) }()
	fmt.Println("ready")
	for n := 0; ; n++ {
		select {
		case <-ended:
			fmt.Println(n)
			return
		default:
		}
		_, err := f.read(token)
		child.Check(err)
	}
}

// childOpen waits for a word and opens, or makes, a lease file.
func childOpen() {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	f, err := Open(os.Args[1], nil)
	child.Check(err)
	id, err := f.id()
	child.Check(err)
	fmt.Println(id)
}

// childNobody does as a user who may do little.
func childNobody() {
	child.Check(syscall.Setgroups(nil))
	child.Check(syscall.Setgid(65534))
	child.Check(syscall.Setuid(65534))
	f, err := Open(os.Args[1], nil)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	if _, err := f.Probe(tokenAt(0)); err != nil {
		fmt.Println("probe:", err)
		return
	}
	if _, err := f.Hold(tokenAt(0)); err != nil {
		fmt.Println("hold:", err)
		return
	}
	fmt.Println("ok")
}
