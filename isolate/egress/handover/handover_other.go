//go:build !linux

package handover

import (
	"context"
	"errors"
	"os"

	"palyra/internal/fault"
)

func unsupported(op string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, errors.New("only Linux"))
}

// Pair returns an error: there are no cells with egress on this platform.
func Pair() (cell, egress *os.File, err error) {
	return nil, nil, unsupported("connect a cell to palyra-egress")
}

// Send returns an error, as Pair does.
func Send(*os.File, *Sockets) error { return unsupported("send the sockets of a cell") }

// Receive returns an error, as Pair does.
func Receive(context.Context, *os.File) (*Sockets, error) {
	return nil, unsupported("receive the sockets of a cell")
}

// Ready returns an error, as Pair does.
func Ready(*os.File) error { return unsupported("answer a cell") }

// Refuse returns an error, as Pair does.
func Refuse(*os.File, string) error { return unsupported("answer a cell") }
