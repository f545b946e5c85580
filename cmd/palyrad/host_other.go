//go:build !linux

package main

import "palyra/internal/fault"

// setUmask does nothing: palyrad ends before it makes anything here.
func setUmask() {}

// freeBytes fails: palyrad exists on Linux only.
func freeBytes(string) (uint64, error) {
	return 0, fault.New(fault.Unsupported, "platform_unsupported", "read free space", nil)
}

// maxFiles is none: nothing is served.
func maxFiles() int { return 0 }
