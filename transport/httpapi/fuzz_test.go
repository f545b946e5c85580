package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/ident"
	"palyra/transport/api"
	"palyra/transport/api/apitest"
)

// FuzzRequest sends anything as a caller who may do everything: no panic, no internal
// error, and every answer is as the document says.
func FuzzRequest(f *testing.F) {
	hex := strings.Repeat("0", 32)
	for _, s := range []struct{ method, target, body, header string }{
		{"POST", "/api/v1/sessions", `{"title":"x"}`, "Idempotency-Key: a"},
		{"POST", "/api/v1/runs", `{"session":"ses_` + hex + `","steps":[{"tool":"test.echo","input":{"a":[1,{"b":null}]}}],"budget":{"wall_ns":1}}`, "Idempotency-Key: b"},
		{"POST", "/api/v1/calls", `{"tool":"test.echo","input":1e999}`, "Prefer: respond-async"},
		{"GET", "/api/v1/sessions?after=ses_" + hex + "&limit=7", "", "Accept: */*"},
		{"POST", "/api/v1/sessions/ses_" + hex + "/end", "", `If-Match: "v1"`},
		{"PUT", "/api/v1/members/uid:1", `{"role":"admin"}`, "If-None-Match: *"},
		{"POST", "/api/v1/policy/diff", `{"candidate":{"files":{"a":"b"}},"last":-1}`, "X: y"},
		{"POST", "/api/v1/tokens", `{"name":"","scopes":null,"ttl_ns":-1}`, "Idempotency-Key: c"},
		{"GET", "/api/v1/runs/run_" + hex + "/artifacts/sha256:" + hex + hex, "", "Range: bytes=0-"},
		{"GET", "/api/v1/journal/tile/0/x001/000.p/3", "", "Range: bytes=0-"},
		{"POST", "/api/v1/approvals/apr_" + hex + "/resolve", `{"approve":true,"approve":false}`, "If-Match: *"},
		{"GET", "/api/v1/runs?state=done&state=done&x=%00", "", ""},
		{"OPTIONS", "*", "", ""},
	} {
		f.Add(s.method, s.target, s.body, s.header)
	}
	s, err := New(Config{Hub: apitest.NewHub(), Limits: Limits{Rate: -1}})
	if err != nil {
		f.Fatal(err)
	}
	checker, err := checker()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, target, body, header string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || u.Host != "" || len(body) > 1<<16 {
			return
		}
		r := &http.Request{Method: method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Host: "x",
			Body: readCloser{strings.NewReader(body)}, ContentLength: int64(len(body))}
		r = r.WithContext(t.Context())
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+apitest.OwnerToken)
		if c := http.CanonicalHeaderKey(name); c != "Authorization" && c != "Content-Type" {
			r.Header[c] = append(r.Header[c], value)
		}
		op := checker.Operation(method, u.Path)
		switch {
		case op == "readTape", op == "reload", op == "backup", strings.Contains(body, "test."):
			// These need a connection, or end with an error by design, or wait.
			return
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("%s %q: %d %s", method, target, w.Code, w.Body)
		}
		if w.Code >= 400 {
			var p api.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || p.Kind == "" {
				t.Fatalf("%s %q: %d with %s", method, target, w.Code, w.Body)
			}
		}
		if method == http.MethodHead || op == "" {
			return
		}
		if err := checker.Response(method, u.Path, w.Code, w.Header().Get("Content-Type"), w.Body.Bytes()); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
	})
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// FuzzValues: what the small parsers accept has one spelling.
func FuzzValues(f *testing.F) {
	for _, s := range []string{"", "0", "1", "01", `"v1"`, `"v01"`, "*", "bytes=0-1", "bytes=-1", "0/000", "entries/x001/000.p/7", "a b", "ses_" + strings.Repeat("0", 32),
		"9223372036854775807", "9223372036854775808", "after=1&limit=2", "limit=%31", "%00"} {
		f.Add(s)
	}
	page := api.InputOf(&hub.Operation{In: api.Type[hub.PageQuery]()}).Query
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseUint(s); err == nil && (n > 1<<63-1 || len(s) > 19 || s[0] == '0' && s != "0") {
			t.Errorf("parseUint(%q) = %d", s, n)
		}
		if v, err := parseETag(s); err == nil && v != 0 && etag(v) != s || err == nil && v < 0 {
			t.Errorf("parseETag(%q) = %d", s, v)
		}
		if k, err := parseKey(s); err == nil && (k != s || k == "" || strings.ContainsAny(k, " \r\n\x00")) {
			t.Errorf("parseKey(%q) = %q", s, k)
		}
		for _, size := range []int64{0, 1, 10} {
			if first, n, ok := parseRange(s, size); ok && n > 0 && (first < 0 || first+n > size) {
				t.Errorf("parseRange(%q, %d) = %d, %d", s, size, first, n)
			}
		}
		if tileName(s) && (strings.Contains(s, "..") || strings.HasPrefix(s, "/") || strings.Contains(s, "//") || strings.ContainsAny(s, "\\%\x00")) {
			t.Errorf("tileName(%q)", s)
		}
		q, err := parseQuery(s, page)
		if err == nil {
			for name, vs := range q {
				if (name != "after" && name != "limit") || len(vs) != 1 || vs[0] == "" {
					t.Errorf("parseQuery(%q) = %v", s, q)
				}
			}
		}
		_ = ident.Check(ident.Session, s)
		if got := visible(s); bytes.ContainsAny([]byte(got), "\r\n\x00") {
			t.Errorf("visible(%q) = %q", s, got)
		}
	})
}
