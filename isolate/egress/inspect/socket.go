package inspect

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"palyra/isolate/evidence"
)

// switches makes a WebSocket of an answer.
func (l *link) switches(x *exchange, res *http.Response) error {
	body, ok := res.Body.(io.ReadWriteCloser)
	if !ok || res.Request.Header.Get("Upgrade") == "" || !strings.EqualFold(res.Header.Get("Upgrade"), "websocket") {
		return errors.New("the host switches protocols unasked")
	}
	if !l.hold(x, res.Header) {
		return errHeads
	}
	x.status = res.StatusCode
	s := &socket{Closer: body, l: l, reader: body, writer: body, stream: l.g.watch.Stream()}
	if v := l.g.values; v != nil && x.hasUse {
		v.cleanHeader(res.Header)
		s.reader = newCleaner(body, v)
	}
	x.socket, res.Body = s, s
	return nil
}

// socket is what follows a 101: bytes each way, which httputil passes on in two goroutines, that
// may end a little later than the request. Frames aren't read: what a program's mask (RFC 6455
// §5.3) makes of a placeholder isn't looked for.
type socket struct {
	io.Closer
	l      *link
	reader io.Reader // of the host, cleaned of values
	writer io.Writer
	stream *Stream // of Write's goroutine

	sent, received atomic.Int64
}

// Read reads what the host says.
func (s *socket) Read(b []byte) (int, error) {
	if !s.l.begin() {
		return 0, net.ErrClosed // values may be gone
	}
	defer s.l.work.Done()
	n, err := s.reader.Read(b)
	s.received.Add(int64(n))
	return n, err
}

// Write passes on what the program says.
func (s *socket) Write(b []byte) (int, error) {
	if !s.l.begin() {
		return 0, net.ErrClosed // the call may have ended, and no leak would be recorded
	}
	defer s.l.work.Done()
	if name := s.stream.Next(b); name != "" {
		s.l.leak(name, evidence.LeakBody)
		return 0, errLeak
	}
	n, err := s.writer.Write(b)
	s.sent.Add(int64(n))
	return n, err
}
