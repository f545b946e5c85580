//go:build !linux

package main

import "os/exec"

// endWithUs does nothing: cells exist on Linux alone.
func endWithUs(*exec.Cmd) {}
