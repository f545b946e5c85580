// Package fetch is http.fetch as palyra-fetch runs it: one request, and those that redirects to
// hosts of the call make of it.
//
// [Main] is the whole program. It takes the name of the tool and its brief, an input on standard
// input, and writes one line of JSON; see package toolproto for the form.
//
// # What holds where
//
// The cell's network leads to the hosts that were decided about, and palyra-egress looks at the
// addresses: a mistake here reaches no other host. This package refuses a redirect elsewhere before
// it's tried, so that the caller is told which host to name, and holds what the cell can't see: no
// step from https to http, no body that is sent twice, types, sizes and times of answers.
//
// # Limits
//
// The head of an answer is at most maxHead bytes, the content what the input says, counted after
// decompression: what a compressed answer would become beyond that is never made. The input's times
// bound each connection and the whole, the cell's limits stand behind them.
//
// It doesn't protect against what an answer says: its content is a stranger's, as its headers are.
// There is no cache: each call is a process, and each asks.
package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"time"

	"palyra/call/egress"
	"palyra/call/egress/target"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
)

// The bounds of an answer's head, and of what a result has of it.
const (
	maxHead   = 64 << 10
	maxHeader = 1024
)

// told are the headers of an answer that a result has.
var told = []string{"allow", "cache-control", "content-disposition", "content-language", "content-length", "content-range", "date", "etag",
	"expires", "last-modified", "link", "location", "retry-after", "vary"}

// Main runs the tool and returns the exit status.
func Main(args []string, stdin io.Reader, stdout io.Writer) toolproto.Status {
	var result any
	status := toolproto.Done
	t, in, _, err := tools.Read(args, stdin, 0)
	if err == nil {
		if !t.Reaches {
			err = fault.New(fault.Usage, "not_found", fmt.Sprintf("start tool %q", t.Name), errors.New("another program runs it"))
		} else {
			result, err = run(in.(*toolproto.FetchInput), nil)
		}
	}
	if err != nil {
		status, result = toolproto.Fail(err)
	}
	line, err := toolproto.Encode(result)
	if err == nil {
		_, err = stdout.Write(line)
	}
	if err != nil {
		return toolproto.Broken // no reader is left
	}
	return status
}

// rules returns the hosts of an input: the URL's, and those that it names.
func rules(in *toolproto.FetchInput) (target.Target, egress.Rules, error) {
	t, err := target.Parse(in.URL)
	if err != nil {
		return t, egress.Rules{}, err
	}
	rs, err := egress.ParseRules(append([]string{t.Rule().String()}, in.EgressHosts...))
	return t, rs, err
}

// run asks. testOnlyRoots, if not nil, are the authorities that it trusts.
func run(in *toolproto.FetchInput, testOnlyRoots *x509.CertPool) (*toolproto.FetchResult, error) {
	at, rs, err := rules(in)
	if err != nil {
		return nil, err
	}
	body, err := in.Bytes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(in.RequestTimeoutMS)*time.Millisecond)
	defer cancel()
	c := client(in, testOnlyRoots)
	defer c.CloseIdleConnections()
	a := &asking{in: in, rules: rs, at: at, first: at.Rule(), method: in.Method, body: body, headers: http.Header{"User-Agent": {"palyra-fetch"}}}
	for _, h := range in.Headers {
		name, value, err := toolproto.FetchHeader(h)
		if err != nil {
			return nil, err
		}
		a.headers.Set(name, value)
	}
	if a.credentials, err = credentials(in); err != nil {
		return nil, err
	}
	for {
		again, err := a.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		if !again {
			return &a.result, nil
		}
	}
}

// credentials returns what stands in headers for the secrets of an input: placeholders, in place of
// which palyra-egress puts them.
func credentials(in *toolproto.FetchInput) (map[string]string, error) {
	out := make(map[string]string)
	for i, b := range in.CredentialBindings {
		c, err := toolproto.ParseFetchCredential(b)
		if err != nil {
			return nil, err
		}
		placeholder := os.Getenv(toolproto.FetchVariable(i))
		if placeholder == "" {
			return nil, fault.New(fault.Refused, "invalid_input", "find credentials", fmt.Errorf("%s isn't in the environment", toolproto.FetchVariable(i)))
		}
		out[c.Header] = strings.TrimSpace(c.Scheme + " " + placeholder)
	}
	return out, nil
}

// client returns an HTTP client that follows nothing, knows no proxy and keeps no cookie.
func client(in *toolproto.FetchInput, roots *x509.CertPool) *http.Client {
	connect := time.Duration(in.ConnectTimeoutMS) * time.Millisecond
	dialer := &net.Dialer{Timeout: connect}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: connect, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, MaxResponseHeaderBytes: maxHead},
	}
}

// asking is a request on its way through redirects.
type asking struct {
	in      *toolproto.FetchInput
	rules   egress.Rules
	at      target.Target
	method  string
	body    []byte
	headers http.Header

	first       egress.Rule       // the URL's host, which alone gets credentials
	credentials map[string]string // by header
	result      toolproto.FetchResult
}

// ask asks once, and reports whether the answer leads to another question.
func (a *asking) ask(ctx context.Context, c *http.Client) (again bool, err error) {
	op := "fetch from " + a.at.Rule().String()
	headers := a.headers.Clone()
	if a.at.Rule() == a.first && a.at.TLS() {
		for name, value := range a.credentials {
			headers.Set(name, value)
		}
	}
	req := (&http.Request{Method: a.method, URL: a.at.URL(), Header: headers, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	if a.method == http.MethodPost {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(a.body)), int64(len(a.body))
		if len(a.body) == 0 {
			req.Body = http.NoBody
		}
	}
	res, err := c.Do(req)
	if err != nil {
		return false, lost(ctx, op, err)
	}
	defer res.Body.Close()
	if location := res.Header.Get("Location"); location != "" && a.in.AllowRedirects {
		switch res.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			return true, a.follow(res.StatusCode, location)
		}
	}
	return false, a.take(ctx, op, res)
}

// follow makes a the question that a redirect leads to.
func (a *asking) follow(status int, location string) error {
	const op = "follow redirect"
	refused := func(reason string, err error) error { return fault.New(fault.Refused, reason, op, err) }
	next, err := a.at.Follow(location)
	switch kept := status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect; {
	case err != nil:
		return refused("redirect_refused", err)
	case int64(len(a.result.Redirects)) == a.in.MaxRedirects:
		return refused("redirect_refused", fmt.Errorf("more than %d: the next leads to %s", a.in.MaxRedirects, next.Rule()))
	case a.at.TLS() && !next.TLS():
		return refused("redirect_refused", fmt.Errorf("it leads from https to http, at %s", next.Rule()))
	case kept && a.method == http.MethodPost:
		return refused("redirect_refused", fmt.Errorf("it wants the body sent again, to %s, which isn't done", next.Rule()))
	case !next.Listed(a.rules):
		return refused("egress_denied", fmt.Errorf(`it leads to %s, which the call doesn't name: "egress_hosts":[%q] names it`, next.Rule(), next.Rule()))
	case !kept && a.method == http.MethodPost:
		a.method, a.body = http.MethodGet, nil
		a.headers.Del("Content-Type")
	}
	if next.Rule() != a.at.Rule() { // they are about what the former host has
		a.headers.Del("If-None-Match")
		a.headers.Del("If-Modified-Since")
	}
	a.at = next
	a.result.Redirects = append(a.result.Redirects, toolproto.FetchRedirect{Status: int64(status), URL: next.String()})
	return nil
}

// take makes the result of an answer.
func (a *asking) take(ctx context.Context, op string, res *http.Response) error {
	r := &a.result
	r.URL, r.Method, r.Status, r.ContentType = a.at.String(), a.method, int64(res.StatusCode), clean(res.Header.Get("Content-Type"))
	r.Headers = make(map[string]string)
	for _, name := range told {
		if v := res.Header.Values(name); len(v) > 0 {
			r.Headers[name] = clean(strings.Join(v, ", "))
		}
	}
	if r.Redirects == nil {
		r.Redirects = []toolproto.FetchRedirect{}
	}
	most := a.in.MaxResponseBytes
	// A reader that has read to the end of what it wants is left: what comes behind is never asked
	// for.
	first := make([]byte, 1)
	n, err := io.ReadFull(res.Body, first)
	if n == 0 && errors.Is(err, io.EOF) {
		return nil // there is no content, so it has no type
	}
	if err != nil {
		return lost(ctx, op, err)
	}
	typ, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		typ = "application/octet-stream" // none, or nonsense (RFC 9110 §8.3)
	}
	if !a.in.Takes(typ) {
		return fault.New(fault.Refused, "content_type_refused", op, fmt.Errorf(`the answer, of status %d, is %s: "allowed_content_types":[%q] takes it`, res.StatusCode, clean(typ), clean(typ)))
	}
	if e := res.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return fault.New(fault.Refused, "content_type_refused", op, fmt.Errorf("the answer is encoded as %q, which wasn't asked for", clean(e)))
	}
	content, err := io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(first), res.Body), most+1))
	if err != nil {
		return lost(ctx, op, err)
	}
	if int64(len(content)) > most {
		r.Truncated, content = true, toolproto.WholeText(content[:most])
	}
	r.Length, r.Content = int64(len(content)), toolproto.ContentOf(content)
	return nil
}

// lost says why there is no answer.
func lost(ctx context.Context, op string, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL
	}
	text := errors.New(clean(err.Error()))
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.New(fault.Integrity, "bad_answer", op, text)
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return fault.New(fault.NotFound, "not_found", op, errors.New("its name doesn't resolve: the receipt says whether it was refused"))
	}
	if e, ok := errors.AsType[net.Error](err); ctx.Err() != nil || ok && e.Timeout() {
		return fault.New(fault.Timeout, "timeout", op, text)
	}
	if _, ok := errors.AsType[textproto.ProtocolError](err); ok || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return fault.New(fault.Integrity, "bad_answer", op, text)
	}
	return fault.New(fault.Unavailable, "connection_lost", op, text)
}

// clean bounds a stranger's text, and makes it one line of UTF-8.
func clean(s string) string {
	if len(s) > maxHeader {
		s = s[:maxHeader]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
