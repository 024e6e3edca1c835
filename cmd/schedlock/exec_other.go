//go:build !linux

package main

import (
	"context"
	"errors"
)

func (x *execution) run(context.Context) (int, error) {
	return 0, &codeError{125, errors.New("exec: it needs Linux, where it can find all processes " +
		"that a command has started")}
}
