package target

import (
	"strings"
	"testing"

	"palyra/call/egress"
	"palyra/internal/fault"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][2]string{
		"https://docs.example":                  {"https://docs.example", "docs.example:443"},
		"https://Docs.Example./a%20b?q=1&q=%23": {"https://docs.example/a%20b?q=1&q=%23", "docs.example:443"},
		"http://docs.example/":                  {"http://docs.example/", "docs.example:80"},
		"https://docs.example:443/":             {"https://docs.example/", "docs.example:443"},
		"http://docs.example:443/":              {"http://docs.example:443/", "docs.example:443"},
		"https://docs.example:8443/../x":        {"https://docs.example:8443/../x", "docs.example:8443"},
		"http://192.0.2.7/":                     {"http://192.0.2.7/", "192.0.2.7:80"},
		"http://[2001:DB8::1]:8080/":            {"http://[2001:db8::1]:8080/", "[2001:db8::1]:8080"},
		"https://xn--bcher-kva.example/%2e%2e/": {"https://xn--bcher-kva.example/%2e%2e/", "xn--bcher-kva.example:443"},
	} {
		got, err := Parse(text)
		if err != nil || got.String() != want[0] || got.Rule().String() != want[1] {
			t.Errorf("%s: %s, %s, %v; want %s", text, got, got.Rule(), err, want)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s isn't read as it's printed: %v, %v", text, again, err)
		}
	}
}

// refusals are URLs that are refused, with a word of the reason.
var refusals = map[string]string{
	"":                          "scheme",
	"docs.example":              "scheme",
	"//docs.example/":           "scheme",
	"ftp://docs.example/":       "scheme",
	"file:///etc/passwd":        "scheme",
	"gopher://docs.example/":    "scheme",
	"javascript:alert(1)":       "scheme",
	"https:docs.example":        "no host",
	"https:///docs.example":     "no host",
	"https://":                  "no host",
	"https://u@docs.example/":   "credentials",
	"https://u:p@docs.example/": "credentials",
	"https://@docs.example/":    "credentials",
	// Where one reader sees docs.example and another evil.example.
	`https://docs.example\@evil.example/`:                          `'\'`,
	"https://docs.example%2f@evil.example/":                        "credentials",
	"https://docs.example%00.evil.example/":                        "not a URL",
	"https://docs.example\t.evil.example/":                         "white space",
	"https://docs.example /":                                       "white space",
	"https://docs.example/\r\nX-Evil: 1":                           "white space",
	"https://docs.example/\x00":                                    "white space",
	"https://docs.example/#x":                                      "fragment",
	"https://docs.example/#":                                       "fragment",
	"https://docs.example:/":                                       "port",
	"https://docs.example:0/":                                      "port",
	"https://docs.example:0443/":                                   "port",
	"https://docs.example:65536/":                                  "port",
	"https://docs.example:443x/":                                   "not a URL",
	"https://bücher.example/":                                      "ASCII",
	"https://docs.example/ü":                                       "ASCII",
	"http://2130706433/":                                           "number",
	"http://0x7f.1/":                                               "number",
	"http://0177.0.0.1/":                                           "number",
	"http://127.1/":                                                "number",
	"http://[::ffff:127.0.0.1]/":                                   "IPv4",
	"http://[fe80::1%25eth0]/":                                     "zone",
	"http://[::1":                                                  "not a URL",
	"http://198.18.0.2:3128/":                                      "cell",
	"http://localhost/":                                            "localhost",
	"https://" + strings.Repeat("a.", 127) + "example/":            "at most",
	"https://docs.example/" + strings.Repeat("x", MaxURL):          "at most",
	"https://*.example/":                                           "'*'",
	"https://docs..example/":                                       "label",
	"https://docs.example/%zz":                                     "not a URL",
	"HTTPS://docs.example\u2044evil.example/":                      "ASCII",
	"https://docs.example:443:80/":                                 "",
	"view-source:https://docs.example/":                            "scheme",
	"https://[docs.example]/":                                      "",
	"https://docs.example,evil.example/":                           "in a name",
	"https://docs.example;evil.example/":                           "in a name",
	"http://169.254.169.254.:80/":                                  "",
	"http://user:pw@169.254.169.254/latest/meta-data/":             "credentials",
	"https://docs.example%3a443/":                                  "not a URL",
	"https://" + strings.Repeat("a", 64) + ".example/":             "label",
	"https://-docs.example/":                                       "label",
	"https://docs.example\u200b/":                                  "ASCII",
	"https://docs.example?@evil.example/#@":                        "fragment",
	"data:text/plain,hello":                                        "scheme",
	"unix:///run/palyra/p.sock":                                    "scheme",
	"ws://docs.example/":                                           "scheme",
	"http+unix://%2Frun%2Fx/":                                      "",
	"https://docs.example:443\\@evil.example/":                     `'\'`,
	"\x00https://docs.example/":                                    "white space",
	" https://docs.example/":                                       "white space",
	"https://docs.example/ ":                                       "white space",
	"https://docs.example/\u202e":                                  "ASCII",
	"https://docs.example/\x7f":                                    "white space",
	"https://0300.0250.0.1/":                                       "number",
	"https://[2001:db8::1%251]/":                                   "zone",
	"https://[::]x/":                                               "",
	"https://docs.example:４４３/":                                    "ASCII",
	"https://docs。example/":                                        "ASCII",
	"https://docs.example/" + strings.Repeat("%20", MaxURL/3) + "": "at most",
}

func TestRefused(t *testing.T) {
	for text, why := range refusals {
		got, err := Parse(text)
		if fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "invalid_input" || !strings.Contains(err.Error(), why) || got != (Target{}) {
			t.Errorf("%q: %v, %v; want %q", text, got, err, why)
		}
	}
}

func TestFollow(t *testing.T) {
	from, err := Parse("https://docs.example/a/b?q=1")
	if err != nil {
		t.Fatal(err)
	}
	for location, want := range map[string]string{
		"c":                               "https://docs.example/a/c",
		"../../../c":                      "https://docs.example/c",
		"?q=2":                            "https://docs.example/a/b?q=2",
		"/c#part":                         "https://docs.example/c",
		"#part":                           "https://docs.example/a/b?q=1",
		"//Other.example/":                "https://other.example/",
		"HTTP://other.example:80/":        "http://other.example/",
		"/ü x":                            "https://docs.example/%C3%BC%20x",
		"http://u@other.example/":         "",
		"file:///etc/passwd":              "",
		"//other.example:/":               "",
		"/a\r\nb":                         "",
		`\\other.example\x`:               "",
		`https:\\other.example/`:          "",
		"http://localhost/":               "",
		"http://198.18.0.1/":              "",
		"http://2852039166/":              "",
		"https://" + "ü.example/":         "",
		"/" + strings.Repeat("x", MaxURL): "",
	} {
		got, err := from.Follow(location)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %v, %v; want %q", location, got, err, want)
		}
	}
}

func TestListed(t *testing.T) {
	rules, err := egress.ParseRules([]string{"docs.example", "*.cdn.example:80", "10.1.0.0/16:80", "192.0.2.7:443"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"https://docs.example/": true, "http://docs.example/": false, "https://docs.example:8443/": false, "https://a.docs.example/": false,
		"http://a.cdn.example/": true, "http://cdn.example/": false, "http://10.1.2.3/": true, "https://10.1.2.3/": false, "http://10.2.0.1/": false,
		"https://192.0.2.7/": true, "https://192.0.2.8/": false,
	} {
		if got, err := Parse(text); err != nil || got.Listed(rules) != want {
			t.Errorf("%s: %v, %v; want %v", text, got.Listed(rules), err, want)
		}
	}
	if (Target{}).Listed(rules) {
		t.Error("the zero Target is listed")
	}
}

// FuzzFollow: where a redirect leads is refused or printed as it's read.
func FuzzFollow(f *testing.F) {
	for text := range refusals {
		f.Add(text)
	}
	f.Add("//other.example/x")
	from, err := Parse("https://docs.example/a/b")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, location string) {
		got, err := from.Follow(location)
		if err != nil {
			return
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Fatalf("%q: %q, %v", location, got, err)
		}
	})
}
