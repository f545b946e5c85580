//go:build !linux

package main

import (
	"errors"
	"time"
)

// run needs a subreaper, which Linux has.
func run(time.Duration, []string) (int, error) {
	return statusBroken, errors.New("lanes run on Linux only")
}
