//go:build !unix

package place

// ownSocket finds none: palyrad does not run on this platform.
func ownSocket(string) bool { return false }

// mine finds none, for the same reason.
func mine(string) bool { return false }
