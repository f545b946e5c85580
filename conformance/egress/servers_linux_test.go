package egress

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

// webServer is an MCP server with one tool, which asks for a URL.
const webServer = `while IFS= read -r line; do
  [[ $line =~ \"id\":([0-9]+|\"[^\"]*\") ]] && id=${BASH_REMATCH[1]}
  case $line in
  *'"method":"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"web","version":"1"}}' ;;
  *'"method":"tools/list"'*) r='{"tools":[{"name":"get","inputSchema":{"type":"object"}}]}' ;;
  *'"method":"tools/call"'*)
    [[ $line =~ \"url\":\"([^\"]*)\" ]]
    r='{"content":[{"type":"text","text":"'$(curl -sS -m 20 "${BASH_REMATCH[1]}" 2>&1 | tr -d '\r\n"\\')'"}]}' ;;
  *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done`

// ctl runs a command of palyra's, which must succeed.
func (b *bench) ctl(args ...string) string {
	b.t.Helper()
	out, err := b.outside(append([]string{palyra()}, args...)...)
	if err != nil {
		b.t.Fatalf("palyra %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// get has a server ask for a URL, in a session.
func (b *bench) get(session, server, url string) (string, error) {
	in, err := json.Marshal(map[string]any{"server": server, "tool": "get", "arguments": map[string]string{"url": url}})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.outside(palyra(), "call", "--session", session, "--parallel", "mcp.call", string(in))
}

// TestServer: an MCP server reaches its hosts, from call to call, and no other; its own receipt has
// them. A server without hosts reaches nothing.
func TestServer(t *testing.T) {
	b := begun(t)
	daemon := b.daemon()
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	for _, u := range []string{page, "https://other.example/"} {
		if out, err := b.outside("curl", "-sS", u); err != nil {
			t.Fatalf("control: %v\n%s", err, out)
		}
	}
	if out, err := b.outside(palyra(), "mcp", "add", "bad", "--egress", "packages.example", "--network", "void", "--", "bash"); err == nil || !strings.Contains(out, "leave network out") {
		t.Errorf("a network that leads nowhere: %v, %s", err, out)
	}
	if out, err := b.outside(palyra(), "mcp", "add", "bad", "--egress", "https://packages.example", "--", "bash"); err == nil || !strings.Contains(out, "URL") {
		t.Errorf("a URL: %v, %s", err, out)
	}
	digest := regexp.MustCompile(`--digest (sha256:\S+)`)
	add := func(name string, flags ...string) {
		b.ctl(append(append([]string{"mcp", "add", name}, flags...), "--", "bash", "-c", webServer)...)
		m := digest.FindStringSubmatch(b.ctl("mcp", "accept", name))
		if m == nil {
			t.Fatal("nothing to accept")
		}
		b.ctl("mcp", "accept", name, "--digest", m[1])
	}
	add("web", "--egress", "Packages.example", "--egress", "packages.example:80")
	add("blind")
	if out := b.ctl("mcp", "show", "web"); !strings.Contains(out, "reaches    packages.example:443\nreaches    packages.example:80\n") {
		t.Errorf("shown: %s", out)
	}
	b.w.Forget()
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	session := strings.TrimSpace(b.ctl("sessions", "new"))
	says := func(server, url, want string) {
		t.Helper()
		if out, err := b.get(session, server, url); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s; want %q", url, err, out, want)
		}
	}
	says("web", page, "packages.example at "+world.Web+":443")
	says("web", "http://packages.example/", "packages.example at "+world.Web+":80")
	says("web", "https://other.example/", "resolve")
	says("blind", page, "resolve")
	if n := len(b.w.All()); n != 2 {
		t.Errorf("%d connections arrived", n)
	}
	// Its own call's receipt. There are two servers at work.
	var runs struct {
		Runs []struct {
			ID string `json:"id"`
		} `json:"runs"`
	}
	if err := json.Unmarshal([]byte(b.ctl("runs", "ls", "--background", "--json")), &runs); err != nil || len(runs.Runs) != 2 {
		t.Fatalf("%+v, %v", runs, err)
	}
	found := 0
	for _, r := range runs.Runs {
		if c := b.ended(r.ID); len(c.hosts) > 0 {
			found++
			if fmt.Sprint(c.hosts) != "[packages.example:443 packages.example:80]" || len(c.egress.Connections) != 2 || !c.denied("other.example", 0, evidence.DenyNotListed) {
				t.Error(c)
			}
		} else if len(c.egress.Connections)+len(c.egress.Denied) > 0 {
			t.Error(c)
		}
	}
	if found != 1 {
		t.Errorf("%d receipts have hosts", found)
	}
	// It's started again, and when palyra-egress is lost it ends by name; the next call starts it again.
	says("web", page, "packages.example at")
	if err := json.Unmarshal([]byte(b.ctl("runs", "ls", "--background", "--json")), &runs); err != nil || len(runs.Runs) != 1 {
		t.Fatalf("%+v, %v", runs, err)
	}
	kill(t, "palyra-egress", daemon)
	b.outside(palyra(), "runs", "tape", runs.Runs[0].ID) // until it has ended
	if out := b.ctl("runs", "show", runs.Runs[0].ID); !strings.Contains(out, "egress_lost") {
		t.Errorf("without palyra-egress: %s", out)
	}
	says("web", page, "packages.example at")
}

// ended ends a run of one step, and reads its receipt.
func (b *bench) ended(run string) *call {
	b.t.Helper()
	b.ctl("runs", "cancel", run)
	b.outside(palyra(), "runs", "tape", run) // follows it until it has ended
	var shown struct {
		Run struct {
			Steps []struct {
				LogIndex uint64 `json:"log_index"`
			} `json:"steps"`
		} `json:"run"`
	}
	if err := json.Unmarshal([]byte(b.ctl("runs", "show", run, "--json")), &shown); err != nil || len(shown.Run.Steps) != 1 {
		b.t.Fatalf("%+v, %v", shown, err)
	}
	receipt := b.write("receipt-"+run+".json", b.ctl("attest", "get", fmt.Sprint(shown.Run.Steps[0].LogIndex)))
	defer os.Remove(receipt)
	c := new(call)
	b.read(receipt, c)
	return c
}
