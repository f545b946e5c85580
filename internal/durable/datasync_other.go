//go:build !linux

package durable

import "os"

// Datasync makes the content of f durable.
func Datasync(f *os.File) error { return f.Sync() }
