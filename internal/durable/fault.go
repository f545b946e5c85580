package durable

import (
	"errors"
	"io/fs"
	"syscall"

	"palyra/internal/fault"
)

// Fault classifies an error of the operating system: an exhausted resource is
// fault.Unavailable, an unwritable place is fault.BadState. An error that already has a
// class keeps it.
func Fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), isQuota(err):
		return fault.New(fault.Unavailable, "disk_full", op, err).WithHint("free some space and try again")
	case errors.Is(err, syscall.EFBIG):
		return fault.New(fault.Unavailable, "too_large", op, err).WithHint("raise the file size limit (ulimit -f)")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return fault.New(fault.Unavailable, "resource_exhausted", op, err)
	case errors.Is(err, syscall.EIO):
		return fault.New(fault.Unavailable, "io_error", op, err)
	case errors.Is(err, syscall.EROFS):
		return fault.New(fault.BadState, "read_only", op, err).
			WithHint("choose a state directory on a file system that can be written to")
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.BadState, "permission_denied", op, err)
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.BadState, "state_missing", op, err)
	}
	return fault.New(fault.BadState, "state_io", op, err)
}
