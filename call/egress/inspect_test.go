package egress

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
)

const (
	pinA = "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	pinB = "sha256/d6qzRu9zOECb90Uez27xWltNsj0e1Md7GkYYkVoZWmM="
)

// somePins are n pins of a rule.
func somePins(n int) (text string) {
	for i := range n {
		text += " pin:" + PinOf(append(make([]byte, 31), byte(i)))
	}
	return text
}

// TestPins: the pins of a host are those of all rules about it, and a use has none.
func TestPins(t *testing.T) {
	rules, err := ParseRules([]string{"a.example", "a.example:8443", "*.example.net", "b.example"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := ParseInspects([]string{"GET a.example/x pin:" + pinA, "PUT a.example/y pin:" + pinB, "a.example/z", "*.example.net pin:" + pinB, "a.example:8443"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := ParseInspection(rules, Strings(list), []string{"T=vault://global/k header:x b.example:443"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host string
		port uint16
		want []string
	}{
		{"a.example", 443, []string{pinA, pinB}}, {"a.example", 8443, nil}, {"b.example", 443, nil},
		{"x.example.net", 443, []string{pinB}}, {"example.net", 443, nil},
	} {
		if got := in.Pins(c.host, c.port); !slices.Equal(got, c.want) {
			t.Errorf("pins of %s:%d are %q, want %q", c.host, c.port, got, c.want)
		}
	}
	for _, text := range []string{"T=vault://global/k header:x b.example pin:" + pinA, "T=vault://global/k header:x GET b.example pin:" + pinA} {
		if u, err := ParseUse(text); err == nil {
			t.Errorf("ParseUse(%q) = %q", text, u)
		}
	}
}

func TestParseInspect(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"packages.example", "packages.example:443"},
		{"packages.example/", "packages.example:443"},
		{"Packages.example.:8443/simple/", "packages.example:8443/simple/"},
		{"head,get,HEAD packages.example/simple", "GET,HEAD packages.example:443/simple"},
		{"  GET \t *.cdn.example ", "GET *.cdn.example:443"},
		{"VERSION-CONTROL a.example/v1/x%20y", "VERSION-CONTROL a.example:443/v1/x%20y"},
		{"a.example pin:" + pinB + " pin:" + pinA + " pin:" + pinB, "a.example:443 pin:" + pinA + " pin:" + pinB},
		{"a.example/live websocket", "a.example:443/live websocket"},
		{"post,get a.example websocket pin:" + pinA, "GET,POST a.example:443 websocket pin:" + pinA},
		{"websocket", "websocket:443"},
		{"a.example/up answer:2048  body:1KiB", "a.example:443/up body:1KiB answer:2KiB"},
		{"get a.example websocket answer:1GiB pin:" + pinA, "GET a.example:443 websocket answer:1GiB pin:" + pinA},
		{"body:1", "body:1"}, // a host and a port
		{"get *.a.example/x  pin:" + pinA, "GET *.a.example:443/x pin:" + pinA},
	} {
		in, err := ParseInspect(c.text)
		if err != nil || in.String() != c.want {
			t.Errorf("ParseInspect(%q) = %q, %v, want %q", c.text, in, err, c.want)
		}
		if again, err := ParseCanonicalInspects([]string{c.want}); err != nil || again[0].String() != c.want {
			t.Errorf("ParseCanonicalInspects(%q) = %q, %v", c.want, again, err)
		}
	}
	for _, c := range []struct{ text, why string }{
		{"", "want methods"},
		{"GET HEAD a.example", "want methods"},
		{"CONNECT a.example", "CONNECT"},
		{"GET, a.example", "letters"},
		{"G3T a.example", "letters"},
		{strings.Repeat("A", 25) + " a.example", "letters"},
		{"A,B,C,D,E,F,G,H,I,J,K,L,M,N,O,P,Q a.example", "at most 16"},
		{"https://a.example/x", "not a URL"},
		{"192.0.2.7:443", "not by an address"},
		{"[2001:db8::1]:443", "not by an address"},
		{"10.0.0.0/8:443", "not by an address"},
		{"localhost/x", "the cell itself"},
		{"a.example//x", "empty segment"},
		{"a.example/x/../y", "dot segment"},
		{"a.example/x/.", "dot segment"},
		{"a.example/%2e%2e/y", "dot segment"},
		{"a.example/%2ex", "write /.x"},
		{"a.example/x%2fy", `escaped '/'`},
		{"a.example/x%5cy", `escaped '\\'`},
		{"a.example/x%00", `escaped '\x00'`},
		{"a.example/x%c3%a4", "write /x%C3%A4"},
		{"a.example/x?y", `'?'`},
		{"a.example/x#y", `'#'`},
		{"a.example/x\\y", `'\\'`},
		{"a.example/x%", "hexadecimal"},
		{"a.example/x%2", "hexadecimal"},
		{"a.example/x%252e", "escaped escape"},
		{"a.example/{x}", "write /%7Bx%7D"},
		{"a.example/" + strings.Repeat("x", 256), "at most 256"},
		{"POST a.example websocket", "begins with GET"},
		{"a.example pin:" + pinA + " websocket", "letters"},
		{"a.example websocket websocket", "letters"},
		{"a.example body:0", "want 1"},
		{"a.example body:1KB", "want 1"},
		{"a.example answer:", "want 1"},
		{"a.example body:1 body:2", "body is there twice"},
		{"a.example sent:1", "letters"},
		{"a.example body:1 websocket", "letters"},
		{"a.example pin:" + pinA + " body:1", "letters"},
		{"body:1 a.example", "letters"},
		{"a.example pin:", "SHA-256 of a public key"},
		{"a.example pin:sha512/" + pinA[len("sha256/"):], "SHA-256 of a public key"},
		{"a.example pin:sha256//" + pinA[len("sha256/"):], "SHA-256 of a public key"},
		{"a.example pin:" + strings.TrimRight(pinA, "="), "SHA-256 of a public key"},
		{"a.example pin:" + pinA[:len(pinA)-2] + "B=", "SHA-256 of a public key"}, // bits that no digest has
		{"a.example pin:" + pinA[:len(pinA)-5] + "=", "SHA-256 of a public key"},
		{"pin:" + pinA + " a.example", "letters"},
		{"pin:" + pinA, "want methods"},
		{"a.example" + somePins(5), "5 pins, at most 4"},
	} {
		in, err := ParseInspect(c.text)
		if err == nil || !strings.Contains(errors.Unwrap(err).Error(), c.why) || in.String() != "" {
			t.Errorf("ParseInspect(%q) = %q, %v, want %q", c.text, in, err, c.why)
		}
		if err != nil && (fault.ReasonOf(err) != "invalid_input" || fault.HintOf(err) == "") {
			t.Errorf("ParseInspect(%q): %v", c.text, err)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		rule, host   string
		method, path string
		want         bool
	}{
		{"a.example", "a.example", "DELETE", "/x//../%2f", true}, // no rule about paths
		{"a.example", "b.example", "GET", "/", false},
		{"a.example", "", "GET", "/", false},
		{"*.a.example", "x.a.example", "GET", "/", true},
		{"*.a.example", "a.example", "GET", "/", false},
		{"GET,HEAD a.example", "a.example", "GET", "/", true},
		{"GET,HEAD a.example", "a.example", "get", "/", false},
		{"GET,HEAD a.example", "a.example", "POST", "/", false},
		{"a.example/simple/", "a.example", "GET", "/simple/x", true},
		{"a.example/simple/", "a.example", "GET", "/simple/", true},
		{"a.example/simple/", "a.example", "GET", "/simple", false},
		{"a.example/simple/", "a.example", "GET", "/simplex", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x", true},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/y", true},
		{"a.example/v1/x", "a.example", "GET", "/%761/x", true},
		{"a.example/v1/x", "a.example", "GET", "/v1/xy", false},
		{"a.example/v1/x", "a.example", "GET", "/V1/x", false},
		{"a.example/v1/x", "a.example", "GET", "*", false},
		{"a.example/v1/x", "a.example", "GET", "", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/../y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%2E%2e/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%c0%ae%c0%ae/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%ff", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%C3%A4", true},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..%20/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/.../y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/...;a/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/a..%20b/y", true},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..;/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..%3b/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..%2fy", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/..%5Cy", false},
		{"a.example/v1/x", "a.example", "GET", `/v1/x/..\y`, false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%252e%252e/y", false},
		{"a.example/v1/x", "a.example", "GET", "/v1//x", false},
		{"a.example/v1/x", "a.example", "GET", "//v1/x", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/ä", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/%zz", false},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/{a}", true},
		{"a.example/v1/x", "a.example", "GET", "/v1/x/100%25", true},
	} {
		in, err := ParseInspect(c.rule)
		if err != nil {
			t.Fatal(err)
		}
		if got := in.Matches(c.host, 443, c.method, c.path); got != c.want {
			t.Errorf("%q matches %s %s%s: %v, want %v", c.rule, c.method, c.host, c.path, got, c.want)
		}
		if in.Matches(c.host, 80, c.method, c.path) {
			t.Errorf("%q matches port 80", c.rule)
		}
	}
	if (Inspect{}).Matches("", 0, "GET", "/") || (Use{}).Matches("", 0, "GET", "/") {
		t.Error("the zero rule matches")
	}
}

func TestParseUse(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"TOKEN=vault://global/npm header:authorization packages.example", "TOKEN=vault://global/npm header:authorization packages.example:443"},
		{"T=vault://principal:uid:1000/a.b header:X-Api-Key post,get API.example./v1/ form:sk-", "T=vault://principal:uid:1000/a.b header:x-api-key GET,POST api.example:443/v1/ form:sk-"},
		{"_t=vault://global/k query:Key api.example:8443 revoke", "_t=vault://global/k query:Key api.example:8443 revoke"},
		{"T=vault://global/k query:key GET api.example form:ghp_ revoke", "T=vault://global/k query:key GET api.example:443 form:ghp_ revoke"},
		{"T=vault://global/k query:key a.example revoke", "T=vault://global/k query:key a.example:443 revoke"},
		{"T=vault://global/k query:key a.example form:x keep", "T=vault://global/k query:key a.example:443 form:x keep"},
		{"T=vault://global/k query:key a.example keep revoke", "T=vault://global/k query:key a.example:443 keep revoke"},
		{"T=vault://global/k query:key keep:1", "T=vault://global/k query:key keep:1"},
		{"T=vault://global/k query:key revoke:1", "T=vault://global/k query:key revoke:1"},
	} {
		u, err := ParseUse(c.text)
		if err != nil || u.String() != c.want {
			t.Errorf("ParseUse(%q) = %q, %v, want %q", c.text, u, err, c.want)
		}
		if again, err := ParseCanonicalUses([]string{c.want}); err != nil || again[0].String() != c.want {
			t.Errorf("ParseCanonicalUses(%q) = %q, %v", c.want, again, err)
		}
	}
	for _, c := range []struct{ text, why string }{
		{"", "want a name"},
		{"T=vault://global/k header:x", "want a name"},
		{"T=vault://global/k header:x revoke", "want a name"},
		{"T=vault://global/k header:x keep", "want a name"},
		{"T=vault://global/k header:x a.example revoke keep", "letters"},
		{"T=vault://global/k header:x a.example keep keep", "letters"},
		{"T=vault://global/k header:x GET a.example b.example", "want a name"},
		{"T=vault://global/k header:x a.example revoke form:x", "letters"},
		{"T header:x a.example", "variable"},
		{"1T=vault://global/k header:x a.example", "variable"},
		{"T-1=vault://global/k header:x a.example", "variable"},
		{"=vault://global/k header:x a.example", "variable"},
		{"T=global/k header:x a.example", "no reference"},
		{"T=vault://global header:x a.example", "no reference"},
		{"T=vault://global/a/b header:x a.example", `'/'`},
		{"T=vault://global/a%20b header:x a.example", `'%'`},
		{"T=vault://global/k cookie:x a.example", "want header:NAME"},
		{"T=vault://global/k authorization a.example", "want header:NAME"},
		{"T=vault://global/k header: a.example", "1 to 64"},
		{"T=vault://global/k header:Host a.example", "rules the connection"},
		{"T=vault://global/k header:transfer-encoding a.example", "rules the connection"},
		{"T=vault://global/k header:a:b a.example", `':'`},
		{"T=vault://global/k query:a=b a.example", `'='`},
		{"T=vault://global/k header:x *.a.example", "exact name"},
		{"T=vault://global/k header:x 192.0.2.7", "not by an address"},
		{"T=vault://global/k header:x a.example form:", "1 to 32"},
		{"T=vault://global/k header:x a.example form:a/b", `'/'`},
		{"T=vault://global/k header:x a.example form:" + strings.Repeat("x", 33), "1 to 32"},
	} {
		u, err := ParseUse(c.text)
		if err == nil || !strings.Contains(errors.Unwrap(err).Error(), c.why) || u.Name != "" {
			t.Errorf("ParseUse(%q) = %q, %v, want %q", c.text, u, err, c.why)
		}
		if err != nil && (fault.ReasonOf(err) != "invalid_input" || fault.HintOf(err) == "") {
			t.Errorf("ParseUse(%q): %v", c.text, err)
		}
	}
}

func TestUses(t *testing.T) {
	two := []string{"T=vault://global/k header:x b.example", "T=vault://global/k header:x a.example", "T=vault://global/k header:x A.example:443"}
	us, err := ParseUses(two)
	if want := []string{"T=vault://global/k header:x a.example:443", "T=vault://global/k header:x b.example:443"}; err != nil || !slices.Equal(Strings(us), want) {
		t.Errorf("ParseUses = %q, %v, want %q", Strings(us), err, want)
	}
	for _, other := range []string{"T=vault://global/other header:x a.example", "T=vault://global/k header:x a.example form:a", "T=vault://global/k header:y a.example keep", "T=vault://global/k header:y a.example revoke"} {
		if _, err := ParseUses([]string{two[0], other}); err == nil {
			t.Errorf("ParseUses takes %q beside %q", other, two[0])
		}
	}
	var many []string
	for i := range MaxUses + 1 {
		many = append(many, fmt.Sprintf("T%d=vault://global/k header:x a.example", i))
	}
	if _, err := ParseUses(many[:MaxUses]); err != nil {
		t.Error(err)
	}
	if _, err := ParseUses(many); err == nil {
		t.Errorf("%d uses are taken", len(many))
	}
	for _, texts := range [][]string{{Strings(us)[1], Strings(us)[0]}, two[:1]} {
		if _, err := ParseCanonicalUses(texts); err == nil {
			t.Errorf("ParseCanonicalUses(%q) takes it", texts)
		}
	}
}

func TestInspection(t *testing.T) {
	rules, err := ParseRules([]string{"a.example", "b.example", "*.cdn.example", "c.example"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := ParseInspection(rules, []string{"*.cdn.example:443", "GET a.example:443/x", "a.example:443/y"}, []string{"T=vault://global/k header:x b.example:443/v1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, method, path string
		names, passes      bool
	}{
		{"a.example", "GET", "/x", true, true},
		{"a.example", "PUT", "/x", true, false},
		{"a.example", "PUT", "/y/z", true, true},
		{"a.example", "GET", "/z", true, false},
		{"b.example", "GET", "/anything", true, true},
		{"q.cdn.example", "GET", "/", true, true},
		{"cdn.example", "GET", "/", false, false},
		{"c.example", "GET", "/", false, false},
	} {
		if got := in.Names(c.host, 443); got != c.names {
			t.Errorf("Names(%s) = %v", c.host, got)
		}
		if got := in.Passes(c.host, 443, c.method, c.path); got != c.passes {
			t.Errorf("Passes(%s %s%s) = %v", c.method, c.host, c.path, got)
		}
	}
	for _, c := range []struct{ inspect, uses []string }{
		{[]string{"d.example:443"}, nil},
		{[]string{"a.example:80"}, nil},
		{[]string{"x.cdn.example:443"}, nil}, // another spelling than the rule's
		{nil, []string{"T=vault://global/k header:x d.example:443"}},
		{[]string{"b.example:443", "a.example:443"}, nil},
	} {
		if _, err := ParseInspection(rules, c.inspect, c.uses); err == nil {
			t.Errorf("ParseInspection takes %q, %q", c.inspect, c.uses)
		}
	}
	if zero := (Inspection{}); !zero.Empty() || zero.Names("", 0) || zero.Passes("a.example", 443, "GET", "/") {
		t.Error("the zero Inspection inspects something")
	}
}

func TestPlaceholder(t *testing.T) {
	p := NewPlaceholder("npm_")
	if err := CheckPlaceholder("npm_", p); err != nil || len(p) != 44 || p == NewPlaceholder("npm_") {
		t.Errorf("%q: %v", p, err)
	}
	for _, text := range []string{"", "npm_", p[1:], p + "0", strings.ToUpper(p), p[:43] + "l"} {
		if CheckPlaceholder("npm_", text) == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// sameAsClean holds Path to a reader that isn't ours: a path that is taken is, decoded once or
// twice, where path.Clean says it is.
func sameAsClean(t *testing.T, text string) {
	t.Helper()
	n, err := Path(text)
	if err != nil {
		return
	}
	if again, err := Path(n); err != nil || again != n {
		t.Errorf("Path(%q) = %q, which is %q, %v", text, n, again, err)
	}
	for _, p := range []string{text, n} {
		for range 2 {
			once, err := url.PathUnescape(p)
			if err != nil {
				break // a lone %, decoded before
			}
			p = once
			if clean := path.Clean(p); clean != strings.TrimSuffix(p, "/") && clean != "/" || strings.Count(p, "/") != strings.Count(n, "/") {
				t.Errorf("Path(%q) = %q, which may be %q", text, n, clean)
			}
		}
	}
}

// TestDrawnIn: a placeholder is found in any text around it, in either case, and a part of one isn't.
func TestDrawnIn(t *testing.T) {
	p := NewPlaceholder("npm_")
	drawn := p[len("npm_"):]
	for text, want := range map[string]bool{
		p: true, "Bearer " + p + "\n": true, strings.ToUpper(p): true, "0" + drawn + "z": true, "u" + drawn + "i": true, "\x00" + drawn: true, strings.Repeat("é", 50) + drawn: true,
		"": false, drawn[1:]: false, drawn[:20] + "-" + drawn[20:]: false, drawn[:20] + "l" + drawn[20:]: false, strings.Repeat("0", 200): false, drawn[:39]: false,
	} {
		if got := slices.Contains(slices.Collect(DrawnIn(text)), drawn); got != want {
			t.Errorf("%q has it: %v, want %v", text, got, want)
		}
	}
	for x := range DrawnIn(p) {
		if x != drawn {
			t.Errorf("%q", x)
		}
		break
	}
}

func FuzzInspect(f *testing.F) {
	for _, s := range []string{"GET,HEAD packages.example:443/simple/", "*.cdn.example:443", "a.example/..;/x", "a.example/%2e%2E/", "a.example/%25%32%65", "GET a.example:443/x pin:" + pinA + " pin:" + pinB, "a.example:443/live websocket pin:" + pinA, "a.example answer:9 body:1KiB",
		"T=vault://global/npm header:authorization GET packages.example:443/x form:npm_ revoke", "T=vault://global/k query:key a.example:443"} {
		f.Add(s, "/simple/x")
	}
	for _, s := range []string{"/..%3b/", "/%2f", "/a%25%32%65", "//", "/./", `/\`, "/{}", "/100%25", "/%2525"} {
		f.Add("a.example/x", s)
	}
	f.Fuzz(func(t *testing.T, text, request string) {
		sameAsClean(t, request)
		if in, err := ParseInspect(text); err == nil {
			again, err := ParseCanonicalInspects([]string{in.String()})
			if err != nil || again[0].String() != in.String() {
				t.Fatalf("ParseInspect(%q) = %q, which is %q, %v", text, in, again, err)
			}
			host, below := in.Host.Name()
			if in.Path != "" && !below && in.Matches(host, in.Host.Port(), "GET", request) {
				n, _ := url.PathUnescape(request)
				want, _ := url.PathUnescape(in.Path)
				if !strings.HasPrefix(path.Clean(n)+"/", strings.TrimSuffix(want, "/")+"/") {
					t.Errorf("%q matches %q", in, request)
				}
			}
		}
		u, err := ParseUse(text)
		if err != nil {
			return
		}
		again, err := ParseCanonicalUses([]string{u.String()})
		if err != nil || again[0].String() != u.String() {
			t.Fatalf("ParseUse(%q) = %q, which is %q, %v", text, u, again, err)
		}
		rules, err := ParseRules([]string{u.Rule().String()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseInspection(rules, nil, []string{u.String()}); err != nil {
			t.Error(err)
		}
	})
}
