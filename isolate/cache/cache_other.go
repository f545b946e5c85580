//go:build !linux

package cache

import (
	"os"

	"palyra/internal/fault"
)

// Cache is one that this process uses. There is none on this platform.
type Cache struct {
	Info
	ID  string
	Dir *os.File
}

// Listed is a cache as List finds it.
type Listed struct {
	Info
	ID      string
	Use     Use
	Damaged error
}

func unsupported(op string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, nil)
}

// Take fails.
func Take(string, Owner, string) (*Cache, error) { return nil, unsupported("use a cache") }

// Fill fails.
func (*Cache) Fill([]File) error { return unsupported("fill a cache") }

// Close does nothing.
func (*Cache) Close() {}

// List fails.
func List(string) ([]Listed, error) { return nil, unsupported("list caches") }

// Held fails.
func Held(string, string) (int64, error) { return 0, unsupported("measure caches") }

// EndSession fails.
func EndSession(string, string) error { return unsupported("remove a cache") }

// Remove fails.
func Remove(string, string) error { return unsupported("remove a cache") }
