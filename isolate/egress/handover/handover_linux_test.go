package handover_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/isolate/egress/handover"
	"palyra/isolate/internal/sys"
)

const senderEnv = "PALYRA_TEST_SEND_SOCKETS"

// TestMain is also the process in a network namespace of its own, which sends sockets of it.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(senderEnv)
	if !ok {
		os.Exit(m.Run())
	}
	n, err := strconv.Atoi(text)
	if err == nil {
		var s *handover.Sockets
		if s, err = newSockets(n); err == nil {
			err = handover.Send(os.NewFile(3, "egress"), s)
		}
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

func newSockets(n int) (*handover.Sockets, error) {
	s := new(handover.Sockets)
	socket := func(family, kind int) (*os.File, error) {
		fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
		return os.NewFile(uintptr(fd), "socket"), err
	}
	var err error
	if s.UDP, err = socket(syscall.AF_INET, syscall.SOCK_DGRAM); err != nil {
		return nil, err
	}
	for range n {
		a, err4 := socket(syscall.AF_INET, syscall.SOCK_STREAM)
		b, err6 := socket(syscall.AF_INET6, syscall.SOCK_STREAM)
		if err := errors.Join(err4, err6); err != nil {
			return nil, err
		}
		s.TCP4, s.TCP6 = append(s.TCP4, a), append(s.TCP6, b)
	}
	return s, nil
}

// pair returns both ends of a connection.
func pair(t *testing.T) (cell, egress *os.File) {
	t.Helper()
	cell, egress, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cell.Close()
		egress.Close()
	})
	return cell, egress
}

// elsewhere has a process in another network namespace send n sockets of each kind, and returns them.
func elsewhere(t *testing.T, n int) *handover.Sockets {
	t.Helper()
	cell, egress := pair(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{senderEnv + "=" + strconv.Itoa(n)}
	cmd.ExtraFiles = []*os.File{cell}
	cmd.Stderr = new(strings.Builder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	err := cmd.Run()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("needs user namespaces:", err)
	}
	if err != nil {
		t.Fatal(err, cmd.Stderr)
	}
	s, err := handover.Receive(t.Context(), egress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestHandOver(t *testing.T) {
	for _, n := range []int{1, 124, 125, handover.MaxTCP} { // in 1, 1, 2 and 3 messages
		s := elsewhere(t, n)
		if len(s.TCP4) != n || len(s.TCP6) != n {
			t.Fatalf("%d and %d sockets, want %d", len(s.TCP4), len(s.TCP6), n)
		}
		for _, f := range append(append([]*os.File{s.UDP}, s.TCP4...), s.TCP6...) {
			if err := f.SetReadDeadline(time.Time{}); err != nil {
				t.Fatalf("%s can't be waited for: %v", f.Name(), err)
			}
		}
		s.Close()
	}
}

// TestReceiveRefuses sends what palyra-cell never sends. Nothing of it stays open.
func TestReceiveRefuses(t *testing.T) {
	good := elsewhere(t, 3)
	fds := func(files ...*os.File) (out []int) {
		for _, f := range files {
			out = append(out, int(f.Fd()))
		}
		return out
	}
	own, err := newSockets(3)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	bound, err := newSockets(1)
	if err != nil {
		t.Fatal(err)
	}
	defer bound.Close()
	if err := syscall.Bind(int(bound.TCP4[0].Fd()), &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	one := fds(good.UDP, good.TCP4[0], good.TCP6[0])
	type message struct {
		text string
		fds  []int
	}
	for name, c := range map[string]struct {
		messages []message
		want     string
	}{
		"good":              {[]message{{"S\x00\x01\x00\x01\x00\x00", one}}, ""},
		"no sockets":        {[]message{{"S\x00\x01\x00\x01\x00\x00", nil}}, "0 descriptors"},
		"too few":           {[]message{{"S\x00\x01\x00\x01\x00\x00", one[:2]}}, "2 descriptors"},
		"too many":          {[]message{{"S\x00\x01\x00\x00\x00\x00", one}}, "3 descriptors"},
		"no head":           {[]message{{"S", one}}, "not a message"},
		"another kind":      {[]message{{"T\x00\x01\x00\x01\x00\x00", one}}, "not a message"},
		"a longer head":     {[]message{{"S\x00\x01\x00\x01\x00\x00\x00", one}}, "message too long"},
		"no IPv4":           {[]message{{"S\x00\x00\x00\x01\x00\x00", one[:2]}}, "not a message"},
		"more than 256":     {[]message{{"S\x01\x01\x00\x01\x00\x00", one}}, "not a message"},
		"not from the head": {[]message{{"S\x00\x01\x00\x01\x00\x01", one[:2]}}, "not a message"},
		"kinds exchanged":   {[]message{{"S\x00\x01\x00\x01\x00\x00", []int{one[1], one[0], one[2]}}}, "socket 0: its SO_TYPE"},
		"families":          {[]message{{"S\x00\x01\x00\x01\x00\x00", []int{one[0], one[2], one[1]}}}, "socket 1: its SO_DOMAIN"},
		"a pipe":            {[]message{{"S\x00\x01\x00\x01\x00\x00", []int{one[0], one[1], int(nullFile(t).Fd())}}}, "socket 2: getsockopt"},
		"own network":       {[]message{{"S\x00\x01\x00\x01\x00\x00", fds(own.UDP, own.TCP4[0], own.TCP6[0])}}, "socket 0: its network"},
		"two networks":      {[]message{{"S\x00\x01\x00\x01\x00\x00", []int{one[0], one[1], int(own.TCP6[0].Fd())}}}, "socket 2: its network"},
		"bound":             {[]message{{"S\x00\x01\x00\x01\x00\x00", []int{one[0], int(bound.TCP4[0].Fd()), one[2]}}}, "socket 1: it's bound"},
		"no end":            {[]message{{"S\x01\x00\x01\x00\x00\x00", one}}, "3 descriptors, want 250"},
	} {
		cell, egress := pair(t)
		before := openFiles(t)
		for _, m := range c.messages {
			if err := sys.TrySendPacket(int(cell.Fd()), []byte(m.text), m.fds); err != nil {
				t.Fatal(err)
			}
		}
		s, err := handover.Receive(t.Context(), egress)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if s != nil {
			s.Close()
		}
		if n := openFiles(t); n != before {
			t.Errorf("%s: %d descriptors after, %d before", name, n, before)
		}
	}
}

func nullFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestPartly tries ends in the middle of several messages: the first's sockets are closed.
func TestPartly(t *testing.T) {
	s := elsewhere(t, 125)
	var first []int
	for _, f := range append(append([]*os.File{s.UDP}, s.TCP4...), s.TCP6...) {
		first = append(first, int(f.Fd()))
	}
	for name, c := range map[string]struct {
		then func(cell *os.File, cancel func())
		want error
	}{
		"the cell is gone":    {func(cell *os.File, _ func()) { cell.Close() }, io.EOF},
		"the call is over":    {func(_ *os.File, cancel func()) { cancel() }, context.Canceled},
		"others than sockets": {func(cell *os.File, _ func()) { sys.TrySendPacket(int(cell.Fd()), []byte("ready"), nil) }, nil},
	} {
		cell, egress := pair(t)
		before := openFiles(t)
		ctx, cancel := context.WithCancel(t.Context())
		if err := sys.TrySendPacket(int(cell.Fd()), []byte("S\x00\x7d\x00\x7d\x00\x00"), first[:250]); err != nil {
			t.Fatal(err)
		}
		closed := name == "the cell is gone"
		c.then(cell, cancel)
		got, err := handover.Receive(ctx, egress)
		cancel()
		if got != nil || err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if n := openFiles(t); n != before && !(closed && n == before-1) {
			t.Errorf("%s: %d descriptors after, %d before", name, n, before)
		}
	}
}

// TestSendNeverWaits sends to an end that is gone, and to one that doesn't read.
func TestSendNeverWaits(t *testing.T) {
	s, err := newSockets(1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	full, _ := pair(t)
	for range 1 << 20 {
		if err = handover.Send(full, s); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ETOOMANYREFS) {
		t.Errorf("to an end that doesn't read: %v, want EAGAIN", err)
	}
	cell, egress := pair(t)
	egress.Close()
	if err := handover.Send(cell, s); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("to an end that is gone: %v, want EPIPE", err)
	}
	if err := handover.Send(cell, &handover.Sockets{TCP4: s.TCP4}); err == nil {
		t.Error("sent without a socket for UDP")
	}
}

func TestAnswer(t *testing.T) {
	cell, egress := pair(t)
	heard := func() error {
		b := make([]byte, handover.MaxAnswer)
		n, err := cell.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return handover.ParseAnswer(b[:n])
	}
	if err := handover.Ready(egress); err != nil || heard() != nil {
		t.Error("ready isn't:", err)
	}
	if err := handover.Refuse(egress, "resource_exhausted"); err != nil {
		t.Error(err)
	}
	if r, ok := errors.AsType[*handover.Refused](heard()); !ok || r.Reason != "resource_exhausted" {
		t.Errorf("refused for %v", r)
	}
	for _, reason := range []string{"", "No", "two words", "a\n", strings.Repeat("a", 65)} {
		if handover.Refuse(egress, reason) == nil {
			t.Errorf("refused for %q, which is no code", reason)
		}
	}
}
