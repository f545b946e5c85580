//go:build !linux

package main

import "errors"

var errUnsupported = errors.New("this mode exists only on linux")

func fork(string) (string, error)     { return "", errUnsupported }
func allocate(string) (string, error) { return "", errUnsupported }
func outlive(string) (string, error)  { return "", errUnsupported }
