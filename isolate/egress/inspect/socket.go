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
	s := &socket{Closer: body, l: l, x: x, reader: body, writer: body, stream: l.g.watch.Stream()}
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
	x      *exchange
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
	if most, had := s.x.most.Answer, s.received.Load(); most > 0 && had+int64(n) > most {
		n, err = int(most-had), s.x.answerTooLong()
	}
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
	if most := s.x.most.Body; most > 0 && s.sent.Load()+int64(len(b)) > most {
		s.x.tooLong()
		return 0, errBody
	}
	n, err := s.writer.Write(b)
	s.sent.Add(int64(n))
	return n, err
}
