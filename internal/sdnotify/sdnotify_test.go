package sdnotify

import (
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func env(kv ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1]
			}
		}
		return ""
	}
}

// manager is the other side of a notify socket.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestStates(t *testing.T) {
	for _, kind := range []string{"path", "abstract"} {
		t.Run(kind, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "notify")
			if kind == "abstract" {
				if runtime.GOOS != "linux" {
					t.Skip("needs linux")
				}
				name = "@palyra-test-" + strings.ReplaceAll(name, "/", "-")
			}
			m := manager(t, name)
			n, err := Dial(env("NOTIFY_SOCKET", name))
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			for _, tc := range []struct {
				send func() error
				want string
			}{
				{func() error { return n.Status("opening the journal") }, "STATUS=opening the journal"},
				{func() error { return n.Ready("serving") }, "READY=1\nSTATUS=serving"},
				{n.Reloading, "RELOADING=1"},
				{n.Watchdog, "WATCHDOG=1"},
				{func() error { return n.Stopping("2 calls run") }, "STOPPING=1\nSTATUS=2 calls run"},
				// A status is foreign text in part: it must not become a variable.
				{func() error { return n.Status("a\nREADY=1\x00") }, "STATUS=a READY=1 "},
			} {
				if err := tc.send(); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 256)
				m.SetReadDeadline(time.Now().Add(time.Minute))
				k, err := m.Read(buf)
				if err != nil || string(buf[:k]) != tc.want {
					t.Errorf("got %q, %v, want %q", buf[:k], err, tc.want)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	n, err := Dial(env())
	if err != nil || n.Managed() || n.Ready("x") != nil || n.Close() != nil {
		t.Errorf("without a manager: %v %v", n, err)
	}
	var none *Notifier
	if err := none.Watchdog(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"relative", filepath.Join(t.TempDir(), "missing")} {
		if n, err := Dial(env("NOTIFY_SOCKET", name)); err == nil {
			t.Errorf("%q: dialled %v", name, n)
		}
	}
}

// TestManagerGone: a manager that went away is an error, not a hang.
func TestManagerGone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	m := manager(t, name)
	n, err := Dial(env("NOTIFY_SOCKET", name))
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if err := n.Watchdog(); err == nil {
		t.Error("sent to nobody without an error")
	}
}

func TestWatchdogInterval(t *testing.T) {
	for _, tc := range []struct {
		env  []string
		want time.Duration
		ok   bool
	}{
		{nil, 0, true},
		{[]string{"WATCHDOG_USEC", "30000000"}, 30 * time.Second, true},
		{[]string{"WATCHDOG_USEC", "30000000", "WATCHDOG_PID", "7"}, 30 * time.Second, true},
		{[]string{"WATCHDOG_USEC", "30000000", "WATCHDOG_PID", "8"}, 0, true},
		{[]string{"WATCHDOG_USEC", "soon"}, 0, false},
		{[]string{"WATCHDOG_USEC", "-1"}, 0, false},
		{[]string{"WATCHDOG_USEC", "9223372036854775807"}, 0, false},
	} {
		got, err := WatchdogInterval(env(tc.env...), 7)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%v: got %v, %v", tc.env, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		env  []string
		want string
		ok   bool
	}{
		{nil, "", true},
		{[]string{"LISTEN_FDS", "2", "LISTEN_PID", "7", "LISTEN_FDNAMES", "a:b"}, "a,b", true},
		{[]string{"LISTEN_FDS", "2", "LISTEN_PID", "7"}, ",", true},
		{[]string{"LISTEN_FDS", "2", "LISTEN_PID", "8", "LISTEN_FDNAMES", "a:b"}, "", true},
		{[]string{"LISTEN_FDS", "2"}, "", true},
		{[]string{"LISTEN_FDS", "2", "LISTEN_PID", "7", "LISTEN_FDNAMES", "a"}, "", false},
		{[]string{"LISTEN_FDS", "-1", "LISTEN_PID", "7"}, "", false},
		{[]string{"LISTEN_FDS", "65", "LISTEN_PID", "7"}, "", false},
		{[]string{"LISTEN_FDS", "x", "LISTEN_PID", "7"}, "", false},
	} {
		got, err := names(env(tc.env...), 7)
		if strings.Join(got, ",") != tc.want || (err == nil) != tc.ok {
			t.Errorf("%v: got %q, %v", tc.env, got, err)
		}
	}
}
