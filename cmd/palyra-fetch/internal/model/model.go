// Package model is model.turn as palyra-fetch runs it: one question to a language model, or to one
// that makes vectors of texts.
//
//	palyra-fetch model.turn DIALECT URL MODEL [header:NAME=VALUE | secret:PLACE=VARIABLE]…
//	palyra-fetch model.turn scripted - MODEL
//
// Standard input is a turn.Request, standard output turn.Events, a line each, written as they come.
// docs/formats/turn.md has both; package way has the words behind the model.
//
// The exit status is 0 behind an End, 1 behind an Error, and else one of package toolproto, with
// the reason on standard error: the arguments or the request are none, or no reader is left.
//
// # What holds where
//
// It asks once: whether to ask again is the caller's to decide, and a call of its own. A redirect
// isn't followed, an answer that is compressed isn't read. Package provider bounds what comes, this
// package the head of an answer, and how long a provider may be quiet. The cell bounds the whole.
//
// It doesn't protect against what a provider answers.
package model

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"palyra/agentloop/provider"
	"palyra/agentloop/turn"
	"palyra/cmd/palyra-fetch/internal/way"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// maxQuiet is how long a provider may send nothing: before its answer, too, since some models think
// for minutes and some providers say nothing meanwhile. palyra-egress ends a connection that is
// silent for five minutes: this is told first, as the answer's error.
const maxQuiet = 4 * time.Minute

// maxFailure is how much of the body of an HTTP error is read.
const maxFailure = 64 << 10

// Main runs the program and returns the exit status.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&program{getenv: os.Getenv, quiet: maxQuiet}).main(args, stdin, stdout, stderr)
}

type program struct {
	getenv        func(string) string
	quiet         time.Duration
	testOnlyRoots *x509.CertPool // nil: the cell's
	counted       *turn.Usage    // by the provider, before it failed; nil: nothing
}

func (p *program) main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := turn.Writer{W: stdout}
	err := p.run(args, stdin, out.Write)
	if failed, ok := errors.AsType[*turn.Error](err); ok {
		if err = out.Write(turn.Event{Error: failed, Usage: p.counted}); err == nil {
			return int(toolproto.Failed)
		}
	}
	if err == nil {
		return int(toolproto.Done)
	}
	status, f := toolproto.Fail(err)
	fmt.Fprintf(stderr, "palyra-fetch: %s\n", f.Error.Text)
	return int(status)
}

func usage(err error) error { return fault.New(fault.Usage, "invalid_input", "ask model", err) }

// run emits the answer. A *turn.Error says why there is none.
func (p *program) run(args []string, stdin io.Reader, emit func(turn.Event) error) error {
	if len(args) < 4 || args[0] != turn.Tool {
		return usage(errors.New("usage: palyra-fetch " + turn.Tool + " DIALECT URL MODEL {header:NAME=VALUE | secret:PLACE=VARIABLE}"))
	}
	dialect, model := args[1], args[3]
	if len(model) == 0 || len(model) > 256 {
		return usage(fmt.Errorf("a model's name has 1 to 256 bytes, this one %d", len(model)))
	}
	text, err := io.ReadAll(io.LimitReader(stdin, turn.MaxRequest+1))
	if err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	req, err := turn.ParseRequest(text)
	if err != nil {
		return err
	}
	if dialect == turn.Scripted {
		if args[2] != "-" || len(args) > 4 {
			return usage(errors.New("the scripted provider has no URL but -, and nothing is sent to it"))
		}
		if req.Embed != nil {
			return provider.Hash(req.Embed, emit)
		}
		return provider.Play(req, emit)
	}
	w, err := way.Parse(args[2], args[4:], p.getenv)
	if err != nil {
		return usage(err)
	}
	q, err := provider.Encode(dialect, model, req)
	if err != nil {
		return err
	}
	typ, decode := "text/event-stream", func(body io.Reader) (err error) {
		p.counted, err = provider.Decode(dialect, body, emit)
		return err
	}
	if req.Embed != nil {
		typ, decode = "application/json", func(body io.Reader) error { return provider.DecodeVectors(body, req.Embed, emit) }
	}
	return p.ask(w, q, typ, decode)
}

// kinds says what types of answers are.
var kinds = map[string]string{"text/event-stream": "a stream of events", "application/json": "JSON"}

// errQuiet ends an exchange with a provider that says nothing.
var errQuiet = errors.New("the provider said nothing")

// ask puts a question to a provider, once. Its answer is of the type wants, and read by decode.
func (p *program) ask(w way.Way, q provider.Question, wants string, decode func(body io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	timer := time.AfterFunc(p.quiet, func() { cancel(fmt.Errorf("%w for %v", errQuiet, p.quiet)) })
	defer timer.Stop()
	var answered atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { answered.Store(true); timer.Reset(p.quiet) }})

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.At.URL().JoinPath(q.Path).String(), bytes.NewReader(q.Body))
	if err != nil {
		return usage(err)
	}
	for name, value := range q.Headers {
		req.Header.Set(name, value)
	}
	for name, values := range w.Headers {
		req.Header[name] = values
	}
	client := w.Client(p.testOnlyRoots)
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return lost(ctx, err, answered.Load())
	}
	defer res.Body.Close()
	body := &watched{res.Body, timer, p.quiet, nil}
	typ, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if errors.Is(err, mime.ErrInvalidMediaParameter) {
		err = nil
	}
	switch e := res.Header.Get("Content-Encoding"); {
	case res.StatusCode != http.StatusOK:
		b, _ := io.ReadAll(io.LimitReader(body, maxFailure)) // the status says enough
		return provider.Failure(res.StatusCode, res.Header.Get, b, time.Now())
	case e != "" && e != "identity":
		return malformed(fmt.Sprintf("the answer is encoded as %.80q, which wasn't asked for", e))
	case err != nil || typ != wants:
		return malformed(fmt.Sprintf("the answer is %.80q, and not %s", typ, kinds[wants]))
	}
	err = decode(body)
	if _, ok := errors.AsType[*turn.Error](err); !ok && body.err != nil && errors.Is(err, body.err) {
		return lost(ctx, body.err, false)
	}
	return err
}

func malformed(text string) error { return &turn.Error{Class: turn.Malformed, Message: text} }

// watched is a body whose reader isn't left waiting.
type watched struct {
	body  io.Reader
	timer *time.Timer
	quiet time.Duration
	err   error // of the body, if not io.EOF
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.body.Read(b)
	if n > 0 {
		w.timer.Reset(w.quiet)
	}
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// lost says why there is no answer, or not the rest of one. head is true if the head of one came.
func lost(ctx context.Context, err error, head bool) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL
	}
	cause := context.Cause(ctx)
	op, broken := errors.AsType[*net.OpError](err)
	timeout, _ := errors.AsType[net.Error](err)
	_, foreign := errors.AsType[*tls.CertificateVerificationError](err)
	class := turn.Unreachable
	switch cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); {
	case errors.Is(cause, errQuiet):
		err, class = cause, turn.TimedOut
	case broken && op.Op == "dial": // in whatever way
	case timeout != nil && timeout.Timeout():
		class = turn.TimedOut
	case foreign:
		class = turn.Permanent
	case head && !cut && !broken: // something came, and isn't an answer of HTTP
		class = turn.Malformed
	}
	return provider.Lost(class, err)
}
