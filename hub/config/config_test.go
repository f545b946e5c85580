package config

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

var update = flag.Bool("update", false, "rewrite docs/formats/config.md instead of comparing it")

// base is the environment of a user with a home.
var base = []string{"HOME=/home/alice", "XDG_RUNTIME_DIR=/run/user/1000"}

func parse(t testing.TB, src string, env ...string) (*Config, Problems) {
	t.Helper()
	c, err := Parse("/etc/palyra/palyrad.toml", []byte(src), append(slices.Clone(base), env...))
	if err == nil {
		return c, nil
	}
	ps, ok := errors.AsType[Problems](err)
	if !ok || len(ps) == 0 || fault.KindOf(err) != fault.BadState {
		t.Fatalf("Parse: %v is no list of problems of kind bad_state", err)
	}
	return nil, ps
}

func TestDefaults(t *testing.T) {
	c, ps := parse(t, "")
	if ps != nil {
		t.Fatal(ps)
	}
	if c.Profile != "local" || c.Listen.HTTP != "127.0.0.1:7142" || c.Listen.SocketMode != 0o660 || c.Approvals.Timeout.Std() != 5*time.Minute ||
		c.Limits.Body != 1<<20 || c.Cell.Confinement != "enforce" || c.Approvals.AllowSelf || !c.Daemon.Watchdog {
		t.Errorf("defaults are %+v", c)
	}
	if c.State.Dir != "/home/alice/.local/state/palyra" || c.Listen.Socket != "/run/user/1000/palyra/palyrad.sock" {
		t.Errorf("places are %q, %q", c.State.Dir, c.Listen.Socket)
	}
}

func TestPlaces(t *testing.T) {
	for _, tc := range []struct {
		name          string
		env           []string
		state, socket string
	}{
		{"systemd", []string{"STATE_DIRECTORY=/var/lib/palyra:/var/lib/other", "RUNTIME_DIRECTORY=/run/palyra", "HOME=/root"}, "/var/lib/palyra", "/run/palyra/palyrad.sock"},
		{"home only", []string{"HOME=/home/bob"}, "/home/bob/.local/state/palyra", "/home/bob/.local/state/palyra/palyrad.sock"},
		{"relative is ignored", []string{"XDG_STATE_HOME=state", "HOME=/home/bob"}, "/home/bob/.local/state/palyra", "/home/bob/.local/state/palyra/palyrad.sock"},
		{"variables win", []string{"HOME=/home/bob", "PALYRA_STATE_DIR=/a", "PALYRA_LISTEN_SOCKET=/b"}, "/a", "/b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Parse("", nil, tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if c.State.Dir != tc.state || c.Listen.Socket != tc.socket {
				t.Errorf("got %q, %q, want %q, %q", c.State.Dir, c.Listen.Socket, tc.state, tc.socket)
			}
		})
	}
	if _, err := Parse("", nil, nil); fault.ReasonOf(err) != "config_invalid" {
		t.Errorf("without HOME: got %v, want a missing state.dir", err)
	}
}

// TestRefused: each wrong file is refused for the right reason, at the right
// line, with the right word.
func TestRefused(t *testing.T) {
	const tls = "tls_cert = \"/c\"\ntls_key = \"/k\"\n"
	for _, tc := range []struct {
		name, src string
		env       []string
		line      int
		text, fix string // parts of them
	}{
		{"unknown key", "\n[listen]\n# x\nsoket = \"/x\"\n", nil, 4, "listen.soket: there is no such key", "did you mean socket?"},
		{"URL with a user", "[notify]\nurl = \"https://a:b@ntfy.example/\"\n", nil, 2, "notify.url: is no URL", "https://HOST/PATH"},
		{"secret in the clear", "[notify]\nurl = \"http://ntfy.example/\"\nsecret = \"vault://global/ntfy\"\n", nil, 3, "notify.secret: is no reference", "https"},
		{"network that is a name", "[notify]\nnetwork = \"ntfy.example:443\"\n", nil, 2, "notify.network: is no network", "10.1.0.0/16:443"},
		{"unknown table", "[listn]\nhttp = \"off\"\n", nil, 1, "listn: there is no such key", "did you mean listen?"},
		{"key of another table", "timeout = \"5m\"\n", nil, 1, "timeout: there is no such key", "did you mean approvals.timeout?"},
		{"case", "Profile = \"local\"\n", nil, 1, "Profile: there is no such key", "did you mean profile?"},
		{"unknown in workspace", "[workspaces.a]\npath = \"/srv/a\"\nreadonly = true\n", nil, 3, "workspaces.a.readonly: there is no such key", "did you mean read_only?"},
		{"password", "[access]\npassword_for_everything = \"x\"\n", nil, 2, "password_for_everything: there is no such key", "secrets do not belong"},
		{"variable", "", []string{"PALYRA_LISTEN_HTPP=off"}, 0, "names no key", "did you mean PALYRA_LISTEN_HTTP?"},
		{"variable cannot add a workspace", "", []string{"PALYRA_WORKSPACES_A_PATH=/srv"}, 0, "names no key", ""},
		{"variable value", "", []string{"PALYRA_LIMITS_CONCURRENCY=many"}, 0, "is no number", ""},
		{"syntax", "a = \n", nil, 1, "", ""},
		{"duplicate", "[limits]\nqueue = 1\nqueue = 2\n", nil, 3, "", ""},
		{"type text", "[limits]\nqueue = \"1\"\n", nil, 2, "is an integer, not text", "write queue = 64"},
		{"type number", "[approvals]\ntimeout = 5\n", nil, 2, "is a duration, not a number", ""},
		{"type float", "[limits]\nqueue = 1.5\n", nil, 2, "fraction", ""},
		{"type list", "profile = [\"local\"]\n", nil, 1, "a list", ""},
		{"type table", "listen = 1\n", nil, 1, "is a table, not a number", ""},
		{"array of tables", "[[listen]]\nhttp = \"off\"\n", nil, 1, "is a table, not a list", ""},
		{"enum", "profile = \"prod\"\n", nil, 1, "is none of local, single-vm, worker-enabled", ""},
		{"too small", "[limits]\nconcurrency = 0\n", nil, 2, "less than 1", ""},
		{"too large", "[limits]\nbody = \"1GiB\"\n", nil, 2, "more than 64MiB", ""},
		{"size overflow", "[limits]\nbody = \"9007199254740993GiB\"\n", nil, 2, "is no size", ""},
		{"negative duration", "[daemon]\ndrain_timeout = \"-5s\"\n", nil, 2, "is no duration", ""},
		{"mounts as text", "[workspaces.a]\npath = \"/srv/a\"\nmounts = \"/opt\"\n", nil, 3, "is a list, not text", "mounts = ["},
		{"mounts of numbers", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [1]\n", nil, 3, "list of texts", ""},
		{"a relative mount", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [\n  \"/opt\", \"a\"]\n", nil, 3, "element 2 is no clean absolute path", ""},
		{"a mount twice", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/opt\", \"/opt\"]\n", nil, 3, "element 2 twice", ""},
		{"the host", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/\"]\n", nil, 3, "overlaps state.dir", ""},
		{"the workspace", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/srv/a/b\"]\n", nil, 3, "overlaps workspaces.a.path", ""},
		{"17 mounts", "[workspaces.a]\npath = \"/srv/a\"\nmounts = [" + strings.Repeat("\"/opt\",", 17) + "]\n", nil, 3, "17 elements, at most 16", ""},
		{"a mount with the vault's identity", "[vault]\nidentity = \"/opt/x/vault.key\"\n[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/opt/x\"]\n", nil, 5, "overlaps vault.identity", ""},
		{"a mount with the keys' identity", "[keys]\nidentity = \"/opt/x/keys\"\n[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/opt\"]\n", nil, 5, "overlaps keys.identity", ""},
		{"a mount with the key of TLS", "[listen]\ntls_cert = \"/opt/x/c\"\ntls_key = \"/opt/x/k\"\n[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/opt/x\"]\n", nil, 6, "overlaps listen.tls_key", ""},
		{"a workspace with the key of TLS", "[listen]\ntls_cert = \"/srv/c\"\ntls_key = \"/srv/a/k\"\n[workspaces.a]\npath = \"/srv/a\"\n", nil, 5, "overlaps listen.tls_key", ""},
		{"a cache's name", "[workspaces.a]\npath = \"/srv/a\"\ncaches = [\"../go\"]\n", nil, 3, "no name for a cache", ""},
		{"a variable", "[workspaces.a]\npath = \"/srv/a\"\nenv = [\"A\"]\n", nil, 3, "is not NAME=VALUE", ""},
		{"a variable twice", "[workspaces.a]\npath = \"/srv/a\"\nenv = [\"A=1\", \"A=2\"]\n", nil, 3, "sets a variable again", ""},
		{"PATH", "[workspaces.a]\npath = \"/srv/a\"\nenv = [\"PATH=/opt\"]\n", nil, 3, "which programs does", ""},
		{"programs with a colon", "[workspaces.a]\npath = \"/srv/a\"\nprograms = [\"/opt:/x\"]\n", nil, 3, "has a colon", ""},
		{"a network", "[workspaces.a]\npath = \"/srv/a\"\nnetwork = \"host\"\n", nil, 3, "is none of fresh, loopback, session, void", ""},
		{"a model without a provider", "[models.a]\nmodel = \"x\"\n", nil, 1, "models.a.provider: has no value", "explain models.NAME.provider"},
		{"a provider", "[models.a]\nprovider = \"gemini\"\n", nil, 2, "is none of openai, openai_chat, anthropic, scripted", ""},
		{"a model's name", "[models.A]\nprovider = \"scripted\"\n", nil, 1, "is no name for a model", ""},
		{"unknown in a model", "[models.a]\nprovider = \"scripted\"\napi_key = \"x\"\n", nil, 3, "models.a.api_key: there is no such key", "secrets do not belong"},
		{"a model's key itself", "[models.a]\nkey = \"sk-proj-" + strings.Repeat("A", 24) + "\"\n", nil, 0, "private key or a token", ""},
		{"a model's long name", "[models.a]\nprovider = \"scripted\"\nmodel = \"" + strings.Repeat("x", 257) + "\"\n", nil, 3, "longer than 256 bytes", ""},
		{"no url", "[models.a]\nprovider = \"openai\"\n", nil, 1, "models.a.url: has no value", ""},
		{"a url of another scheme", "[models.a]\nprovider = \"openai\"\nurl = \"ftp://a.example\"\n", nil, 3, "unsupported scheme", ""},
		{"a url with a query", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example/?x=1\"\n", nil, 3, "has a query", ""},
		{"a url with a password", "[models.a]\nprovider = \"openai\"\nurl = \"https://a:b@a.example\"\n", nil, 3, "credentials are forbidden", ""},
		{"in the clear", "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://a.example/v1\"\n", nil, 3, "a network of yours alone", ""},
		{"localhost", "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://localhost:8000\"\nnetwork = \"127.0.0.1:8000\"\n", nil, 3, "the cell itself", ""},
		{"the cell's loopback", "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://127.0.0.1:8000\"\nnetwork = \"127.0.0.1:8000\"\n", nil, 3, "own loopback", ""},
		{"a key in the clear", "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://a.example:8000\"\nnetwork = \"10.0.0.0/8:8000\"\nkey = \"vault://global/a\"\n", nil, 5, "is sent over https:// alone", ""},
		{"a key that is none", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example\"\nkey = \"vault://all/a\"\n", nil, 4, "want global, principal:ID", ""},
		{"a key for an address", "[models.a]\nprovider = \"openai\"\nurl = \"https://192.0.2.1\"\nkey = \"vault://global/a\"\n", nil, 4, "models.a.key: ", ""},
		{"a network's port", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example:8443\"\nnetwork = \"10.0.0.0/8\"\n", nil, 4, "has the port 443, and the url's is 8443", ""},
		{"a public network", "[models.a]\nprovider = \"openai\"\nurl = \"http://a.example\"\nnetwork = \"8.8.8.0/24:80\"\n", nil, 4, "has no private or loopback address", ""},
		{"a name as network", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example\"\nnetwork = \"b.example:443\"\n", nil, 4, "is no network and port", ""},
		{"another network", "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://10.1.0.1:80\"\nnetwork = \"10.2.0.0/16:80\"\n", nil, 4, "hasn't the url's address", ""},
		{"a script that isn't read", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example\"\nscript = \"/etc/x.json\"\n", nil, 4, "is for the scripted provider alone", ""},
		{"a relative script", "[models.a]\nprovider = \"scripted\"\nscript = \"x.json\"\n", nil, 3, "no clean absolute path", ""},
		{"a url that isn't asked", "[models.a]\nprovider = \"scripted\"\nurl = \"https://a.example\"\n", nil, 3, "reaches nothing", ""},
		{"another kind", "[models.a]\nprovider = \"openai\"\nkind = \"pictures\"\n", nil, 3, "is none of turns, embeddings", ""},
		{"embeddings that there aren't", "[models.a]\nprovider = \"anthropic\"\nurl = \"https://a.example\"\nkind = \"embeddings\"\n", nil, 4, "anthropic has no embeddings", ""},
		{"a fallback of embeddings", "[models.a]\nprovider = \"scripted\"\nkind = \"embeddings\"\nfallback = \"b\"\n[models.b]\nprovider = \"scripted\"\n", nil, 4, "is of no use: it makes embeddings", ""},
		{"a fallback to embeddings", "[models.a]\nprovider = \"scripted\"\nkind = \"embeddings\"\n[models.b]\nprovider = \"scripted\"\nfallback = \"a\"\n", nil, 6, "makes embeddings, and no turns", ""},
		{"an agent without words", "[agent]\nmodel = \"a\"\n[models.a]\nprovider = \"scripted\"\nkind = \"embeddings\"\n", nil, 2, "makes embeddings, and no turns", ""},
		{"a memory without its model", "[memory]\nembeddings = \"b\"\n", nil, 2, "is none of the models", ""},
		{"a memory of turns", "[memory]\nembeddings = \"a\"\n[models.a]\nprovider = \"scripted\"\n", nil, 2, "makes no embeddings", "kind = "},
		{"no tokens", "[models.a]\nprovider = \"scripted\"\ncontext = 10\n", nil, 3, "less than 1000", ""},
		{"a fallback without its model", "[models.a]\nprovider = \"scripted\"\nfallback = \"b\"\n", nil, 3, "is none of the models", ""},
		{"a fallback to itself", "[models.a]\nprovider = \"scripted\"\nfallback = \"a\"\n", nil, 3, "leads around: a, a", ""},
		{"an agent without its model", "[agent]\nmodel = \"b\"\n[models.a]\nprovider = \"scripted\"\n", nil, 2, "is none of the models", "did you mean a?"},
		{"mode", "[listen]\nsocket_mode = \"4755\"\n", nil, 2, "is no octal mode", ""},
		{"mode number", "[listen]\nsocket_mode = 0o660\n", nil, 2, "not a number", "write it in quotes"},
		{"control character", "[state]\ndir = \"/a\\u0000b\"\n", nil, 2, "control character", ""},
		{"relative", "[policy]\ndir = \"policy\"\n", nil, 2, "no clean absolute path", ""},
		{"dots", "[policy]\ndir = \"/etc/../x\"\n", nil, 2, "no clean absolute path", ""},
		{"socket too long", "[listen]\nsocket = \"/" + strings.Repeat("s", 107) + "\"\n", nil, 2, "longer than 107", ""},
		{"private key", "x = '''\n-----BEGIN EC PRIVATE KEY-----\n'''", nil, 0, "private key", ""},
		{"token", "x = \"palyra_ab12_" + strings.Repeat("A", 32) + "_cd34\"", nil, 0, "token", ""},

		{"workspace root", "[workspaces.a]\npath = \"/\"\n", nil, 2, "whole host", ""},
		{"workspace system", "[workspaces.a]\npath = \"/etc/x\"\n", nil, 2, "belongs to the host", ""},
		{"workspace over state", "[workspaces.a]\npath = \"/home\"\n", nil, 2, "overlaps state.dir", ""},
		{"workspace in state", "[workspaces.a]\npath = \"/home/alice/.local/state/palyra/x\"\n", nil, 2, "overlaps state.dir", ""},
		{"workspace above a system tree", "[workspaces.a]\npath = \"/etc\"\n", nil, 2, "belongs to the host", ""},
		{"workspace without path", "[workspaces.a]\nread_only = true\n", nil, 1, "has no value", ""},
		{"workspace name", "[workspaces.\"../a\"]\npath = \"/srv\"\n", nil, 1, "is no name for a workspace", ""},
		{"workspace no table", "workspaces = 1\n", nil, 1, "is a table", ""},

		{"no port", "[listen]\nhttp = \"127.0.0.1\"\n", nil, 2, "no numeric address", ""},
		{"name", "[listen]\nhttp = \"localhost:7142\"\n", nil, 2, "no numeric address", ""},
		{"all addresses", "[listen]\nhttp = \":7142\"\n", nil, 2, "no numeric address", ""},
		{"beyond loopback", "[listen]\nhttp = \"0.0.0.0:7142\"\n", nil, 2, "lacks TLS (listen.tls_cert, listen.tls_key)", ""},
		{"beyond loopback v6", "[listen]\nhttp = \"[::]:7142\"\n", nil, 2, "lacks TLS", ""},
		{"beyond, no authentication", "[listen]\nhttp = \"10.0.0.1:7142\"\nhttp_auth = \"off\"\n" + tls, nil, 2, "lacks authentication", ""},
		{"beyond, no rate", "[listen]\nhttp = \"10.0.0.1:7142\"\n" + tls + "[limits]\nrequests_per_second = 0\n", nil, 2, "lacks a rate limit", ""},
		{"devices, a name", "[peer]\nlisten = \"localhost:7444\"\n", nil, 2, "no numeric address", ""},
		{"devices, no rate", "[peer]\nlisten = \"0.0.0.0:7444\"\n[limits]\nrequests_per_second = 0\n", nil, 2, "lacks a rate limit", ""},
		{"half TLS", "[listen]\ntls_cert = \"/c\"\n", nil, 2, "belong together", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, ps := parse(t, tc.src, tc.env...)
			if c != nil {
				t.Fatal("was taken")
			}
			p := ps[0]
			if p.Line != tc.line || !strings.Contains(p.String(), tc.text) || !strings.Contains(p.Fix, tc.fix) {
				t.Errorf("got %+v\nwant line %d, text …%s…, fix …%s…", p, tc.line, tc.text, tc.fix)
			}
		})
	}
}

// TestAccepted is the positive control of TestRefused: what is nearly the same
// and right.
func TestAccepted(t *testing.T) {
	const tls = "tls_cert = \"/c\"\ntls_key = \"/k\"\n"
	for name, src := range map[string]string{
		"beyond loopback with all": "[listen]\nhttp = \"0.0.0.0:7142\"\n" + tls,
		"v6 loopback":              "[listen]\nhttp = \"[::1]:7142\"\n",
		"mapped loopback":          "[listen]\nhttp = \"[::ffff:127.0.0.1]:7142\"\n",
		"off":                      "[listen]\nhttp = \"off\"\nhttp_auth = \"off\"\n",
		"size as number":           "[limits]\nbody = 65536\n",
		"workspace":                "[workspaces.a]\npath = \"/srv/a\"\nread_only = false\n",
		"inline workspace":         "workspaces = { a = { path = \"/srv/a\" } }\n",
		"a scripted model":         "[models.a]\nprovider = \"scripted\"\nscript = \"/etc/palyra/script.json\"\n[agent]\nmodel = \"a\"\n",
		"a model with a key":       "[models.a-1]\nprovider = \"anthropic\"\nurl = \"https://api.anthropic.com/v1\"\nkey = \"vault://global/a\"\nmax_tokens = 4096\ncontext = 200000\n",
		"a model of embeddings":    "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example\"\nkind = \"embeddings\"\n",
		"a memory with embeddings": "[memory]\nembeddings = \"a\"\n[models.a]\nprovider = \"scripted\"\nkind = \"embeddings\"\n",
		"a model of this host":     "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://models.internal:11434/v1/\"\nnetwork = \"127.0.0.1:11434\"\n",
		"a model in a network":     "[models.a]\nprovider = \"openai_chat\"\nurl = \"http://10.1.2.3:8000\"\nnetwork = \"10.1.0.0/16:8000\"\n",
		"notify":                   "[notify]\nurl = \"http://ntfy.example:8080/x\"\nnetwork = \"10.1.0.0/16:8080\"\n",
		"dotted":                   "limits.queue = 3\n",
		"every value in its place": example,
	} {
		t.Run(name, func(t *testing.T) {
			if _, ps := parse(t, src); ps != nil {
				t.Error(ps)
			}
		})
	}
	c, _ := parse(t, "[workspaces.a]\npath = \"/srv/a\"\n")
	if c.Models != nil {
		t.Errorf("models are %v, want none", c.Models)
	}
	if w := c.Workspaces["a"]; !w.ReadOnly || w.Path != "/srv/a" {
		t.Errorf("workspace without read_only is %+v, want read-only", w)
	}
}

// TestAllProblems: one start tells everything that is wrong.
func TestAllProblems(t *testing.T) {
	_, ps := parse(t, "profil = \"x\"\n[limits]\nqueu = 1\nbody = true\n[listen]\nhttp_auth = \"none\"\n")
	var lines []int
	for _, p := range ps {
		lines = append(lines, p.Line)
	}
	if !slices.Equal(lines, []int{1, 3, 4, 6}) {
		t.Errorf("got lines %v of %v", lines, ps)
	}
}

// TestNoValuesInErrors: what stands in the file is not repeated; it might be a
// secret in the wrong place.
func TestNoValuesInErrors(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, src := range []string{
		"profile = \"" + secret + "\"", "[limits]\nbody = \"" + secret + "\"", "[state]\ndir = \"" + secret + "\"",
		"[listen]\nhttp = \"" + secret + "\"", "token = \"" + secret + "\"", "profile = '" + secret + "' '" + secret + "'",
		"[listen]\nsocket_mode = \"" + secret + "\"", "[approvals]\ntimeout = \"" + secret + "\"",
	} {
		c, err := Parse("/x", []byte(src), base)
		if c != nil || strings.Contains(err.Error(), secret) || strings.Contains(fault.HintOf(err), secret) {
			t.Errorf("%q: taken, or the error repeats it: %v", src, err)
		}
	}
}

// TestFloors: each row of the table refuses its weak value under its profile
// and those above it, with the key's name, and lets it be below.
func TestFloors(t *testing.T) {
	weak := map[string]string{
		"listen.socket_mode":         "[listen]\nsocket_mode = \"0666\"\n",
		"cell.confinement":           "[cell]\nconfinement = \"report\"\n",
		"approvals.allow_self":       "[approvals]\nallow_self = true\n",
		"approvals.timeout":          "[approvals]\ntimeout = \"61m\"\n",
		"notify.url":                 "[notify]\nurl = \"http://ntfy.example/x\"\n",
		"limits.requests_per_second": "[limits]\nrequests_per_second = 0\n",
		"limits.body":                "[limits]\nbody = \"17MiB\"\n",
		"journal.min_free":           "[journal]\nmin_free = 0\n",
		"daemon.watchdog":            "[daemon]\nwatchdog = false\n",
		"policy.dir":                 "[policy]\ndir = \"\"\n",
		"access.token_max_age":       "[access]\ntoken_max_age = \"721h\"\n",
	}
	const strong = "policy.dir = \"/etc/palyra/policy\"\naccess.token_max_age = \"24h\"\n"
	if c, ps := parse(t, "profile = \"worker-enabled\"\n"+strong); c == nil {
		t.Fatalf("the control is refused: %v", ps)
	}
	for _, f := range Floors() {
		src, ok := weak[f.Key]
		if !ok {
			t.Errorf("no weak value for %s", f.Key)
			continue
		}
		for i, profile := range profiles {
			below := i < slices.Index(profiles, f.Profile)
			_, ps := parse(t, "profile = \""+profile+"\"\n"+src)
			refused := slices.ContainsFunc(ps, func(p Problem) bool {
				return p.Key == f.Key && strings.Contains(p.Text, profile) &&
					strings.Contains(p.Text, f.Want) && p.Fix == f.Fix && p.Line > 0
			})
			if refused == below {
				t.Errorf("%s under %s: refused %v, want %v: %v", f.Key, profile, refused, !below, ps)
			}
		}
	}
}

// TestWantsCertificate: servers want one, a person's machine does not.
// TestProfileNames: the original's names mean ours, floors and all, and are not kept.
func TestProfileNames(t *testing.T) {
	env := []string{"HOME=/h"}
	for name, want := range map[string]string{"local_desktop": "local", "remote_vps": "single-vm", "single-vm": "single-vm"} {
		for how, src := range map[string]string{"file": "profile = \"" + name + "\"\n", "env": ""} {
			e := env
			if how == "env" {
				e = append(slices.Clone(env), "PALYRA_PROFILE="+name)
			}
			c, err := Parse("c.toml", []byte(src), e)
			if err != nil || c.Profile != want || c.WantsCertificate() != (want == "single-vm") {
				t.Errorf("%s of %s: %v, %v", name, how, c, err)
			}
		}
	}
	if _, err := Parse("c.toml", []byte("profile = \"remote_vps\"\n[approvals]\nallow_self = true\n"), env); fault.ReasonOf(err) != "config_invalid" || !strings.Contains(err.Error(), "profile single-vm wants") {
		t.Errorf("a floor of remote_vps does not hold: %v", err)
	}
	for _, name := range []string{"Local_Desktop", "local_desktop ", "local_desktop=local", ""} {
		if _, err := Parse("c.toml", []byte("profile = \""+name+"\"\n"), env); fault.ReasonOf(err) != "config_invalid" || !strings.Contains(fault.HintOf(err), "palyra config explain profile") {
			t.Errorf("%q: %v, hint %q", name, err, fault.HintOf(err))
		}
	}
}

func TestWantsCertificate(t *testing.T) {
	for profile, want := range map[string]bool{"local": false, "single-vm": true, "worker-enabled": true} {
		c, ps := parse(t, "profile = \""+profile+"\"\npolicy.dir = \"/etc/palyra/policy\"\naccess.token_max_age = \"24h\"\n")
		if c == nil {
			t.Fatalf("%s: %v", profile, ps)
		}
		if got := c.WantsCertificate(); got != want {
			t.Errorf("%s: %v, want %v", profile, got, want)
		}
	}
	if !(&Config{Profile: "worker-enabled"}).WantsCertificate() || (&Config{}).WantsCertificate() {
		t.Error("a Config without a profile wants one, or the highest does not")
	}
}

// TestFloorsHoldForVariables: a variable cannot go below a floor either.
func TestFloorsHoldForVariables(t *testing.T) {
	_, ps := parse(t, "profile = \"single-vm\"\n", "PALYRA_APPROVALS_ALLOW_SELF=true")
	if len(ps) != 1 || !strings.Contains(ps[0].Text, "profile single-vm wants") {
		t.Errorf("got %v", ps)
	}
}

func TestVariablesOverride(t *testing.T) {
	c, ps := parse(t, "[limits]\nqueue = 1\n", "PALYRA_LIMITS_QUEUE=2", "PALYRA_PROFILE=single-vm", "PALYRA_SOCKET=/x", "PALYRA_TEST_CELL=/y", "OTHER=1")
	if ps != nil {
		t.Fatal(ps)
	}
	if c.Limits.Queue != 2 || c.Profile != "single-vm" {
		t.Errorf("got %+v", c)
	}
	for _, v := range c.Values() {
		want := map[string]string{"limits.queue": "env", "profile": "env"}[v.Key]
		if want == "" {
			want = "default"
		}
		if v.Source != want {
			t.Errorf("%s comes from %s, want %s", v.Key, v.Source, want)
		}
	}
}

// TestWorkspaceAndFile: the file may not lie in a workspace; a workspace beside
// the file is nothing special.
func TestWorkspaceAndFile(t *testing.T) {
	src := []byte("[workspaces.a]\npath = \"/srv/palyra/a\"\n")
	for path, ok := range map[string]bool{"/srv/palyra/palyrad.toml": true, "/srv/palyra/a/palyrad.toml": false, "/srv/palyra/ab.toml": true} {
		if _, err := Parse(path, src, base); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestWorkspaceAndPrograms: nor may the programs that confine calls, or are their tools.
func TestWorkspaceAndPrograms(t *testing.T) {
	for line, ok := range map[string]bool{
		"[cell]\npath = \"/srv/a/bin/palyra-cell\"": false, "[tools]\nprogram = \"/srv/a/bin/palyra-tool\"": false,
		"[cell]\npath = \"/srv/ab/palyra-cell\"": true, "[tools]\nprogram = \"/srv/b/palyra-tool\"": true,
	} {
		if _, err := Parse("/etc/palyra/palyrad.toml", []byte(line+"\n[workspaces.a]\npath = \"/srv/a\"\n"), base); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestDiffAndReload(t *testing.T) {
	old, _ := parse(t, "[workspaces.a]\npath = \"/srv/a\"\nmounts = [\"/opt/a\"]\n")
	next, _ := parse(t, "[daemon]\nlog_level = \"debug\"\n[limits]\nqueue = 3\n[workspaces.b]\npath = \"/srv/b\"\n")
	reload, restart := old.Diff(next)
	other := func(name string) bool { // each key of a workspace is listed
		return strings.HasPrefix(name, "workspaces.") && !strings.HasSuffix(name, ".path") && !strings.HasSuffix(name, "a.mounts")
	}
	restart = slices.DeleteFunc(restart, other)
	if !slices.Equal(reload, []string{"daemon.log_level"}) ||
		!slices.Equal(restart, []string{"limits.queue", "workspaces.a.mounts", "workspaces.a.path", "workspaces.b.path"}) {
		t.Errorf("got %v, %v", reload, restart)
	}
	m := old.WithReload(next)
	if m.Daemon.LogLevel != "debug" || m.Limits.Queue != old.Limits.Queue || old.Daemon.LogLevel != "info" {
		t.Errorf("merged is %+v", m)
	}
	if reload, _ := m.Diff(next); len(reload) != 0 {
		t.Errorf("still to reload: %v", reload)
	}
}

func TestUnsafeFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(p, []byte("profile = \"local\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(p, base); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(p, base); fault.ReasonOf(err) != "unsafe_file" {
		t.Errorf("writable by others: got %v", err)
	}
	if _, err := Load(p+"x", base); fault.ReasonOf(err) != "bad_file" {
		t.Errorf("missing: got %v", err)
	}
	if err := os.WriteFile(p, make([]byte, MaxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(p, base); fault.ReasonOf(err) != "bad_file" {
		t.Errorf("too large: got %v", err)
	}
}

// TestTags: each key says what it means; each default lies within its bounds
// (Parse panics otherwise); what has a floor says what weakening it costs.
func TestTags(t *testing.T) {
	keys := Keys()
	if len(keys) < 30 {
		t.Fatalf("%d keys", len(keys))
	}
	name := regexp.MustCompile(`^([a-z]+\.)?([a-z_]+)$|^(workspaces|models)\.NAME\.[a-z_]+$`)
	for _, k := range keys {
		if !name.MatchString(k.Name) || len(k.Doc) < 20 || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s: bad name or no meaning: %q", k.Name, k.Doc)
		}
		if len(k.Floors) > 0 && k.Cost == "" && k.Name != "policy.dir" {
			t.Errorf("%s has a floor and no cost", k.Name)
		}
		if (k.Type == "integer" || k.Type == "size" || k.Type == "duration") && (k.Min == "" || k.Max == "") {
			t.Errorf("%s has no bounds", k.Name)
		}
		text, err := Explain(k.Name)
		if err != nil || !strings.Contains(text, k.Doc) || !strings.Contains(text, k.Cost) {
			t.Errorf("Explain(%q) = %q, %v", k.Name, text, err)
		}
	}
	if _, err := Explain("workspaces.reports.path"); err != nil {
		t.Errorf("a workspace's key: %v", err)
	}
	if _, err := Explain("listen.htp"); fault.ReasonOf(err) != "not_found" || !strings.Contains(fault.HintOf(err), "listen.http") {
		t.Errorf("Explain of a typing error: %v", err)
	}
	for _, f := range Floors() {
		if !slices.ContainsFunc(keys, func(k Key) bool { return k.Name == f.Key }) {
			t.Errorf("a floor names key %q, which does not exist", f.Key)
		}
	}
}

// TestDocs holds docs/formats/config.md to the struct.
func TestDocs(t *testing.T) {
	const name = "../../docs/formats/config.md"
	if *update {
		if err := os.WriteFile(name, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != page() {
		t.Errorf("%s is stale: go test ./hub/config -update", name)
	}
}

func TestSchema(t *testing.T) {
	var s struct {
		Properties map[string]struct {
			Properties        map[string]map[string]any
			PatternProperties map[string]struct{ Properties map[string]map[string]any }
			Additional        any `json:"additionalProperties"`
			Enum              []string
		}
		Additional any `json:"additionalProperties"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Additional != false || s.Properties["listen"].Additional != false || s.Properties["workspaces"].Additional != false {
		t.Error("the schema allows unknown keys")
	}
	if s.Properties["limits"].Properties["queue"]["type"] != "integer" || !reflect.DeepEqual(s.Properties["profile"].Enum, append(slices.Clone(profiles), "local_desktop", "remote_vps")) {
		t.Errorf("the schema is %s", Schema())
	}
	for pattern, w := range s.Properties["workspaces"].PatternProperties {
		if pattern != ownNames.String() || w.Properties["path"] == nil {
			t.Errorf("workspaces are %v", w)
		}
	}
}

func TestValueText(t *testing.T) {
	for _, d := range []Duration{Duration(5 * time.Minute), Duration(time.Hour), Duration(90 * time.Second), Duration(61 * time.Minute), 1, Duration(10 * time.Second)} {
		if got, err := parseDuration(d.String()); err != nil || got != d {
			t.Errorf("duration %v reads back as %v, %v", d, got, err)
		}
	}
	for _, s := range []Size{0, 1, 1023, 1024, 65536, 3 << 30, 1<<30 + 1} {
		if got, err := parseSize(s.String()); err != nil || got != s {
			t.Errorf("size %v reads back as %v, %v", s, got, err)
		}
	}
	if got := Duration(5 * time.Minute).String(); got != "5m" {
		t.Errorf("five minutes print as %q", got)
	}
}
