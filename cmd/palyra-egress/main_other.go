//go:build !linux

package main

import "syscall"

// dieTogether has nothing: this platform has no such signal, and nothing is served there.
func dieTogether() *syscall.SysProcAttr { return nil }

// closeInherited does nothing: the next step fails on this platform.
func closeInherited() error { return nil }
