// Package sdnotify speaks to the service manager that started this process. It tells the
// process's state (sd_notify(3)) and that it is alive (WATCHDOG=1), and takes over passed
// sockets (sd_listen_fds(3)).
//
//	n, err := sdnotify.Dial(os.Getenv)      // without a manager, one that says nothing
//	ls, err := sdnotify.Listeners(os.Getenv, os.Getpid())
//	n.Ready("serving")
//
// Dial early: the connection outlives a confinement that forbids connecting.
//
// The package reads the variables and leaves them. A caller that starts other processes
// builds their environment itself.
//
// The package believes the environment. The parent of the process can give it any socket,
// just as it could start any program.
package sdnotify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier sends states to the service manager. The zero Notifier, and a nil
// one, have no manager and send nothing. It is safe for concurrent use.
type Notifier struct {
	conn *net.UnixConn // nil: no manager listens
}

// Dial connects to NOTIFY_SOCKET. Without that variable it returns a Notifier
// that sends nothing.
func Dial(getenv func(string) string) (*Notifier, error) {
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return &Notifier{}, nil
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("notify socket: %q is neither a path nor an abstract name", name)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notify socket: %w", err)
	}
	return &Notifier{conn}, nil
}

// Managed reports whether a service manager listens.
func (n *Notifier) Managed() bool { return n != nil && n.conn != nil }

// Close ends the connection.
func (n *Notifier) Close() error {
	if !n.Managed() {
		return nil
	}
	return n.conn.Close()
}

// Ready says that start-up, or a reload, is finished.
func (n *Notifier) Ready(status string) error { return n.send("READY=1", statusLine(status)) }

// Status describes the process's state in one line.
func (n *Notifier) Status(status string) error { return n.send(statusLine(status)) }

// Reloading says that the configuration is read again; Ready ends that.
func (n *Notifier) Reloading() error { return n.send("RELOADING=1") }

// Stopping says that the process is about to end.
func (n *Notifier) Stopping(status string) error { return n.send("STOPPING=1", statusLine(status)) }

// Watchdog says that the process is alive.
func (n *Notifier) Watchdog() error { return n.send("WATCHDOG=1") }

// statusLine keeps a status to its line: the manager would read text behind a newline as
// another variable.
func statusLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return "STATUS=" + s
}

// writeTimeout bounds a send: the manager's queue can be full.
const writeTimeout = time.Second

func (n *Notifier) send(lines ...string) error {
	if !n.Managed() {
		return nil
	}
	n.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := n.conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify socket: %w", err)
	}
	return nil
}

// WatchdogInterval returns how long the manager waits for a Watchdog before it kills the
// process; 0 if it doesn't. pid is this process: WATCHDOG_PID may name another.
func WatchdogInterval(getenv func(string) string, pid int) (time.Duration, error) {
	usec := getenv("WATCHDOG_USEC")
	if usec == "" {
		return 0, nil
	}
	if p := getenv("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC %q: want a number of microseconds, at most a day", usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Listener is a socket that the manager opened.
type Listener struct {
	Name         string // FileDescriptorName= of its socket unit
	net.Listener        // nil: Netlink has it
	Netlink      *os.File
}

// Close closes the socket.
func (l Listener) Close() error {
	if l.Netlink != nil {
		return l.Netlink.Close()
	}
	return l.Listener.Close()
}

// firstFD is SD_LISTEN_FDS_START, sd_listen_fds(3).
const firstFD = 3

// maxFDs bounds LISTEN_FDS.
const maxFDs = 64

// names returns the names of the descriptors from firstFD on that were passed to
// the process pid.
func names(getenv func(string) string, pid int) ([]string, error) {
	count := getenv("LISTEN_FDS")
	if count == "" || getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return nil, nil // not for us: left behind by another process
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxFDs {
		return nil, fmt.Errorf("LISTEN_FDS %q: want a number up to %d", count, maxFDs)
	}
	list := make([]string, n)
	if given := getenv("LISTEN_FDNAMES"); given != "" {
		parts := strings.Split(given, ":")
		if len(parts) != n {
			return nil, fmt.Errorf("LISTEN_FDNAMES %q: %d names for %d descriptors", given, len(parts), n)
		}
		copy(list, parts)
	}
	return list, nil
}
