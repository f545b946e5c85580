//go:build !linux

package kernel

// bootID returns "": this platform has no such id.
func bootID() string { return "" }
