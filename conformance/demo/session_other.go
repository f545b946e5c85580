//go:build !linux

package main

import "syscall"

func session() *syscall.SysProcAttr { return nil }

func killSession(int) error { return nil }

const agent = 0

func secondUser() bool { return false }

func asAgent() *syscall.SysProcAttr { return nil }
