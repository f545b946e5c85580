//go:build !linux

package main

import "os"

// The world is on Linux.
func main() { os.Exit(2) }
