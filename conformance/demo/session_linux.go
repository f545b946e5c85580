package main

import "syscall"

func session() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
