// Command hostile is the program that the demo and the conformance scripts run
// inside and outside of the sandbox. Each mode tries one thing that a sandbox
// must not let it do, says on one line how that went, and exits 0 if it
// succeeded and 1 if the kernel stopped it. It changes nothing that outlives
// it but its own children.
//
//	hostile print FILE             print FILE (the harmless mode)
//	hostile read FILE              read a file of the host
//	hostile connect ADDR           reach a TCP listener
//	hostile processes MARK         find a process whose command line holds MARK
//	hostile fork N                 have N children at once
//	hostile allocate BYTES         touch BYTES of memory
//	hostile outlive MARK           ignore SIGTERM, double-fork, wait for ever
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: hostile MODE ARGUMENT")
		os.Exit(2)
	}
	modes := map[string]func(string) (string, error){
		"print": printFile, "read": read, "connect": connect, "processes": processes,
		"fork": fork, "allocate": allocate, "outlive": outlive,
	}
	try, ok := modes[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "hostile: unknown mode %q\n", os.Args[1])
		os.Exit(2)
	}
	did, err := try(os.Args[2])
	if err != nil {
		fmt.Printf("stopped: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(did)
}

func printFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimRight(string(b), "\n"), err
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return fmt.Sprintf("read %d bytes of the host: %s", len(b), strings.TrimSpace(string(b))), err
}

func connect(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hostile was here\n")); err != nil {
		return "", err
	}
	return "connected to " + addr, nil
}

func processes(mark string) (string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	seen := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		seen++
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && strings.Contains(string(line), mark) {
			return fmt.Sprintf("found host process %d", pid), nil
		}
	}
	return "", fmt.Errorf("%d other processes in sight, none of the host", seen)
}
