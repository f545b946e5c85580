//go:build linux

package main

import "golang.org/x/sys/unix"

const modifyLDTNumber = -1

// int80 has no counterpart: AArch32 needs another kind of process.
func int80(nr, a0, a1, a2, a3, a4 uintptr) uintptr {
	e := unix.ENOSYS
	return -uintptr(e)
}

func modifyLDT(args) (string, error) { return "", failed("modify_ldt", unix.ENOSYS) }
