package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"palyra/transport/api/apitest"
)

// TestNoWatchLeft: when the kernel has no watch for a connection to the unix socket, an
// owner's is served as ever, one of others is closed, and nothing of either stays.
func TestNoWatchLeft(t *testing.T) {
	var role atomic.Value
	role.Store(roleOwner)
	s, err := New(Config{Hub: apitest.NewHub(), Role: func(uint32) string { return role.Load().(string) }, Limits: Limits{Drain: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	socket := t.TempDir() + "/s"
	plain, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	nl, err := listenUnix(plain, s.owner, s.lim.Write)
	if err != nil {
		t.Fatal(err)
	}
	l := nl.(*unixListener)
	l.conn = func(*os.File) (net.Conn, error) { return nil, &net.OpError{Op: "file", Err: syscall.ENOSPC} }
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, Listener{Listener: l}) }()

	settled := func() {
		t.Helper()
		eventually(t, "no connection without a watch stays", func() bool { return len(l.threads) == 0 })
	}
	ask := func(method, path, body string) (int, int, error) {
		settled()
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}}}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://palyra"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			return 0, 0, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, len(b), err
	}
	for range 2 * unwatchedMost {
		if status, _, err := ask(http.MethodPost, "/api/v1/stop", `{"all":true,"deny_new":false}`); status != 200 || err != nil {
			t.Fatalf("the owner's stop: %d, %v", status, err)
		}
	}
	doc, err := s.openapi()
	if err != nil {
		t.Fatal(err)
	}
	if status, n, err := ask(http.MethodGet, "/api/v1/openapi.json", ""); status != 200 || n < len(doc) || err != nil {
		t.Errorf("a large answer: %d, %d bytes of %d, %v", status, n, len(doc), err)
	}
	for range unwatchedMost + 1 { // clients that leave
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		settled()
	}
	role.Store("admin")
	if status, _, err := ask(http.MethodGet, "/livez", ""); err == nil {
		t.Errorf("an admin without a watch: %d", status)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	settled()
}

// TestAcceptMakesRoom: without watches, as without descriptors, a connection gives way.
func TestAcceptMakesRoom(t *testing.T) {
	r := newRig(t)
	old := accepted(t, r, "tcp")
	inner := &failing{errs: []error{syscall.ENOSPC}, closed: make(chan struct{})}
	if _, err := newListener(inner, r.rooms, 0).Accept(); err != nil || inner.tries != 2 {
		t.Errorf("Accept: %v after %d tries", err, inner.tries)
	}
	if !old.closed.Load() {
		t.Error("the older connection stays")
	}
}

// TestDroppedIsNoRest: while connections are taken from the queue and closed, Accept goes on
// at once, since the owner may wait behind them, and closes no other, which may be the owner's.
func TestDroppedIsNoRest(t *testing.T) {
	r := newRig(t)
	guest := accepted(t, r, "tcp")
	inner := &failing{errs: []error{dropped{syscall.ENOSPC}, dropped{syscall.ENOSPC}, syscall.ENOSPC}, closed: make(chan struct{})}
	l := newListener(inner, r.rooms, 0)
	var pauses []time.Duration // before each error
	l.failed = func(error) {
		pauses = append(pauses, l.pause)
		if guest.closed.Load() {
			t.Errorf("a connection gave way for one of %d that were dropped", len(pauses))
		}
	}
	if _, err := l.Accept(); err != nil || inner.tries != 4 {
		t.Errorf("Accept: %v after %d tries", err, inner.tries)
	}
	if want := []time.Duration{0, 0, 0}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
}

// TestNoSecondDescriptor: a connection for which package net finds no descriptor is not lost.
func TestNoSecondDescriptor(t *testing.T) {
	plain, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	nl, err := listenUnix(plain, func(uint32) bool { return false }, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := nl.(*unixListener)
	c, err := net.Dial("unix", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l.conn = func(*os.File) (net.Conn, error) { return nil, &net.OpError{Op: "file", Err: syscall.EMFILE} }
	if _, err := l.Accept(); !short(err) {
		t.Fatalf("Accept: %v", err)
	}
	l.conn = net.FileConn
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the client reads %d bytes, %v", n, err)
	}
	late, err := net.Dial("unix", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	l.conn = func(*os.File) (net.Conn, error) { return nil, &net.OpError{Op: "file", Err: syscall.EMFILE} }
	if _, err := l.Accept(); !short(err) {
		t.Fatalf("Accept: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n, err := late.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the end the client reads %d bytes, %v", n, err)
	}
}

// TestAcceptEnds: an Accept that the end finds waiting, or that comes behind it, says that the
// listener is closed, which is no failure to log.
func TestAcceptEnds(t *testing.T) {
	plain, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenUnix(plain, nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		waits <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, behind := l.Accept()
	for _, err := range []error{<-waits, behind} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, want %v", err, net.ErrClosed)
		}
	}
}
