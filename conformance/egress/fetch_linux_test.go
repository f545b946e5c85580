package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/conformance/world"
	"palyra/internal/toolproto"
	"palyra/isolate/evidence"
)

// fetched is a call of http.fetch, and what it left.
type fetched struct {
	call
	toolproto.FetchResult
	reason, text string // of the tool's error
}

// fetch makes a call of http.fetch by b's palyrad.
func (b *bench) fetch(input map[string]any) *fetched {
	b.t.Helper()
	in, err := json.Marshal(input)
	if err != nil {
		b.t.Fatal(err)
	}
	receipt := filepath.Join(b.t.TempDir(), "receipt.json")
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	c := b.command(ctx, palyra(), "call", "--receipt", receipt, "http.fetch", string(in))
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	f := &fetched{call: call{status: c.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}}
	if _, err := os.Stat(receipt); err == nil {
		b.read(receipt, &f.call)
	}
	var said struct {
		toolproto.FetchResult
		Error toolproto.Reason
	}
	if json.Unmarshal(out.Bytes(), &said) == nil {
		f.FetchResult, f.reason, f.text = said.FetchResult, said.Error.Reason, said.Error.Text
	}
	return f
}

// String is cut: an answer may be long.
func (f *fetched) String() string {
	f.stdout = f.stdout[:min(len(f.stdout), 2000)]
	return f.call.String()
}

type in = map[string]any

// TestFetchCredentials: http.fetch reads a private page with a secret that no process of the call has,
// and another host doesn't get it.
func TestFetchCredentials(t *testing.T) {
	b := begun(t)
	for _, n := range []string{"packages.example", "other.example"} {
		b.w.Set(n, world.Addrs(world.Web))
	}
	b.w.Want(token)
	t.Cleanup(func() { b.w.Want("") })
	state, key := filepath.Join(b.home, "daemon"), filepath.Join(b.home, "vault.key")
	for _, args := range [][]string{{"init", "--state", state, "--key", key}, {"set", "--state", state, "--file", b.write("../token.txt", token), "vault://global/token"}} {
		if out, err := b.outside(append([]string{palyra(), "vault"}, args...)...); err != nil {
			t.Fatalf("palyra vault %q: %v\n%s", args, err, out)
		}
	}
	b.daemon(fmt.Sprintf("vault.identity = %q\n", key))
	private := "https://packages.example/private/npm/fromworld"
	bindings := []string{"authorization: Bearer vault://global/token"}
	f := b.fetch(in{"url": private, "allowed_content_types": []string{"text/*", "application/*"}, "credential_bindings": bindings})
	if f.status != 0 || f.Status != 200 || !strings.Contains(f.stdout, "fromworld") || len(f.egress.Requests) != 1 || !slices.Equal(f.egress.Requests[0].Uses, []string{"CREDENTIAL_1"}) {
		t.Errorf("a private page: %s, %+v", f, f.egress)
	}
	if f := b.fetch(in{"url": private}); f.Status == 200 {
		t.Errorf("without it: %s", f)
	}
	f = b.fetch(in{"url": "https://packages.example/to?" + url.QueryEscape("https://other.example/private/npm/fromworld"), "egress_hosts": []string{"other.example"}, "credential_bindings": bindings})
	if f.Status == 200 || len(f.Redirects) != 1 || len(f.egress.Leaks) > 0 {
		t.Errorf("another host: %s", f)
	}
	said := b.fetch(in{"url": "https://packages.example/private/echo", "credential_bindings": bindings})
	if said.outcome != "failed" || !strings.Contains(said.stderr, "placeholder_leaked") {
		t.Errorf("a host that says the secret: %s", said)
	}
	if strings.Contains(f.stdout+f.stderr+said.stdout+said.stderr, token) {
		t.Error("the output has the secret")
	}
}

// TestNotify: palyrad tells a URL of its operator's that a question waits, over https, by its name
// and with a secret of the vault. The host gets an id and a number.
func TestNotify(t *testing.T) {
	b := begun(t)
	b.write("policy/all.cedar", `@id("all") permit (principal, action, resource) unless { principal == Palyra::User::"palyrad" };
@id("ask") @untested("a test") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"process.run") unless { context.approved };`)
	files, ok := policy.PresetFiles("")
	if !ok {
		t.Fatal("no built-in set")
	}
	b.write("policy/38-notify.cedar", string(files["38-notify.cedar"]))
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Want(token)
	t.Cleanup(func() { b.w.Want("") })
	state, key := filepath.Join(b.home, "daemon"), filepath.Join(b.home, "vault.key")
	for _, args := range [][]string{{"init", "--state", state, "--key", key}, {"set", "--state", state, "--file", b.write("../token.txt", token), "vault://global/token"}} {
		if out, err := b.outside(append([]string{palyra(), "vault"}, args...)...); err != nil {
			t.Fatalf("palyra vault %q: %v\n%s", args, err, out)
		}
	}
	before := len(b.w.Requests())
	b.daemon(fmt.Sprintf("vault.identity = %q\ndaemon.drain_timeout = \"0s\"\n[notify]\nurl = %q\nsecret = %q\n", key, "https://packages.example/private/echo", "vault://global/token"))
	ctx, cancel := context.WithCancel(t.Context())
	asks := b.command(ctx, palyra(), "call", "process.run", `{"argv":["/bin/echo","a-text-of-the-call"]}`)
	if err := asks.Start(); err != nil {
		t.Fatal(err)
	}
	defer asks.Wait()
	defer cancel()
	b.w.Until(func() bool { return len(b.w.Requests()) > before })
	b.w.Until(func() bool { return b.w.Requests()[before].Body != "" }) // it is read while the answer is written
	got := b.w.Requests()[before]
	if got.Method != "POST" || got.Host != "packages.example" || got.Path != "/private/echo" || got.Authorization != "Bearer "+token ||
		!regexp.MustCompile(`^\{"id":"apr_[0-9a-f]{32}","waiting":1\}$`).MatchString(got.Body) {
		t.Errorf("the host got %+v", got)
	}
}

// to is a page that redirects to a URL.
func to(where string) string {
	return "http://packages.example/to?" + url.QueryEscape(where)
}

// TestFetch: what http.fetch gets of servers that mean well and ill, and what its receipt says.
func TestFetch(t *testing.T) {
	b := begun(t)
	b.daemon()
	for name, addr := range map[string]string{"packages.example": world.Web, "packages.test": world.Web, "other.example": world.Web6, "lies.example": world.Private, "dead.example": world.Dead} {
		b.w.Set(name, world.Addrs(addr))
	}
	secret := "http://" + world.Metadata + "/latest/meta-data/"
	if out, err := b.outside("curl", "-sSL", to(secret)); err != nil || !strings.Contains(out, "the cloud's secret") {
		t.Fatalf("control: %v\n%s", err, out)
	}
	if out, err := b.outside("curl", "-sSL", to("http://lies.example/")); err != nil || !strings.Contains(out, "lies.example at") {
		t.Fatalf("control: %v\n%s", err, out)
	}
	const texts = 512 << 10
	for _, c := range []struct {
		name   string
		in     in
		reason string // of the tool's error, "" if it has a result
		word   string // in the error, or in the result's text
		hosts  []string
		ok     func(*fetched) bool
	}{
		{"a page", in{"url": page}, "", "packages.example at " + world.Web + ":443\n", []string{"packages.example:443"}, func(f *fetched) bool {
			return f.Status == 200 && f.URL == page && f.ContentType == "text/plain; charset=utf-8" && !f.Truncated && f.egress.Connections[0].TLS == "TLS 1.3"
		}},
		{"IPv6", in{"url": "http://Other.example."}, "", "other.example at [" + world.Web6 + "]:80\n", []string{"other.example:80"}, nil},
		{"an address", in{"url": "http://" + world.Web + "/"}, "", world.Web + " at", []string{world.Web + ":80"}, nil},
		{"HEAD", in{"url": page, "method": "HEAD"}, "", "", []string{"packages.example:443"}, func(f *fetched) bool { return f.Status == 200 && f.Length == 0 }},
		{"POST", in{"url": "https://packages.example/sum", "method": "POST", "body": "aGVsbG8=", "encoding": "base64"}, "", "5 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", nil, nil},
		{"no such page", in{"url": "https://packages.example/nothing"}, "", "404", nil, func(f *fetched) bool { return f.Status == 404 && f.status == 0 }},
		{"what is sent", in{"url": "http://packages.example/echo", "headers": []string{"accept-language: de"}}, "", "GET /echo HTTP/1.1\r\nHost: packages.example\r\nUser-Agent: palyra-fetch\r\nAccept-Encoding: gzip\r\nAccept-Language: de\r\n\r\n", nil, nil},
		{"redirects", in{"url": "https://packages.example/hops/3"}, "", "arrived\n", nil, func(f *fetched) bool { return len(f.Redirects) == 3 && f.URL == "https://packages.example/hops/0" }},
		{"ten redirects", in{"url": "https://packages.example/hops/10"}, "redirect_refused", "more than 3", nil, nil},
		{"ten redirects, allowed", in{"url": "https://packages.example/hops/10", "max_redirects": 10}, "", "arrived\n", nil, nil},
		{"none allowed", in{"url": "https://packages.example/hops/1", "allow_redirects": false}, "", "Found", nil, func(f *fetched) bool { return f.Status == 302 && f.Headers["location"] == "/hops/0" }},
		{"a body again", in{"url": "https://packages.example/again", "method": "POST", "body": "x"}, "redirect_refused", "body", nil, nil},
		{"to another host", in{"url": to("https://other.example/")}, "egress_denied", `"egress_hosts":["other.example:443"]`, []string{"packages.example:80"}, nil},
		{"to another host, named", in{"url": to("https://other.example/"), "egress_hosts": []string{"other.example"}}, "", "other.example at", []string{"other.example:443", "packages.example:80"},
			func(f *fetched) bool { return len(f.egress.Connections) == 2 }},
		{"from https to http", in{"url": "https://packages.example/to?" + url.QueryEscape("http://packages.example/"), "egress_hosts": []string{"packages.example:80"}}, "redirect_refused", "https to http", nil, nil},
		{"to the cloud's metadata", in{"url": to(secret)}, "egress_denied", world.Metadata, nil, nil},
		{"to a private address by name", in{"url": to("http://lies.example/"), "egress_hosts": []string{"lies.example:80"}}, "not_found", "", nil,
			func(f *fetched) bool { return f.denied("lies.example", 80, evidence.DenyForbidden) }},
		{"a private address by name", in{"url": "http://lies.example/"}, "not_found", "", nil,
			func(f *fetched) bool { return f.denied("lies.example", 80, evidence.DenyForbidden) }},
		{"a private address, its network named", in{"url": "http://lies.example/", "egress_hosts": []string{"10.0.0.0/8:80"}}, "", "lies.example at " + world.Private, []string{"10.0.0.0/8:80", "lies.example:80"}, nil},
		{"a name that isn't", in{"url": "https://nothing.example/"}, "not_found", "", nil, nil},
		{"no answer", in{"url": "https://dead.example/", "connect_timeout_ms": 300}, "timeout", "", nil, nil},
		{"an answer without an end", in{"url": "https://packages.example/stories", "request_timeout_ms": 60_000}, "", "and then and", nil, func(f *fetched) bool { return f.Truncated && f.Length == texts }},
		{"a body that doesn't come", in{"url": "https://packages.example/tomorrow", "request_timeout_ms": 1000}, "timeout", "", nil, nil},
		{"a bomb", in{"url": "https://packages.example/bomb", "request_timeout_ms": 60_000}, "", "", nil, func(f *fetched) bool {
			return f.Truncated && f.Length == texts && f.Content.Binary && f.egress.Received < 200_000
		}},
		{"another type", in{"url": "https://packages.example/bytes/10"}, "content_type_refused", "application/octet-stream", nil, nil},
		{"another type, allowed", in{"url": "https://packages.example/bytes/10", "allowed_content_types": []string{"application/octet-stream"}}, "", "", nil,
			func(f *fetched) bool { return f.Length == 10 && f.Content.Binary }},
		{"the certificate of another host", in{"url": "https://packages.test/"}, "bad_answer", "certificate", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := b.in(t).fetch(c.in)
			text := f.text
			if c.reason == "" {
				text = f.Content.Text
			}
			if f.reason != c.reason || (f.status == 0) != (c.reason == "") || !strings.Contains(text, c.word) || f.outcome != "executed" ||
				c.hosts != nil && !slices.Equal(f.hosts, c.hosts) || c.ok != nil && !c.ok(f) {
				t.Errorf("%s: %q", f, text[:min(len(text), 200)])
			}
		})
	}
	if n := len(b.w.Connections(world.Metadata, 80)); n != 1 { // the control's
		t.Errorf("%d connections to %s", n, world.Metadata)
	}
	if n := len(b.w.Connections(world.Private, 80)); n != 2 { // the control's, and that of the call that names the network
		t.Errorf("%d connections to %s", n, world.Private)
	}
	// What no call is made of, and no word leaves this host for.
	b.w.Forget()
	b.w.Set("packages.example", world.Addrs(world.Web))
	for name, c := range map[string]in{
		"a header in a header":  {"url": page, "headers": []string{"accept: x\r\nHost: other.example"}},
		"a header in a URL":     {"url": "http://packages.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"},
		"a credential":          {"url": page, "headers": []string{"authorization: Bearer x"}},
		"a user":                {"url": "https://u:p@packages.example/"},
		"a file":                {"url": "file:///etc/passwd"},
		"an address, in octal":  {"url": "http://0300.037.0304.0214/"},
		"palyra-egress itself":  {"url": "http://198.18.0.2:3128/"},
		"too much":              {"url": page, "max_response_bytes": 1 << 30},
		"eleven redirects":      {"url": page, "max_redirects": 11},
		"all hosts":             {"url": page, "egress_hosts": []string{"*"}},
		"a program of its own":  {"url": page, "argv": []string{"sh"}},
		"nine further networks": {"url": page, "egress_hosts": strings.Fields("a.example b.example c.example d.example e.example f.example g.example h.example i.example")},
	} {
		if f := b.fetch(c); f.status == 0 || f.stdout != "" || f.outcome != "" || !strings.Contains(f.stderr, "palyra") {
			t.Errorf("%s: %s", name, f)
		}
	}
	if q, c := b.w.Queries(""), b.w.All(); len(q) > 0 || len(c) > 0 {
		t.Errorf("arrived: queries %v, connections %+v", q, c)
	}
}
