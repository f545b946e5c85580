package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/hub"
	"palyra/transport/behind"
)

// visitor returns a caller with room for some seats.
func visitor(c hub.Caller, room int, may func() error) *behind.Visitor {
	var mu sync.Mutex
	return &behind.Visitor{Caller: c, Hub: newDaemon(), May: may, Hold: func(int64) (func(), error) {
		mu.Lock()
		defer mu.Unlock()
		if room == 0 {
			return nil, errors.New("no room")
		}
		room--
		return sync.OnceFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			room++
		}), nil
	}}
}

func yes() error { return nil }

// TestSeatsGiveWay: a principal's unused seats make room for another of its own, those of its
// tokens never for one at the socket, nor the other way round.
func TestSeatsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHandler("test")
		ctx, stop := context.WithCancel(t.Context())
		wait := h.Begin(ctx)
		over := make(chan struct{})
		go func() { wait(); close(over) }()
		me, token, other := hub.Caller{User: "uid:1"}, hub.Caller{User: "uid:1", Token: "tok_1"}, hub.Caller{User: "uid:2"}
		vs := map[string]*behind.Visitor{"me": visitor(me, 1, yes), "token": visitor(token, 2, yes), "other": visitor(other, 1, yes)}
		sit := func(who, key string, want bool) {
			t.Helper()
			<-time.After(time.Second) // of the bubble: seats differ in age
			if _, err := h.take(key, ownerOf(vs[who]), vs[who]); (err == nil) != want {
				t.Errorf("%s takes %s: %v, want %v", who, key, err, want)
			}
		}
		has := func(keys ...string) {
			t.Helper()
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, key := range keys {
				if h.seats[key] == nil {
					t.Errorf("%s has gone", key)
				}
			}
			if len(h.seats) != len(keys) {
				t.Errorf("%d seats, want %v", len(h.seats), keys)
			}
		}
		sit("me", "a", true)
		sit("other", "b", true)
		sit("token", "c", true)
		sit("token", "d", true)
		sit("token", "e", true)
		has("a", "b", "d", "e")
		for _, key := range []string{"d", "e"} {
			h.mu.Lock()
			h.seats[key].open++
			h.mu.Unlock()
		}
		sit("token", "f", false)
		has("a", "b", "d", "e")
		sit("me", "g", true)
		has("b", "d", "e", "g")
		stop()
		<-over
		has()
		sit("other", "h", false)
	})
}

// TestSeatsEnd: with the rights of their callers, and an hour after the last request.
func TestSeatsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHandler("test")
		ctx, stop := context.WithCancel(t.Context())
		wait := h.Begin(ctx)
		over := make(chan struct{})
		go func() { wait(); close(over) }()
		var mu sync.Mutex
		var gone error
		a := visitor(hub.Caller{User: "uid:1"}, 9, func() error {
			mu.Lock()
			defer mu.Unlock()
			return gone
		})
		b := visitor(hub.Caller{User: "uid:2"}, 9, yes)
		for key, v := range map[string]*behind.Visitor{"a": a, "b": b} {
			if _, err := h.take(key, ownerOf(v), v); err != nil {
				t.Fatal(err)
			}
		}
		count := func() int {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.seats)
		}
		<-time.After(seatIdle / 2)
		if n := count(); n != 2 {
			t.Errorf("%d seats", n)
		}
		mu.Lock()
		gone = errors.New("revoked")
		mu.Unlock()
		<-time.After(2 * lookEvery)
		if n := count(); n != 1 {
			t.Errorf("%d seats after the token went", n)
		}
		<-time.After(seatIdle)
		if n := count(); n != 0 {
			t.Errorf("%d seats after an idle hour", n)
		}
		stop()
		<-over
	})
}

// TestHeadedArguments: an argument that is said in a header, too, is the same in both, or the call
// isn't made; a definition whose members the SDK panics on costs nothing.
func TestHeadedArguments(t *testing.T) {
	h := NewHandler("test")
	ctx, stop := context.WithCancel(t.Context())
	wait := h.Begin(ctx)
	defer wait()
	defer stop()
	v := visitor(hub.Caller{User: "uid:1"}, 100, yes)
	v.Server = "files"
	d := v.Hub.(*daemon)
	d.foreign.Items = []hub.ServerTool{
		{Name: "read", Definition: []byte(`{"name":"read","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`)},
		{Name: "odd", Definition: []byte(`{"name":"odd","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"\n"}}}}`)},
	}
	ask := func(tool, header string) int {
		t.Helper()
		v.Body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{"region":"a"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, tool)
		r := httptest.NewRequest(http.MethodPost, "/mcp/files", bytes.NewReader(v.Body))
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", headerVersion: "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool, "Mcp-Param-Region": header} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		if err := h.Serve(w, r, v); err != nil {
			t.Fatal(err)
		}
		return w.Code
	}
	for _, c := range []struct {
		tool, header string
		code, calls  int
	}{{"read", "a", 200, 1}, {"read", "b", 400, 1}, {"read", "", 400, 1}, {"odd", "b", 200, 2}} {
		if got := ask(c.tool, c.header); got != c.code || len(d.called()) != c.calls {
			t.Errorf("%+v: %d, %d calls", c, got, len(d.called()))
		}
	}
}
