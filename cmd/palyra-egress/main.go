// The limits of a control group would be read from files that stay open; they bound palyra's tree
// as they are.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra-egress is the only process of Palyra that resolves names and connects to hosts,
// each for a call whose rules allow it. It has no keys of ours, no policy and no files, starts
// nothing, and confines itself before it reads its first order. It reads the requests to hosts that
// a call has inspected, and has the values of secrets that go into them for as long as the call
// lasts.
//
//	palyra-egress                                    by palyra, with a socket on descriptor 3
//	palyra-egress keep                               the same, and started anew whenever it ends
//	palyra-egress -connect /run/palyra/egress.sock   as a service: palyrad listens there
//
// With -nameserver ADDRESS[:PORT] it asks that one in place of those in /etc/resolv.conf, and with
// -roots FILE it trusts the certificates in that file in place of the host's. Both are read at the
// start: a change of the host's roots is one for the next palyra-egress.
//
// It is not meant to be started by hand: without a socket it says so and exits with status 2.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"palyra/isolate/egress"
	"palyra/isolate/selfconfine"
)

// control is the descriptor of the connection of the palyra that started this process.
const control = 3

// memory is where the collector begins to work harder. A connection takes some 30 KiB.
const memory = 256 << 20

func main() {
	runtime.LockOSThread() // the main thread has the parent-death signal
	run := serve
	if len(os.Args) > 1 && os.Args[1] == "keep" {
		run = keep
	}
	err := closeInherited()
	if err == nil {
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "palyra-egress:", err)
		os.Exit(2)
	}
}

func serve(args []string) error {
	flags := flag.NewFlagSet("palyra-egress", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path := flags.String("connect", "", "")
	nameserver := flags.String("nameserver", "", "")
	roots := flags.String("roots", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	log.SetOutput(io.Discard) // net/http logs what hosts send unasked
	c := egress.Config{Log: func(s string) { fmt.Fprintln(os.Stderr, "palyra-egress:", s) }}
	if *nameserver != "" {
		var err error
		if c.Nameserver, err = parseServer(*nameserver); err != nil {
			return err
		}
	}
	var err error
	if c.Roots, err = readRoots(*roots); err != nil {
		return err
	}
	conn, err := open(*path)
	if err != nil {
		return err
	}
	death := syscall.SIGKILL
	if *path != "" {
		death = 0 // a service isn't its peer's child
	}
	if err := confine(death); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return egress.Serve(ctx, conn, c)
}

// readRoots reads the certificates of a file, or else the host's; a host without roots has no host
// to trust.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return x509.NewCertPool(), nil
		}
		return pool, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("-roots %q: no certificate in it", file)
	}
	return pool, nil
}

func parseServer(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("-nameserver %q: want ADDRESS or ADDRESS:PORT", s)
	}
	return ap, nil
}

// open opens the control connection.
func open(path string) (*net.UnixConn, error) {
	if path != "" {
		return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	}
	f := os.NewFile(control, "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, errors.New("palyra-egress is started by palyra, which hands it a socket, or with -connect")
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("descriptor 3 is no unix socket")
	}
	return conn, nil
}

// confine leaves the process what it needs to look names up and to connect.
func confine(death syscall.Signal) error {
	debug.SetMemoryLimit(memory)
	if err := selfconfine.LeaveRoot(death); err != nil {
		return err
	}
	return selfconfine.Apply(selfconfine.Config{Internet: true, Read: resolverFiles("/etc")})
}

// resolverFiles are what Go's resolver reads. resolv.conf is replaced by renaming wherever it is
// written, and Landlock's rule would stay with the old file: its folder may be read. That's a
// folder of the resolver's below /run on most hosts, and all of /etc where it is a file there.
func resolverFiles(etc string) []string {
	files := []string{filepath.Join(etc, "hosts"), filepath.Join(etc, "nsswitch.conf"), filepath.Join(etc, "resolv.conf")}
	if to, err := filepath.EvalSymlinks(files[2]); err == nil {
		files = append(files, filepath.Dir(to))
	}
	return files
}

// The pauses of keep.
const (
	pauseFirst = 100 * time.Millisecond
	pauseMost  = 5 * time.Second
	longLife   = time.Minute
)

// keep starts this program without the word keep, again and again, until it ends because palyra
// has. It does nothing else. Its child is confined, and root no more; it isn't, or it could start
// none.
func keep(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	conn := os.NewFile(control, "control")
	pause := pauseFirst
	for {
		began := time.Now()
		p, err := os.StartProcess(self, slices.Concat([]string{"palyra-egress"}, args[1:]), &os.ProcAttr{
			Dir: "/", Env: []string{}, Files: []*os.File{nil, nil, os.Stderr, conn}, Sys: dieTogether()})
		if err != nil {
			return err
		}
		state, err := p.Wait()
		if err != nil {
			return err
		}
		if state.Success() {
			return nil
		}
		fmt.Fprintf(os.Stderr, "palyra-egress: ended (%s) and is started again\n", state)
		if time.Since(began) > longLife {
			pause = pauseFirst
		}
		time.Sleep(pause)
		pause = min(2*pause, pauseMost)
	}
}
