package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// TestHidden: text that a person can't see isn't accepted unseen; text of any writing system is.
func TestHidden(t *testing.T) {
	for text, want := range map[string]rune{
		"plain":      0,
		"a\nb\tc\rd": 0,
		`a \u001b b`: 0, // these are characters that show
		"Größe, 語, עברית, العربية": 0,
		"می\u200cخواهم":            0, // a joiner between letters
		"👩\u200d💻":                 0,
		"❤\ufe0f\u200d🔥":           0,
		"\x1b[2J":                  0x1b,
		"a\bb":                     '\b',
		"a\fb":                     '\f',
		"a\x7fb":                   0x7f,
		"a\u009bb":                 0x9b,
		"a\u200bb":                 0x200b,
		"a\u200db":                 0x200d, // between letters that don't join
		"ب\u200c\u200c":            0x200c,
		"a\u200eb":                 0x200e,
		"a\u061cb":                 0x61c,
		"a\u2028b":                 0x2028,
		"a\u202eb":                 0x202e,
		"a\u2066b":                 0x2066,
		"a\u2060b":                 0x2060,
		"\ufeffa":                  0xfeff,
		"a\u00adb":                 0xad,
		"a\u3164b":                 0x3164,
		"a\U000e0041":              0xe0041,
		"a\U000e0101":              0xe0101,
		"❤\ufe0f\ufe0f":            0xfe0f,
	} {
		b, err := canon.Marshal(map[string]string{"description": text})
		if err != nil {
			t.Fatal(err)
		}
		if r, bad := hidden(b); r != want || bad != (want != 0) {
			t.Errorf("%+q: %U, %t; want %U", text, r, bad, want)
		}
	}
}

// TestInlet: what waits for a server that doesn't read is bounded in bytes, and a request is taken
// back while it waits.
func TestInlet(t *testing.T) {
	i := newInlet()
	large := make([]byte, maxQueuedBytes)
	if !i.put(1, large) || i.put(2, []byte("x")) {
		t.Error("one message of any length has room, and then none")
	}
	waits := make(chan error, 1)
	go func() { waits <- i.send(t.Context(), 3, []byte("three")) }()
	if !i.withdraw(1) || i.withdraw(1) {
		t.Error("a message that waits is withdrawn once")
	}
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := i.Read(b); err != nil || string(b[:n]) != "three\n" {
		t.Errorf("%q, %v", b[:n], err)
	}
	for id := range int64(maxQueued) {
		if !i.put(id, []byte("x")) {
			t.Fatalf("no room for message %d", id)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := i.send(ctx, 0, []byte("x")); i.put(0, []byte("x")) || !errors.Is(err, context.Canceled) {
		t.Errorf("too many messages: %v", err)
	}
	i.close()
	if err := i.send(t.Context(), 0, []byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("closed: %v", err)
	}
}

// TestClaim: a start is a call of the principal's for whom it was begun, once.
func TestClaim(t *testing.T) {
	g := New(Config{})
	s := newServing("bad", "ses_1", "uid:1", "id")
	g.byID[s.id] = s
	attach := func(user string) error {
		_, _, err := g.Attach(t.Context(), run.Attaching{Caller: hub.Caller{User: user}, Tool: hub.ToolMCPServe, Input: json.RawMessage(`{"id":"id","server":"bad"}`)})
		return err
	}
	for _, c := range []struct{ user, reason string }{{"uid:2", "server_died"}, {"uid:1", ""}, {"uid:1", "server_died"}} {
		if err := attach(c.user); fault.ReasonOf(err) != c.reason && (err != nil || c.reason != "") {
			t.Errorf("%s: %v", c.user, err)
		}
	}
}

// TestFaultBesideStart: an error is made while the server's run gets its name.
func TestFaultBesideStart(t *testing.T) {
	s := newServing("bad", "ses_1", "uid:1", "id")
	id := "run_1"
	done := make(chan error)
	go func() { done <- s.wrong("x") }()
	s.run.Store(&id)
	<-done
	if h := fault.HintOf(s.wrong("x")); !strings.Contains(h, id) {
		t.Error(h)
	}
}

// TestListCosts: however a server cuts its list of tools into pages, that and what it says between
// them is bounded for all of it.
func TestListCosts(t *testing.T) {
	note := `{"jsonrpc":"2.0","method":"n","params":"` + strings.Repeat("n", 1<<20) + `"}` + "\n"
	for _, c := range []struct {
		junk  int // bytes in a page
		notes int // before it
		says  string
		pages int // that are asked for, at most
	}{
		{junk: 1 << 20, says: "bytes", pages: 4},
		{notes: 4, says: "that answer nothing", pages: 4},
	} {
		s := newServing("bad", "ses_1", "uid:1", "id")
		pages, ended := 0, make(chan struct{})
		go func() {
			defer close(ended)
			in := bufio.NewScanner(s.in)
			for in.Scan() {
				var m struct{ ID int64 }
				_ = json.Unmarshal(in.Bytes(), &m)
				pages++
				for range c.notes {
					_, _ = s.Write([]byte(note))
				}
				_, _ = fmt.Fprintf(s, `{"jsonrpc":"2.0","id":%d,"result":{"tools":[],"nextCursor":"%d","junk":"%s"}}`+"\n", m.ID, pages, strings.Repeat("j", c.junk))
			}
			if err := in.Err(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := s.list(t.Context()); fault.ReasonOf(err) != "server_protocol" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
		s.in.close()
		if <-ended; pages > c.pages {
			t.Errorf("%+v: it was asked for %d pages", c, pages)
		}
	}
}

// TestLeftOut: a definition that clients can't read is found, each part of it, and no other.
func TestLeftOut(t *testing.T) {
	for definition, want := range map[string]string{
		`{"name":"x","inputSchema":{"type":"object"}}`: "",
		`{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"object"},"annotations":{"title":"X","readOnlyHint":true,"destructiveHint":false,"more":[]}}`: "",
		`{"name":"x","inputSchema":{}}`:                                                     "inputSchema",
		`{"name":"x","inputSchema":{"type":["object"]}}`:                                    "inputSchema",
		`{"name":"x","inputSchema":{"Type":"object"}}`:                                      "inputSchema",
		`{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}`:      "outputSchema",
		`{"name":"x","inputSchema":{"type":"object"},"annotations":[]}`:                     "annotations is",
		`{"name":"x","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"yes"}}`: "readOnlyHint",
		`{"name":"x","inputSchema":{"type":"object"},"annotations":{"openWorldHint":null}}`: "openWorldHint",
		`{"name":"x","inputSchema":{"type":"object"},"annotations":{"title":7}}`:            "title",
		`{"name":7}`: "definition",
		`{"name":"resources/read","inputSchema":{"type":"object"}}`: "method",
	} {
		if why := leftOut([]byte(definition)); (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", definition, why, want)
		}
	}
}
