//go:build !linux

package main

import "errors"

func run(config) (bool, error) { return false, errors.New("the attacks exist only on linux") }
