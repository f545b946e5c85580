package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// fetch prints what a host says and ends the process. It's what runs in the cell.
func fetch(at string) {
	c, err := net.Dial("tcp", at)
	if err == nil {
		var n int64
		if n, err = io.Copy(os.Stdout, c); err == nil && n == 0 {
			err = errors.New("it said nothing")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
