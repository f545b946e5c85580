package egress

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"palyra/conformance/seek"
	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

var acceptDigest = regexp.MustCompile(`--digest (sha256:\S+)`)

// addServer adds an MCP server and accepts its tools.
func (b *bench) addServer(name string, args ...string) {
	b.t.Helper()
	b.ctl(append([]string{"mcp", "add", name}, args...)...)
	m := acceptDigest.FindStringSubmatch(b.ctl("mcp", "accept", name))
	if m == nil {
		b.t.Fatal("nothing to accept")
	}
	b.ctl("mcp", "accept", name, "--digest", m[1])
}

// askServer calls a tool of a server in a session.
func (b *bench) askServer(session, server, tool, text string) (string, error) {
	b.t.Helper()
	in, err := json.Marshal(map[string]any{"server": server, "tool": tool, "arguments": map[string]string{"text": text}})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.outside(palyra(), "call", "--session", session, "--parallel", "mcp.call", string(in))
}

// background are the runs of servers that run.
func (b *bench) background() (ids []string) {
	b.t.Helper()
	var runs struct {
		Runs []struct {
			ID string `json:"id"`
		} `json:"runs"`
	}
	if err := json.Unmarshal([]byte(b.ctl("runs", "ls", "--background", "--json")), &runs); err != nil {
		b.t.Fatal(err)
	}
	for _, r := range runs.Runs {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestRemote: an MCP server that is reached over HTTP is one as any other, and reaches its host alone,
// whatever it says.
func TestRemote(t *testing.T) {
	b := begun(t)
	b.write("policy/world.hosts", "packages.example\n")
	b.daemon()
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	for _, c := range []struct{ want, args string }{
		{"holds credentials", "bad https://packages.example/mcp/plain --header Authorization:x"},
		{"the protocol's", "bad https://packages.example/mcp/plain --header Mcp-Session-Id:x"},
		{"the url leads to", "bad https://packages.example/mcp/plain --egress-secret T=vault://global/t|header:authorization|other.example"},
		{"alone", "bad http://packages.example/mcp/plain --egress-secret T=vault://global/t|header:authorization|packages.example:80"},
		{"isn't served", "bad https://packages.example/mcp/plain --transport sse"},
		{"behind a URL", "bad https://packages.example/mcp/plain more"},
		{"no variables", "bad https://packages.example/mcp/plain --env A=b"},
		{"credentials are forbidden", "bad https://me:word@packages.example/mcp/plain"},
		{"no such list", "bad https://packages.example/mcp/plain --egress @none"},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		if out, err := b.outside(append([]string{palyra(), "mcp", "add"}, args...)...); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("mcp add %s: %v, %s; want %q", c.args, err, out, c.want)
		}
	}
	for kind, want := range map[string]string{"login": "Palyra does no OAuth", "away": "a redirect to other.example:443", "nowhere": ""} {
		if kind == "nowhere" {
			b.w.Set("nowhere.example", world.Replies(world.Reply{}))
			b.ctl("mcp", "add", kind, "https://nowhere.example/mcp/plain")
			want = "wasn't asked"
		} else {
			b.ctl("mcp", "add", kind, "https://packages.example/mcp/"+kind)
		}
		if out, err := b.outside(palyra(), "mcp", "accept", kind); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s; want %q", kind, err, out, want)
		}
	}
	b.addServer("plain", "--transport", "http", "https://packages.example/mcp/plain", "--header", "X-Team: blue", "--egress", "@world")
	if out := b.ctl("mcp", "show", "plain"); !strings.Contains(out, "url        https://packages.example/mcp/plain\nheader     x-team: blue\n") || !strings.Contains(out, "reaches    @world\nreaches    packages.example:443\n") {
		t.Errorf("shown: %s", out)
	}
	session := strings.TrimSpace(b.ctl("sessions", "new"))
	says := func(server, text string) {
		t.Helper()
		if out, err := b.askServer(session, server, "say", text); err != nil || !strings.Contains(out, "you said "+text) {
			t.Errorf("%s: %v, %s", server, err, out)
		}
	}
	says("plain", "hello")
	says("plain", "hello again")
	for _, kind := range []string{"events", "moved", "forget"} {
		b.addServer(kind, "https://packages.example/mcp/"+kind)
		says(kind, "one")
		says(kind, "two")
	}
	// Its own receipt has the URL's host and what went there.
	ids := b.background()
	if len(ids) != 4 {
		t.Fatalf("%d servers run", len(ids))
	}
	for _, id := range ids {
		c := b.ended(id)
		if !slices.Equal(c.hosts, []string{"packages.example:443"}) || len(c.egress.Connections) == 0 {
			t.Error(c)
		}
	}
	for _, x := range b.w.All() {
		if x.ServerName != "packages.example" {
			t.Errorf("arrived %+v", x)
		}
	}
	// The ends by name, and the next call of another server is none the worse.
	for kind, want := range map[string]string{"silent": "timeout", "forever": "timeout", "flood": "server_died", "cut": "server_died"} {
		b.addServer(kind, "--timeout", "4s", "https://packages.example/mcp/"+kind)
		if out, err := b.askServer(session, kind, "say", "x"); err == nil || !strings.Contains(out, want) && !strings.Contains(out, "timed_out") {
			t.Errorf("%s: %v, %s; want %q", kind, err, out, want)
		}
	}
	says("plain", "still")
	// A session that ends has its server's end.
	b.ctl("sessions", "end", session)
	b.w.Until(func() bool {
		return slices.ContainsFunc(b.w.Requests(), func(q world.Request) bool { return q.Method == "DELETE" && q.Path == "/mcp/plain" })
	})
}

// TestRemoteSecret: a server over HTTP gets a token that its program never has; one that says it back
// ends its own call, and the token is nowhere but in the world.
func TestRemoteSecret(t *testing.T) {
	b := begun(t)
	b.vaulted()
	use := "TOKEN=vault://global/token header:authorization packages.example/private"
	b.addServer("tracker", "https://packages.example/private/mcp/plain", "--egress-secret", use)
	session := strings.TrimSpace(b.ctl("sessions", "new"))
	if out, err := b.askServer(session, "tracker", "say", "hello"); err != nil || !strings.Contains(out, "you said hello") {
		t.Fatalf("%v, %s", err, out)
	}
	if !slices.ContainsFunc(b.w.Requests(), func(q world.Request) bool {
		return q.Path == "/private/mcp/plain" && q.Status == 200 && q.Authorization == "Bearer "+token
	}) {
		t.Errorf("arrived %+v", b.w.Requests())
	}
	ids := b.background()
	if len(ids) != 1 {
		t.Fatalf("%d servers run", len(ids))
	}
	out, err := b.askServer(session, "tracker", "login", "")
	if err != nil || !strings.Contains(out, "you are Bearer [secret placeholder of TOKEN]") {
		t.Errorf("a server that says its token: %v, %s", err, out)
	}
	c := b.ended(ids[0])
	if c.reason != "placeholder_leaked" || !slices.Contains(c.egress.Leaks, evidence.Leak{Name: "TOKEN", Where: evidence.LeakStdout}) {
		t.Error(c)
	}
	v := seek.For(token)
	if found, read, err := v.Files(b.records()); err != nil || read == 0 || len(found) > 0 {
		t.Errorf("in %d files of palyrad's: %q, %v", read, found, err)
	}
	// The control: the search finds it where it is put.
	control := b.write("daemon/control", token)
	if found, _, err := v.Files(b.records()); err != nil || len(found) != 1 {
		t.Errorf("control: %q, %v", found, err)
	}
	os.Remove(control)
	if found := v.In([]byte(out)); len(found) > 0 {
		t.Errorf("printed: %q", found)
	}
}
