//go:build linux

// Talk is a program that listens, or one that looks for it from another cell.
//
//	talk listen              prints the port, answers connections with "hello", ends with its input
//	talk stay                the same, without end
//	talk look PORT           prints what it found, a line each: "tcp hello", "unix EPERM", ...
//	talk get HOST:PORT       prints the last line of what an HTTP server answers
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// abstract is the name of a socket in no file system.
const abstract = "palyra-talk"

func main() {
	switch os.Args[1] {
	case "listen":
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		listen()
	case "stay":
		listen()
	case "get":
		get(os.Args[2])
	default:
		look(os.Args[2])
	}
}

func listen() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	// Where the filter refuses unix sockets nothing listens, and nothing is to be found.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + abstract}), unix.Listen(fd, 1))
	}
	fmt.Println(ln.Addr().(*net.TCPAddr).Port, name(err))
	for {
		c, err := ln.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprint(c, "hello")
		c.Close()
	}
}

func get(host string) {
	c, err := net.DialTimeout("tcp", host, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n")
	b, _ := io.ReadAll(c)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	fmt.Println(lines[len(lines)-1])
}

func look(port string) {
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, 10*time.Second)
	if err != nil {
		fmt.Println("tcp", name(err))
	} else {
		b, _ := io.ReadAll(c)
		fmt.Println("tcp", string(b))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + abstract})
	}
	fmt.Println("unix", name(err))
	procs, _ := os.ReadDir("/proc")
	others := 0
	for _, p := range procs {
		if strings.Trim(p.Name(), "0123456789") == "" {
			if line, _ := os.ReadFile("/proc/" + p.Name() + "/cmdline"); strings.Contains(string(line), "listen") {
				others++
			}
		}
	}
	fmt.Println("processes", others)
	_, err = net.Listen("tcp", "127.0.0.1:"+port)
	fmt.Println("bind", name(err))
	fmt.Println("variable", name(os.WriteFile("/proc/sys/net/ipv4/ip_default_ttl", []byte("1"), 0)))
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		panic(err)
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	}
	fmt.Println("down", name(err))
}

// name is that of the error's number, "0" for none.
func name(err error) string {
	var n unix.Errno
	switch {
	case err == nil:
		return "0"
	case errors.As(err, &n):
		return unix.ErrnoName(n)
	}
	return err.Error()
}
