// Package sse reads streams of server-sent events (HTML § 9.2).
//
//	r := sse.NewReader(body, 1<<20, "")
//	for {
//		ev, err := r.Next() // io.EOF at the end
//	}
//
// Lines end with LF, CR or both, and where the stream is cut into reads changes nothing. An event
// that the stream's end cuts is dropped, as the standard says: whether a stream was whole is for
// its reader to know.
//
// It doesn't protect against a stream that goes on for ever, in events or in comments.
package sse

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// maxID is the number of bytes of an event's id, which a client puts into a header.
const maxID = 1 << 10

// Event is an event that has data.
type Event struct {
	Kind string // "message" if the stream names none
	Data []byte
}

// ErrLarge is the error of an event that is too large. All its lines count, comments too.
type ErrLarge struct{ Most int }

// Error implements error.
func (e ErrLarge) Error() string { return fmt.Sprintf("an event has more than %d bytes", e.Most) }

// Reader reads a stream. It belongs to one goroutine.
type Reader struct {
	// Last is the id of the last event that has one; "" for none.
	Last string
	// Retry is the time before the stream is resumed, which a server chooses; 0: it names none.
	Retry time.Duration

	b     *bufio.Reader
	most  int
	begun bool
	cr    bool // the last line ended with CR, which LF may follow
}

// NewReader returns a reader of a stream whose events have at most most bytes. last is the id of
// the event behind which the stream goes on, "" for one from the beginning.
func NewReader(r io.Reader, most int, last string) *Reader {
	return &Reader{Last: last, b: bufio.NewReader(r), most: most}
}

// Next returns the next event that has data. io.EOF ends the stream.
func (r *Reader) Next() (Event, error) {
	var data []byte
	kind, some, size := "", false, 0
	for {
		line, err := r.line(r.most - size)
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if some && len(data) > 0 {
				if kind == "" {
					kind = "message"
				}
				return Event{kind, data}, nil
			}
			data, kind, some, size = nil, "", false, 0
			continue
		}
		size += len(line) + 1
		field, value, _ := bytes.Cut(line, []byte(":")) // a comment's field is ""
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if some {
				data = append(data, '\n')
			}
			data, some = append(data, value...), true
		case "event":
			kind = string(value)
		case "id":
			// One that no header can hold can't be resumed from.
			if id := string(value); len(id) <= maxID && printable(id) {
				r.Last = id
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				r.Retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// printable reports whether all of s is ASCII from ' ' to '~'.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// line reads a line that LF, CR or both end, of at most most bytes.
func (r *Reader) line(most int) ([]byte, error) {
	if !r.begun {
		r.begun = true
		if b, err := r.b.Peek(3); err == nil && string(b) == "\ufeff" {
			r.b.Discard(3)
		}
	}
	var line []byte
	for {
		if _, err := r.b.Peek(1); err != nil {
			return nil, err
		}
		here, _ := r.b.Peek(r.b.Buffered())
		if r.cr && here[0] == '\n' { // the rest of CR LF
			r.cr = false
			r.b.Discard(1)
			continue
		}
		r.cr = false
		part, end := here, bytes.IndexByte(here, '\n')
		if end >= 0 {
			part = here[:end]
		}
		if cr := bytes.IndexByte(part, '\r'); cr >= 0 {
			part, end = here[:cr], cr
		}
		if len(part) > 0 && len(line)+len(part) > most {
			return nil, ErrLarge{r.most}
		}
		line = append(line, part...)
		if end >= 0 {
			r.cr = here[end] == '\r'
			r.b.Discard(end + 1)
			return line, nil
		}
		r.b.Discard(len(part))
	}
}
