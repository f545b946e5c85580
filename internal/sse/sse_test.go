package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func all(r *Reader) (out []string, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return out, err
		}
		out = append(out, ev.Kind+" "+string(ev.Data))
	}
}

// TestReader: a stream's events, however its lines end and wherever it's cut.
func TestReader(t *testing.T) {
	const stream = "\ufeffdata: a\r\ndata:b\r\rdata: c\n\nevent: message\ndata\ndata\n\nid: 7\x01\nid: ok\nretry: 99999999\nretry: x\n\nevent: x\ndata: d\n\n:data: e\n\ndata: last"
	for n := range len(stream) {
		r := NewReader(io.MultiReader(strings.NewReader(stream[:n]), strings.NewReader(stream[n:])), 1<<10, "")
		got, err := all(r)
		if fmt.Sprintf("%q", got) != `["message a\nb" "message c" "message \n" "x d"]` || !errors.Is(err, io.EOF) || r.Last != "ok" || r.Retry != 99999999*time.Millisecond {
			t.Fatalf("cut at %d: %q, %v, id %q, retry %v", n, got, err, r.Last, r.Retry)
		}
	}
}

type endless struct{ text string }

func (e endless) Read(b []byte) (n int, err error) {
	for n+len(e.text) <= len(b) {
		n += copy(b[n:], e.text)
	}
	return n, nil
}

// TestLarge: an event has a bound, whatever it's made of, and one of just that size is taken.
func TestLarge(t *testing.T) {
	for _, text := range []string{"x", "data: x\n", ": x\r\n", "x\n"} {
		if got, err := all(NewReader(endless{text}, 1<<10, "")); !errors.Is(err, ErrLarge{1 << 10}) || len(got) > 0 {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if got, err := all(NewReader(strings.NewReader("data:12345\n\ndata:67890\n\n"), 10, "")); len(got) != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := all(NewReader(strings.NewReader("data:123456\n\n"), 10, "")); !errors.Is(err, ErrLarge{10}) {
		t.Error(err)
	}
}

// FuzzReader: no stream makes an event that is larger than it may be, or an id that no header can
// hold; and cutting it anywhere changes nothing.
func FuzzReader(f *testing.F) {
	f.Add([]byte("data: a\r\ndata:b\r\rid: 1\nretry: 5\ndata: c\n\n"))
	f.Add([]byte("\ufeff: x\n\nevent: message\ndata\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		const most = 64
		read := func(b io.Reader) (out []Event, r *Reader, last error) {
			r = NewReader(b, most, "")
			for {
				ev, err := r.Next()
				if err != nil {
					return out, r, err
				}
				out = append(out, ev)
			}
		}
		whole, r, err := read(bytes.NewReader(stream))
		total := 0
		for _, ev := range whole {
			if total += len(ev.Data); len(ev.Data) == 0 || len(ev.Data) > most || ev.Kind == "" {
				t.Fatalf("an event %q of %d bytes", ev.Kind, len(ev.Data))
			}
		}
		if total > len(stream) || !printable(r.Last) || len(r.Last) > maxID || r.Retry < 0 {
			t.Fatalf("%d bytes of %d, id %q, retry %v", total, len(stream), r.Last, r.Retry)
		}
		cut, o, other := read(iotest.OneByteReader(bytes.NewReader(stream)))
		if fmt.Sprint(cut) != fmt.Sprint(whole) || o.Last != r.Last || o.Retry != r.Retry || fmt.Sprint(other) != fmt.Sprint(err) {
			t.Fatalf("byte by byte: %q, %v; whole: %q, %v", cut, other, whole, err)
		}
	})
}
