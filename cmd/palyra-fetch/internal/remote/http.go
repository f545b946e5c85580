package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
)

// ended is an error that ends the program.
type ended struct{ error }

// fatal returns err if it ends the program.
func fatal(err error) error {
	if _, ok := errors.AsType[ended](err); ok {
		return err
	}
	return nil
}

// do asks once, and follows redirects to where the server is. sent is false if nothing of it left.
func (r *relay) do(ctx context.Context, method string, body []byte, more http.Header) (res *http.Response, sent bool, err error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	at := r.at
	for hop := 0; ; hop++ {
		req, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body)) // it knows how to send the body again
		if err != nil {
			return nil, false, err
		}
		req.Header = r.headers.Clone()
		for name, values := range more {
			req.Header[name] = values
		}
		if res, err = r.client.Do(req); err != nil {
			if u, ok := errors.AsType[*url.Error](err); ok {
				err = u.Err // without the URL
			}
			return nil, connected.Load(), err
		}
		if res.StatusCode/100 != 3 {
			return res, true, nil
		}
		res.Body.Close()
		next, err := at.Follow(res.Header.Get("Location"))
		switch {
		case err != nil:
			return nil, false, fmt.Errorf("a redirect: %w", err)
		case res.StatusCode != http.StatusTemporaryRedirect && res.StatusCode != http.StatusPermanentRedirect:
			return nil, false, fmt.Errorf("a redirect with status %d, which isn't followed: it may lose the message", res.StatusCode)
		case next.Rule() != at.Rule() || next.TLS() != at.TLS():
			return nil, false, fmt.Errorf("a redirect to %s, which isn't followed: a server is added with the URL where it is", next.Rule())
		case hop == maxHops:
			return nil, false, fmt.Errorf("more than %d redirects", maxHops)
		}
		at = next
	}
}

// post sends a message, in a session or, if it's "", in none.
func (r *relay) post(ctx context.Context, m *message, session string) (*http.Response, bool, error) {
	h := make(http.Header)
	if m.method != "initialize" {
		h = r.sessionHeaders(session)
	}
	h["Content-Type"], h["Accept"] = []string{"application/json"}, []string{"application/json, text/event-stream"}
	return r.do(ctx, http.MethodPost, m.line, h)
}

func (r *relay) sessionHeaders(session string) http.Header {
	h := make(http.Header)
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version != "" {
		h.Set("Mcp-Protocol-Version", r.version)
	}
	return h
}

func (r *relay) current() (session string, epoch int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session, r.epoch
}

// postIn sends a message in the session, and in a new one where the server has forgotten it.
func (r *relay) postIn(ctx context.Context, m *message) (*http.Response, bool, error) {
	if m.method == "initialize" {
		return r.post(ctx, m, "")
	}
	session, epoch := r.current()
	res, sent, err := r.post(ctx, m, session)
	if err != nil || res.StatusCode != http.StatusNotFound || session == "" {
		return res, sent, err
	}
	res.Body.Close()
	if err := r.renew(ctx, epoch); err != nil {
		return nil, false, ended{err}
	}
	session, _ = r.current()
	return r.post(ctx, m, session)
}

// renew begins a new session, unless another message has since epoch.
func (r *relay) renew(ctx context.Context, epoch int) error {
	r.renewing.Lock()
	defer r.renewing.Unlock()
	r.mu.Lock()
	hello, ready, version, done := r.hello, r.ready, r.version, r.epoch != epoch
	r.mu.Unlock()
	if done {
		return nil
	}
	lost := func(err error) error {
		return fmt.Errorf("the server has ended the session, and no other begins: %w", err)
	}
	if hello == nil || ready == nil {
		return lost(errors.New("it was about to begin"))
	}
	res, _, err := r.post(ctx, hello, "")
	if err != nil {
		return lost(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return lost(fmt.Errorf("it answered %d", res.StatusCode))
	}
	if err := r.begin(res); err != nil {
		return lost(err)
	}
	// The gateway has had an answer to this one.
	answered := false
	keep := func(m *message, data []byte) error {
		if answers(data, m.id) {
			answered = true
			r.learn(data)
		}
		return nil
	}
	if mediaType(res) == "text/event-stream" {
		err = r.follow(ctx, hello, res, keep)
	} else {
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(res.Body, maxMessage)); err == nil {
			keep(hello, data)
		}
	}
	r.mu.Lock()
	same := r.version == version
	r.mu.Unlock()
	switch {
	case err != nil:
		return lost(err)
	case !answered:
		return lost(errors.New("it didn't answer"))
	case !same:
		return lost(errors.New("it speaks another version now"))
	}
	session, _ := r.current()
	if res, _, err = r.post(ctx, ready, session); err != nil {
		return lost(err)
	}
	res.Body.Close()
	r.say("the server had ended the session; another has begun")
	return nil
}

// leave ends the session, where there is one and the server lets clients do that.
func (r *relay) leave() {
	session, _ := r.current()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if res, _, err := r.do(ctx, http.MethodDelete, nil, r.sessionHeaders(session)); err == nil {
		res.Body.Close()
	}
}

// mediaType is an answer's, in lower case and without parameters.
func mediaType(res *http.Response) string {
	typ, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return typ
}

// declined answers a request with the error that HTTP has for it, or the server in its body.
func (r *relay) declined(m *message, res *http.Response) error {
	if mediaType(res) == "application/json" {
		data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		if err == nil && answers(data, m.id) {
			return r.write(data)
		}
	}
	text := fmt.Sprintf("%s answered %d", r.at.Rule(), res.StatusCode)
	switch {
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		text += ": it wants a login. Palyra does no OAuth: keep a token of the server's in the vault, and add the server with " +
			"--egress-secret 'TOKEN=vault://global/NAME header:authorization " + r.at.Rule().String() + "'"
	case m.method == "initialize" && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed || res.StatusCode == http.StatusBadRequest):
		text += " to initialize: the URL isn't that of a server, or the server speaks the transport of 2024-11-05 (HTTP with SSE), which isn't served"
	case res.StatusCode/100 == 2:
		return fmt.Errorf("%s: the server answered %d, and nothing else", m.method, res.StatusCode)
	}
	return r.refuse(m.id, -32000, text)
}
