package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/isolate/evidence"
)

func TestMessages(t *testing.T) {
	for _, want := range []Request{
		{},
		{Version: Version, Order: Order{Rules: []string{"example.org:443"},
			Limits: Limits{Wall: time.Second, Idle: 2, Open: 3, Connections: 4, Sent: 5, Received: 1 << 50, Names: 7, Queries: 8, Rate: 9, QueryRate: 10}}},
	} {
		b, err := Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Request
		if err := Decode(b, &got, MaxRequest); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	for _, bad := range []string{"", "{", `{"version":1,"version":1}`, `{"verse":1}`, `{"order":{"limits":{"wall_ns":"1s"}}}`, `{}{}`,
		`{"version":1}` + strings.Repeat(" ", MaxRequest), strings.Repeat("[", 100)} {
		if err := Decode([]byte(bad), new(Request), MaxRequest); err == nil {
			t.Errorf("%.40q was taken", bad)
		}
	}
}

func TestLimits(t *testing.T) {
	l, err := Limits{Open: 7}.Within()
	if err != nil || l.Open != 7 || l.Names != 256 || l.Wall != 24*time.Hour {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []Limits{{Wall: -1}, {Wall: 25 * time.Hour}, {Idle: -1}, {Open: 1025}, {Connections: -1}, {Sent: 1<<50 + 1}, {Received: -1}, {Names: 4097}, {Queries: -1}, {Rate: 1<<20 + 1}, {QueryRate: -1}} {
		if _, err := bad.Within(); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestEvidence(t *testing.T) {
	want := &evidence.Egress{Basis: evidence.Reported, Queries: 1, Sent: 2, Received: 3,
		Connections: []evidence.Connection{{Host: "a.example", Port: 443, Address: "192.0.2.1", Outcome: evidence.ConnClosed, Sent: 2, Received: 3, DurationNS: 4}},
		Denied:      []evidence.Denial{{Host: "b.example", Why: evidence.DenyNotListed, Times: 1}}}
	b, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseEvidence(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	// What a broker that was taken over may say: no more than a broker, in no other characters.
	for name, change := range map[string]func(*evidence.Egress){
		"escape":      func(e *evidence.Egress) { e.Connections[0].Host = "\x1b[2J" },
		"long":        func(e *evidence.Egress) { e.Denied[0].Host = strings.Repeat("a", MaxText+1) },
		"letters":     func(e *evidence.Egress) { e.Denied[0].Why = "ä" },
		"limit":       func(e *evidence.Egress) { e.Denied[0].Limit = "\x1b" },
		"negative":    func(e *evidence.Egress) { e.Connections[0].Sent = -1 },
		"port":        func(e *evidence.Egress) { e.Denied[0].Port = 65536 },
		"total":       func(e *evidence.Egress) { e.Received = -1 },
		"connections": func(e *evidence.Egress) { e.Connections = make([]evidence.Connection, evidence.MaxConnections+1) },
		"requests":    func(e *evidence.Egress) { e.Requests = make([]evidence.Request, evidence.MaxRequests+1) },
		"files":       func(e *evidence.Egress) { e.Kept = make([]evidence.Kept, 1) },
		"more files":  func(e *evidence.Egress) { e.MoreKept = 1 },
		"unread":      func(e *evidence.Egress) { e.Unread = 1 },
		"leaks":       func(e *evidence.Egress) { e.Leaks = make([]evidence.Leak, evidence.MaxLeaks+1) },
		"path":        func(e *evidence.Egress) { e.Requests = []evidence.Request{{Path: strings.Repeat("a", MaxPath+1)}} },
		"method":      func(e *evidence.Egress) { e.Requests = []evidence.Request{{Method: "G\x1b"}} },
		"uses":        func(e *evidence.Egress) { e.Requests = []evidence.Request{{Uses: make([]string, evidence.MaxUses+1)}} },
		"use":         func(e *evidence.Egress) { e.Requests = []evidence.Request{{Uses: []string{"\n"}}} },
		"body":        func(e *evidence.Egress) { e.Requests = []evidence.Request{{Received: -1}} },
		"leak":        func(e *evidence.Egress) { e.Leaks = []evidence.Leak{{Name: "T", Where: "bo\x00dy"}} },
		"leaked file": func(e *evidence.Egress) { e.Leaks = []evidence.Leak{{Name: "T", Where: "file", Path: "a"}} },
		"denials":     func(e *evidence.Egress) { e.Denied = make([]evidence.Denial, evidence.MaxDenied+1) },
	} {
		e, err := ParseEvidence(b)
		if err != nil {
			t.Fatal(err)
		}
		change(e)
		bad, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseEvidence(bad); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	// The fullest evidence fits.
	e := &evidence.Egress{}
	for range evidence.MaxConnections {
		s := strings.Repeat(`"`, MaxText)
		e.Connections = append(e.Connections, evidence.Connection{Host: s, Address: s, Outcome: s, ServerName: s, TLS: "1.3", Sent: 1 << 50, Received: 1 << 50, DurationNS: 1 << 50, Port: 65535})
	}
	for range evidence.MaxDenied {
		e.Denied = append(e.Denied, evidence.Denial{Host: strings.Repeat(`"`, MaxText), Port: 65535, Why: evidence.DenyProxy, Limit: strings.Repeat(`"`, MaxText), Times: 1 << 50})
	}
	s := strings.Repeat(`"`, MaxText)
	for range evidence.MaxRequests {
		e.Requests = append(e.Requests, evidence.Request{Host: s, Port: 65535, Method: s[:64], Path: s[:MaxPath], Status: 999, Refused: true, Sent: 1 << 50, Received: 1 << 50,
			Uses: slices.Repeat([]string{s[:64]}, evidence.MaxUses)})
	}
	for range evidence.MaxLeaks {
		e.Leaks = append(e.Leaks, evidence.Leak{Name: s, Host: s, Port: 65535, Where: s})
	}
	if b, err = Encode(e); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseEvidence(b); err != nil {
		t.Errorf("%d bytes: %v", len(b), err)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{"": "", "a.example": "a.example", "a\x00ä\x1b": "a????", strings.Repeat("x", 400): strings.Repeat("x", 300)} {
		if got := Plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzEvidence(f *testing.F) {
	f.Add([]byte(`{"basis":"reported","queries":1,"sent_bytes":2,"received_bytes":3,"denied":[{"host":"a.example","why":"not_listed","times":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseEvidence(data)
		if err != nil {
			return
		}
		for _, d := range e.Denied {
			if Plain(d.Host) != d.Host || d.Times < 0 {
				t.Errorf("took %+v", d)
			}
		}
	})
}
