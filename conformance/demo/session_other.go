//go:build !linux

package main

import "syscall"

func session() *syscall.SysProcAttr { return nil }
