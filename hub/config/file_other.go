//go:build !unix

package config

import "palyra/internal/durable"

// readFile looks at no modes: this platform has no mode bits, and palyrad does not run on it.
func readFile(path string) ([]byte, error) { return durable.ReadRegular(path, MaxFile) }
