//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "measure: needs Linux: it reads /proc and CLOCK_BOOTTIME")
	os.Exit(1)
}
