package openai

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"palyra/hub"
	"palyra/transport/api"
)

// stream writes server-sent events. It begins with the first: until then the answer can be an
// error's.
type stream struct {
	w     http.ResponseWriter
	begun bool
}

// send sends an event. A kind of "" has none.
func (s *stream) send(kind string, data any) error {
	b, err := encode(data)
	if err != nil {
		return err
	}
	return s.write(kind, b)
}

func (s *stream) write(kind string, data []byte) error {
	var b bytes.Buffer
	if kind != "" {
		b.WriteString("event: " + kind + "\n")
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	return s.put(b.Bytes())
}

// beat sends a comment, so that nothing on the way takes the connection for dead.
func (s *stream) beat(comment string) error { return s.put([]byte(": " + comment + "\n\n")) }

func (s *stream) put(b []byte) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", hub.MediaSSE)
		s.w.WriteHeader(http.StatusOK)
	}
	if _, err := s.w.Write(b); err != nil {
		return errGone
	}
	if http.NewResponseController(s.w).Flush() != nil {
		return errGone
	}
	return nil
}

// fail ends a stream with an error, as the path's clients expect it. One that hasn't begun is
// answered with the error as any request.
func (s *stream) fail(r *http.Request, err error) error {
	if err == nil || !s.begun {
		return err
	}
	if errors.Is(err, errGone) || r.Context().Err() != nil && context.Cause(r.Context()) == context.Canceled {
		return nil
	}
	f := flawOfError(err)
	kind := ""
	if r.URL.Path != pathChat {
		kind = "error"
	}
	_ = s.send(kind, f.document(r.URL.Path))
	return nil
}

// flawOfError is an error in the client's words. The hub's are as the caller may see them.
func flawOfError(err error) *flaw {
	var f *flaw
	if errors.As(err, &f) {
		return f
	}
	p := api.ProblemOf(err, "", true)
	return flawOf(&p)
}
