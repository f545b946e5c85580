//go:build !linux

package main

import (
	"context"
	"errors"
)

// inside is for Linux, where cells and the world's network namespaces are.
func inside(context.Context, string, string) error {
	return errors.New("palyra run: cells are on Linux")
}

// lending is for Linux.
func lending() bool { return false }
