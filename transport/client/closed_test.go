package client

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// closing listens on a socket, closes the first n connections without an answer,
// and answers requests on the others. It returns the socket and how many came.
func closing(t *testing.T, n int64) (socket string, came *atomic.Int64) {
	t.Helper()
	socket, came = filepath.Join(t.TempDir(), "s"), new(atomic.Int64)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if came.Add(1) > n {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 32\r\nConnection: close\r\n\r\n"+
						`{"cancelled":3,"deny_new":false}`)
				}
			}
			c.Close()
		}
	}()
	return socket, came
}

// TestClosedConnection: a daemon that closes a connection before it answers is
// asked again where that is harmless, as the emergency stop is. If it goes on
// closing them, the error says so, and not that some reader has left.
func TestClosedConnection(t *testing.T) {
	socket, came := closing(t, 3)
	c, err := New(Config{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := hub.Stop.Do(t.Context(), c, hub.Caller{}, hub.StopRequest{All: true}); err != nil || s.Cancelled != 3 || came.Load() != 4 {
		t.Errorf("stop at the fourth connection: %+v, %v, %d connections", s, err, came.Load())
	}
	socket, came = closing(t, 1000)
	if c, err = New(Config{Socket: socket}); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"stop": func() error {
			_, err := hub.Stop.Do(t.Context(), c, hub.Caller{}, hub.StopRequest{All: true})
			return err
		},
		"status": func() error { _, err := hub.GetStatus.Do(t.Context(), c, hub.Caller{}, hub.None{}); return err },
		"reload": func() error { _, err := hub.Reload.Do(t.Context(), c, hub.Caller{}, hub.None{}); return err },
	} {
		came.Store(0)
		err := ask()
		if fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != "connection_lost" || !strings.Contains(fault.HintOf(err), "in use") {
			t.Errorf("%s: %v, hint %q", name, err, fault.HintOf(err))
		}
		if n := came.Load(); name == "reload" && n != 1 || name != "reload" && n != 1+attempts {
			t.Errorf("%s was sent %d times", name, n)
		}
	}
}
