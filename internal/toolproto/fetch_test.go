package toolproto

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestFetchInput: what the bounds of members can't say.
func TestFetchInput(t *testing.T) {
	for more, why := range map[string]string{
		``:                        "",
		`"allow_redirects":false`: "",
		`"method":"POST","body":"x","headers":["Content-Type: text/plain","ACCEPT:*/*"]`: "",
		`"method":"POST"`: "",
		`"method":"HEAD","headers":["accept-language: de"]`:           "",
		`"allowed_content_types":["text/*","application/vnd.x+json"]`: "",
		`"method":"PUT"`: "method",
		`"method":"get"`: "method",
		`"body":"x"`:     "only a POST",
		`"method":"POST","body":"x","encoding":"base64"`: "base64",
		`"headers":["content-type: text/plain"]`:         "POST's body",
		`"headers":["authorization: Bearer x"]`:          "credentials",
		`"headers":["Proxy-Authorization: Basic x"]`:     "credentials",
		`"headers":["cookie: a=b"]`:                      "credentials",
		`"headers":["x-api-key: x"]`:                     "credentials",
		`"headers":["x-forwarded-for: 127.0.0.1"]`:       "credentials",
		`"headers":["private-token: x"]`:                 "credentials",
		`"headers":["api-key: x"]`:                       "credentials",
		`"headers":["host: evil.example"]`:               "isn't one of",
		`"headers":["connection: close"]`:                "isn't one of",
		`"headers":["transfer-encoding: chunked"]`:       "isn't one of",
		`"headers":["accept-encoding: br"]`:              "isn't one of",
		`"headers":["range: bytes=0-1"]`:                 "isn't one of",
		`"headers":["accept : */*"]`:                     "NAME: VALUE",
		`"headers":["accept"]`:                           "NAME: VALUE",
		`"headers":[": x"]`:                              "NAME: VALUE",
		`"headers":["accept\r\nx: y"]`:                   "NAME: VALUE",
		`"headers":["accept: x\r\nHost: evil"]`:          "printable",
		`"headers":["accept: x\ny"]`:                     "printable",
		`"headers":["accept: x\u0000"]`:                  "printable",
		`"headers":["accept: \tx"]`:                      "printable",
		`"headers":["user-agent: ü"]`:                    "printable",
		`"headers":["accept: a","Accept: b"]`:            "twice",
		`"allowed_content_types":["text"]`:               "TYPE/SUBTYPE",
		`"allowed_content_types":["*/*"]`:                "TYPE/SUBTYPE",
		`"allowed_content_types":["Text/html"]`:          "TYPE/SUBTYPE",
		`"allowed_content_types":["text/html; q=1"]`:     "TYPE/SUBTYPE",
		`"allowed_content_types":["/"]`:                  "TYPE/SUBTYPE",
		`"max_redirects":0`:                              "within",
		`"max_redirects":11`:                             "within",
		`"max_response_bytes":0`:                         "within",
		`"max_response_bytes":4194305`:                   "within",
		`"request_timeout_ms":0`:                         "within",
		`"connect_timeout_ms":30001`:                     "within",
		`"cache":true`:                                   "unknown",
		`"allow_private_targets":true`:                   "unknown",
		`"credential_bindings":["Authorization: Bearer vault://global/api","x-api-key:vault://global/b"]`: "",
		`"credential_bindings":["authorization: vault://global/a","Authorization: vault://global/b"]`:     "twice",
		`"credential_bindings":["authorization: Bearer x"]`:                                               "want HEADER",
		`"credential_bindings":["authorization: a b vault://global/a"]`:                                   "want HEADER",
		`"credential_bindings":["vault://global/a"]`:                                                      "want HEADER",
		`"credential_bindings":["authorization: basic vault://global/a"]`:                                 "Basic",
		`"credential_bindings":["authorization: Bea:rer vault://global/a"]`:                               "a scheme",
		`"credential_bindings":["accept: vault://global/a"]`:                                              "no credentials",
		`"credential_bindings":["x\ny: vault://global/a"]`:                                                "want HEADER",
	} {
		text := `{"url":"https://docs.example/"`
		if more != "" {
			text += "," + more
		}
		var in FetchInput
		err := Decode([]byte(text+"}"), &in)
		if (err == nil) != (why == "") || err != nil && (fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v; want %q", more, err, why)
			continue
		}
		if err != nil {
			continue
		}
		// palyra-fetch reads what the kernel writes as the same.
		line, err := Encode(&in)
		if err != nil {
			t.Fatal(err)
		}
		var again FetchInput
		if err := DecodeInner(line, &again); err != nil || !slices.Equal(again.Brief(), in.Brief()) || again.AllowRedirects != in.AllowRedirects || in.AllowRedirects != (more != `"allow_redirects":false`) {
			t.Errorf("%s: %+v, then %+v, %v", more, in, again, err)
		}
	}
}

// TestFetchPlain: no secret goes out in the clear.
func TestFetchPlain(t *testing.T) {
	var in FetchInput
	if err := Decode([]byte(`{"url":"http://docs.example/","credential_bindings":["x-api-key: vault://global/a"]}`), &in); err == nil || !strings.Contains(err.Error(), "https alone") {
		t.Errorf("%v", err)
	}
}

// TestFetchBrief: policy and approver see all that is sent.
func TestFetchBrief(t *testing.T) {
	var in FetchInput
	if err := Decode([]byte(`{"url":"https://docs.example/x","method":"POST","body":"eA==","encoding":"base64","headers":["Accept: a b"],"credential_bindings":["x-api-key: vault://global/a"]}`), &in); err != nil {
		t.Fatal(err)
	}
	want := []string{"method=POST", "url=https://docs.example/x", "headers=Accept: a b", "credential_bindings=x-api-key: vault://global/a", "size=1", "digest=sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
	if got := in.Brief(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if b, err := json.Marshal(FetchResult{}); err != nil || !strings.Contains(string(b), `"truncated":false`) {
		t.Errorf("%s, %v", b, err)
	}
}
