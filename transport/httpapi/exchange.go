package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// exchange is one request on its way: its parts and the writer of its answer. The goroutine
// of the request owns it.
type exchange struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	rt     *route
	caller hub.Caller
	known  bool // caller was authenticated

	query   url.Values
	form    url.Values // the body of a page's request
	raw     []byte     // the body
	body    any        // pointer to rt.in.BodyType, decoded
	key     string     // Idempotency-Key
	version int64      // of If-Match; 0 is "*"
	create  bool       // If-None-Match: *
	async   bool       // Prefer: respond-async
}

// read reads the request whole and refuses what is not well-formed.
func (x *exchange) read() error {
	if x.rt.page {
		return x.readPage()
	}
	var err error
	if x.query, err = parseQuery(x.r.URL.RawQuery, x.rt.in.Query); err != nil {
		return err
	}
	if err := x.headers(); err != nil {
		return err
	}
	if x.rt.in.BodyType == nil {
		return x.noBody()
	}
	return x.readBody()
}

// parseQuery reads a query strictly: only known names, once each unless Many,
// and values of the right form.
func parseQuery(raw string, params []api.Field) (url.Values, error) {
	if strings.Contains(raw, ";") {
		return nil, usage("invalid_input", "parse query", errors.New("semicolon"))
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, usage("invalid_input", "parse query", errors.New("malformed escape"))
	}
	for name, vs := range q {
		i := slices.IndexFunc(params, func(p api.Field) bool { return p.Name == name })
		if i < 0 {
			return nil, usage("invalid_input", "parse query", fmt.Errorf("unknown parameter %.80q", name))
		}
		p := params[i]
		if len(vs) > 1 && !p.Many {
			return nil, usage("invalid_input", "parse query", fmt.Errorf("parameter %q %d times", name, len(vs)))
		}
		for _, v := range vs {
			switch fits := fitsParam(p, v); {
			case !fits && p.Flag:
				return nil, usage("invalid_input", "parse query", fmt.Errorf("parameter %q is neither true nor false", name))
			case !fits:
				return nil, usage("invalid_input", "parse query", fmt.Errorf("parameter %q does not hold %s", name, p.Doc))
			}
		}
	}
	return q, nil
}

func fitsParam(p api.Field, v string) bool {
	switch {
	case p.Number:
		_, err := parseUint(v)
		return err == nil
	case p.Flag:
		return v == "true" || v == "false"
	case len(p.Enum) > 0:
		return slices.Contains(p.Enum, v)
	}
	return v != "" && len(v) <= 256 && !strings.ContainsFunc(v, func(c rune) bool { return c <= ' ' || c > '~' })
}

// parseUint reads a decimal number in its only spelling.
func parseUint(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%.40q is no decimal number", s)
	}
	return n, nil
}

// headers reads Idempotency-Key, If-Match, If-None-Match and Prefer, as far as the route has them.
func (x *exchange) headers() (err error) {
	h := x.r.Header
	keys := h.Values("Idempotency-Key")
	switch {
	case len(keys) > 1:
		return usage("invalid_input", "read Idempotency-Key", errors.New("more than one"))
	case len(keys) == 1:
		if x.key, err = parseKey(keys[0]); err != nil {
			return err
		}
		if !x.rt.Idempotent && !x.rt.Key {
			return usage("invalid_input", "read Idempotency-Key", errors.New("this operation has none"))
		}
	case x.rt.Idempotent:
		return usage("invalid_input", "read Idempotency-Key", errors.New("this operation needs an Idempotency-Key")).(*fault.Error).
			WithHint("send Idempotency-Key: a name of your choice for this request, the same when you repeat it")
	}
	if x.rt.in.Match != nil {
		if err := x.precondition(); err != nil {
			return err
		}
	}
	for _, v := range h.Values("Prefer") {
		for p := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(p), ";")
			x.async = x.async || x.rt.Prefer && strings.EqualFold(name, "respond-async")
		}
	}
	return nil
}

// precondition reads the version that a change was made for.
func (x *exchange) precondition() (err error) {
	match, none := x.r.Header.Values("If-Match"), x.r.Header.Values("If-None-Match")
	switch {
	case len(match)+len(none) == 0:
		return answered(428, "read If-Match", errors.New("want the version")).
			WithHint("send If-Match with the ETag of the version that you saw")
	case len(match) == 1 && len(none) == 0:
		x.version, err = parseETag(match[0])
		return err
	case len(none) == 1 && none[0] == "*" && x.rt.Creates:
		x.create = true
		return nil
	}
	return usage("invalid_input", "read If-Match", errors.New("want one If-Match with one ETag"))
}

// parseETag reads the ETag of a version, or "*", which is version 0. Lists and
// weak tags are refused: a change is made for one version.
func parseETag(s string) (int64, error) {
	if s == "*" {
		return 0, nil
	}
	if v, ok := strings.CutPrefix(s, `"v`); ok {
		if n, err := parseUint(strings.TrimSuffix(v, `"`)); err == nil && n > 0 && etag(int64(n)) == s {
			return int64(n), nil
		}
	}
	return 0, usage("invalid_input", "parse ETag", fmt.Errorf(`%.40q is neither "v1" nor *`, s))
}

// etag returns the ETag of a version.
func etag(version int64) string { return `"v` + strconv.FormatInt(version, 10) + `"` }

// parseKey reads an idempotency key: 1 to 128 visible ASCII characters. The
// draft's quotes are part of the key.
func parseKey(s string) (string, error) {
	if s == "" || len(s) > 128 || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", usage("invalid_input", "read Idempotency-Key", errors.New("want 1 to 128 visible ASCII characters"))
	}
	return s, nil
}

// noBody refuses a body where none belongs.
func (x *exchange) noBody() error {
	if x.r.ContentLength == 0 {
		return nil
	}
	var one [1]byte
	if n, err := x.r.Body.Read(one[:]); n == 0 && (err == io.EOF || err == nil) {
		return nil
	}
	return usage("invalid_input", "read body", errors.New("this operation has none"))
}

// readBody reads the JSON body into a new value of the route's type.
func (x *exchange) readBody() error {
	if err := checkContentType(x.r.Header); err != nil {
		return err
	}
	limit := max(x.s.lim.Body, min(x.rt.Body, x.s.bodies.Limits().Each))
	if x.rt.Brake {
		limit = min(limit, brakeBody)
	}
	tooLarge := usage("json_too_large", "read body", fmt.Errorf("more than %d bytes", limit))
	if x.r.ContentLength > limit {
		x.w.Header().Set("Connection", "close") // what we do not read
		return tooLarge
	}
	if !x.rt.Brake { // which nothing that others send may hold up
		if err := x.roomForBody(limit); err != nil {
			x.w.Header().Set("Connection", "close")
			return err
		}
	}
	var in bytes.Buffer
	if n := x.r.ContentLength; n > 0 {
		in.Grow(int(n) + bytes.MinRead) // no more than was counted
	}
	_, err := in.ReadFrom(http.MaxBytesReader(x.w, x.r.Body, limit))
	b := in.Bytes()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return tooLarge
	} else if err != nil {
		return fault.New(fault.Usage, "invalid_input", "read body", errors.New("it ended early or came too slowly"))
	}
	x.raw = b
	v := reflect.New(x.rt.in.BodyType)
	// A larger body has longer values and no more of them, or decoding it took more than was counted.
	values := max(min(limit, max(x.s.lim.Body, 1<<20))/16, 1024)
	if err := canon.Decode(b, v.Interface(), canon.Limits{Bytes: int(limit), Depth: x.s.lim.Depth, Values: int(values)}); err != nil {
		return err
	}
	x.body = v.Interface()
	// From here on the server reads the connection only to see whether the client goes: the
	// deadline for the request must not end a waiting call.
	if err := http.NewResponseController(x.w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fault.New(fault.Canceled, "canceled", "read body", err)
	}
	return nil
}

// payer pays for what the request holds.
func (x *exchange) payer() budget.Owner {
	return budget.Owner{Name: x.caller.User, Reserve: peerOf(x.r).unix && x.caller.Role == roleOwner && x.caller.Token == ""}
}

// brakeBody bounds the body of an emergency stop, which is not counted.
const brakeBody = 4 << 10

// roomForBody takes room for the body before reading any of it: a slow body holds memory
// just as one at work does. It waits in line for as long as a client has to take an answer.
func (x *exchange) roomForBody(limit int64) error {
	n := x.r.ContentLength
	if n < 0 {
		n = limit // it does not say
	}
	o := x.payer()
	ctx, cancel := context.WithTimeout(x.r.Context(), x.s.lim.Write)
	defer cancel()
	hold, err := x.s.bodies.Wait(ctx, o, n)
	if err != nil && x.r.Context().Err() == nil && ctx.Err() != nil {
		hold, err = x.s.bodies.Take(o, n) // or it says why not
	}
	if err == nil {
		hold.Keep(x.r.Context())
	}
	return err
}

func checkContentType(h http.Header) error {
	bad := answered(415, "read body", errors.New("want Content-Type: application/json"))
	ct := h.Values("Content-Type")
	if len(ct) != 1 || len(h.Values("Content-Encoding")) > 0 {
		return bad
	}
	media, params, err := mime.ParseMediaType(ct[0])
	if err != nil || media != hub.MediaJSON {
		return bad
	}
	for k, v := range params {
		if k != "charset" || !strings.EqualFold(v, "utf-8") {
			return bad
		}
	}
	return nil
}

// accepts returns the first of the media types that the request accepts; the
// order of preference is ours.
func accepts(h http.Header, media ...string) (string, error) {
	vs := h.Values("Accept")
	if len(vs) == 0 {
		return media[0], nil
	}
	var ranges []string
	for _, v := range vs {
		for part := range strings.SplitSeq(v, ",") {
			name, params, _ := strings.Cut(part, ";")
			if q := strings.ReplaceAll(params, " ", ""); q != "q=0" && q != "q=0.0" {
				ranges = append(ranges, strings.ToLower(strings.TrimSpace(name)))
			}
		}
	}
	for _, m := range media {
		base, _, _ := strings.Cut(m, ";")
		if slices.Contains(ranges, base) {
			return m, nil
		}
	}
	for _, m := range media {
		kind, _, _ := strings.Cut(m, "/")
		if slices.Contains(ranges, kind+"/*") || slices.Contains(ranges, "*/*") {
			return m, nil
		}
	}
	return "", answered(406, "choose media type", fmt.Errorf("this operation has %s", strings.Join(media, ", ")))
}
