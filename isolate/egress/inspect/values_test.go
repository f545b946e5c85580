package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	rule "palyra/call/egress"
)

// vals makes values of uses; the placeholder and the value of each variable are made up of its name.
func vals(t testing.TB, value string, texts ...string) (v *values, placeholder string) {
	t.Helper()
	uses, err := rule.ParseUses(texts)
	if err != nil {
		t.Fatal(err)
	}
	var ps []string
	var given [][]byte
	for _, u := range uses {
		if placeholder == "" {
			placeholder = rule.NewPlaceholder(u.Form)
		}
		ps, given = append(ps, placeholder), append(given, []byte(value))
	}
	v, err = newValues(uses, ps, given)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.wipe)
	return v, placeholder
}

const theValue = "s3cret/Value+of=the&store"

func TestPut(t *testing.T) {
	v, p := vals(t, theValue, "T=vault://global/t header:authorization GET a.example:443/v1", "T=vault://global/t query:key a.example:443", "T=vault://global/t header:x-api-key a.example:443")
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, c := range map[string]struct {
		method, target, key, text string
		want                      string // of the header or the query; "": the same
		leak                      bool   // the placeholder is left
	}{
		"bearer":             {key: "Authorization", text: "Bearer " + p, want: "Bearer " + theValue},
		"alone":              {key: "Authorization", text: p, want: theValue},
		"quoted":             {key: "Authorization", text: `Token token="` + p + `", x="y"`, want: `Token token="` + theValue + `", x="y"`},
		"password":           {key: "Authorization", text: basic("user:" + p), want: basic("user:" + theValue)},
		"user":               {key: "Authorization", text: basic(p + ":"), want: basic(theValue + ":")},
		"both":               {key: "Authorization", text: basic(p + ":" + p), want: basic(theValue + ":" + theValue)},
		"basic in capitals":  {key: "Authorization", text: "BASIC" + basic("u:" + p)[5:], want: "BASIC" + basic("u:" + theValue)[5:]},
		"part of a password": {key: "Authorization", text: basic("user:x" + p), leak: true},
		"part of a word":     {key: "Authorization", text: "Bearer x" + p, leak: true},
		"word goes on":       {key: "Authorization", text: "Bearer " + p + "x", leak: true},
		"without its form":   {key: "Authorization", text: "Bearer " + p[1:], leak: false},
		"in capitals":        {key: "Authorization", text: "Bearer " + strings.ToUpper(p), leak: true},
		"another header":     {key: "X-Other", text: p, leak: true},
		"a cookie":           {key: "Cookie", text: "session=" + p, leak: true},
		"another path":       {target: "/v2", key: "Authorization", text: "Bearer " + p, leak: true},
		"next to the path":   {target: "/v11", key: "Authorization", text: "Bearer " + p, leak: true},
		"another method":     {method: "POST", key: "Authorization", text: "Bearer " + p, leak: true},
		"any path":           {target: "/", key: "X-Api-Key", text: p, want: theValue},
		"query":              {target: "/x?a=b&key=" + p + "&c", want: "a=b&key=" + url.QueryEscape(theValue) + "&c"},
		"query, escaped":     {target: "/x?k%65y=" + percent(p), want: "k%65y=" + url.QueryEscape(theValue)},
		"another parameter":  {target: "/x?keys=" + p, leak: true},
		"part of one":        {target: "/x?key=x" + p, leak: true},
		"a parameter's name": {target: "/x?" + p + "=key", leak: true},
		"twice":              {target: "/x?key=" + p + "&z=" + p, want: "key=" + url.QueryEscape(theValue) + "&z=" + p, leak: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.target == "" {
				c.target = "/v1/x"
			}
			if c.method == "" {
				c.method = "GET"
			}
			r, err := http.NewRequest(c.method, "https://a.example"+c.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.key != "" {
				r.Header.Set(c.key, c.text)
			}
			header, query, left, leftQuery, used := v.put(r, "a.example", 443, r.URL.EscapedPath())
			got, was := query, r.URL.RawQuery
			if c.key != "" {
				got, was = header.Get(c.key), c.text
			}
			want := c.want
			if want == "" {
				want = was
			}
			if got != want || (len(used) == 1) != (c.want != "") {
				t.Errorf("sent %q, want %q; used %v", got, want, used)
			}
			w := newWatch([]string{"T"}, []string{p})
			leak := w.In([]byte(leftQuery))
			if q, err := url.QueryUnescape(leftQuery); err == nil && leak == "" {
				leak = w.In([]byte(q))
			}
			for _, texts := range left {
				for _, s := range texts {
					if found := w.In([]byte(s)); found != "" {
						leak = found
					}
				}
			}
			if (leak != "") != c.leak {
				t.Errorf("left: %q, %q: leak %q", left, leftQuery, leak)
			}
			if r.Header.Get(c.key) != c.text && c.key != "" {
				t.Error("the request itself was changed")
			}
		})
	}
}

func TestValuesRefused(t *testing.T) {
	uses, err := rule.ParseUses([]string{"T=vault://global/t header:authorization a.example:443", "T=vault://global/t query:k a.example:443"})
	if err != nil {
		t.Fatal(err)
	}
	p := rule.NewPlaceholder("")
	for name, given := range map[string][]string{
		"short":          {"1234567", "1234567"},
		"a header's end": {"value\r\nX: y", "value\r\nX: y"},
		"NUL":            {"value\x00value", "value\x00value"},
		"another":        {"the value", "another value"},
		"a blank before": {" the value", " the value"},
		"a blank behind": {"the value \n", "the value \n"},
		"newlines alone": {"\n\n\n\n\n\n\n\n\n", "\n\n\n\n\n\n\n\n\n"},
	} {
		v, err := newValues(uses, []string{p, p}, [][]byte{[]byte(given[0]), []byte(given[1])})
		if err == nil {
			v.wipe()
			t.Errorf("%s: taken", name)
		} else if strings.Contains(err.Error(), given[0]) {
			t.Errorf("%s: the error tells the value: %v", name, err)
		}
	}
	v, err := newValues(uses, []string{p, p}, [][]byte{[]byte("the value\n"), []byte("the value\n")})
	if err != nil || string(v.held[0].Bytes()) != "the value" {
		t.Fatalf("the newline of a file: %v", err)
	}
	v.wipe()
	if v.held[0].Bytes() != nil || v.spelled.Bytes() != nil || v.table.Next([]byte("the value"), 0) != 9 {
		t.Error("something is left")
	}
}

// answers are ways in which a host may send a value back.
func answers(value string) map[string]string {
	quoted := strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(value)
	return map[string]string{
		"plain": value, "bearer": `{"authorization":"Bearer ` + quoted + `"}`,
		"basic":       base64.StdEncoding.EncodeToString([]byte("user:" + value)),
		"base64, url": base64.RawURLEncoding.EncodeToString([]byte(value)),
		"hexadecimal": hex.EncodeToString([]byte(value)),
		"query":       "https://a.example/?key=" + url.QueryEscape(value),
		"path":        "https://a.example/" + url.PathEscape(value) + "/x",
		"lower":       strings.ToLower(value),
	}
}

func TestClean(t *testing.T) {
	v, p := vals(t, theValue, "T=vault://global/t header:authorization a.example:443")
	for how, text := range answers(theValue) {
		whole := "head " + text + " tail, " + text
		want := v.clean(whole)
		if !strings.Contains(want, p) || strings.Contains(want, theValue) {
			t.Errorf("%s: %q", how, want)
		}
		for _, value := range answers(theValue) {
			if strings.Contains(want, value) {
				t.Errorf("%s: %q has %q", how, want, value)
			}
		}
		for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader, func(r io.Reader) io.Reader { return r }} {
			got, err := io.ReadAll(newCleaner(io.NopCloser(wrap(strings.NewReader(whole))), v))
			if err != nil || string(got) != want {
				t.Errorf("%s: %q, %v, want %q", how, got, err, want)
			}
		}
	}
	// What can't be the beginning of a value doesn't wait.
	r, w := io.Pipe()
	c := newCleaner(r, v)
	go w.Write([]byte("data: 1\n\n" + theValue[:5]))
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "data: 1\n\n" {
		t.Errorf("%q, %v", b[:n], err)
	}
	go w.CloseWithError(io.ErrUnexpectedEOF)
	if n, err := c.Read(b); !errors.Is(err, io.ErrUnexpectedEOF) || n > 0 {
		t.Errorf("a body that breaks off within a value: %q, %v", b[:n], err)
	}
	h := http.Header{"X-Plain": {"x"}, "X-Echo": {"Bearer " + theValue, "y"}, http.CanonicalHeaderKey("x-" + strings.ToLower(hex.EncodeToString([]byte(theValue)))): {"z"}}
	v.cleanHeader(h)
	if len(h) != 2 || h.Get("X-Plain") != "x" || h.Get("X-Echo") != "Bearer "+p {
		t.Errorf("headers: %q", h)
	}
	var none *values
	none.cleanHeader(h)
	if none.clean("x") != "x" {
		t.Error("nil values clean something")
	}
}

// FuzzClean: a body in parts comes out as it does in one, and never has the value.
func FuzzClean(f *testing.F) {
	v, _ := vals(f, theValue, "T=vault://global/t header:authorization a.example:443")
	f.Add([]byte("head"), []byte("tail"), uint8(5))
	f.Add([]byte(theValue[:9]), []byte(theValue), uint8(200))
	f.Fuzz(func(t *testing.T, head, tail []byte, cut uint8) {
		text := append(append(bytes.Clone(head), theValue[min(int(cut), len(theValue)):]...), tail...)
		want, _ := v.cleanPart(nil, text, true)
		got, err := io.ReadAll(newCleaner(io.NopCloser(iotest.OneByteReader(bytes.NewReader(text))), v))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		if bytes.Contains(got, []byte(theValue)) {
			t.Errorf("%q", got)
		}
	})
}

// FuzzPut: no placeholder that stood in no place is left unseen, and a head without one is as it was.
func FuzzPut(f *testing.F) {
	v, p := vals(f, theValue, "T=vault://global/t header:authorization a.example:443", "T=vault://global/t query:key a.example:443")
	f.Add("Bearer ", "", "key=", "")
	f.Add("Basic dXNlcjo=", "", "a=b&key=%", ";")
	f.Fuzz(func(t *testing.T, before, after, qbefore, qafter string) {
		r := &http.Request{Method: "GET", Header: http.Header{"Authorization": {before + p + after}}, URL: &url.URL{Path: "/", RawQuery: qbefore + p + qafter}}
		header, query, left, leftQuery, used := v.put(r, "a.example", 443, "/")
		n := strings.Count(left.Get("Authorization"), p) + strings.Count(leftQuery, p)
		if len(used) == 0 && (header.Get("Authorization") != before+p+after || query != qbefore+p+qafter || n < 2) {
			t.Errorf("changed without a use: %q, %q", header, query)
		}
		if sent := strings.Count(header.Get("Authorization"), p) + strings.Count(query, p); sent > n {
			t.Errorf("sent unseen: %q, %q; looked at %q, %q", header, query, left, leftQuery)
		}
	})
}
