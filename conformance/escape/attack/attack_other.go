//go:build !linux

package main

import "syscall"

// The attacks are on Linux; elsewhere there is none to make.
func probes() map[string]probe { return nil }

func prepare() {}

func onOwnTerminal() error { return syscall.ENOSYS }

func errnoName(e syscall.Errno) string { return e.Error() }
