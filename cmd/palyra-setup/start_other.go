//go:build !linux

package main

import (
	"context"
	"errors"

	"palyra/internal/fault"
)

func (d *own) managed(context.Context) bool { return false }

func (d *own) manage(context.Context, bool) error { return nil }

func (d *own) start(context.Context, string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "start palyrad", errors.ErrUnsupported)
}

func (d *own) unmanage(context.Context) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "undo setup palyrad", errors.ErrUnsupported)
}
