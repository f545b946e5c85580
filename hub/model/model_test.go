package model

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/hub/config"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/kernel"
)

// others is the table of all other tools.
type others struct{}

func (others) Expand(_ context.Context, _ policy.Entity, name string, _ []byte) (*kernel.Expansion, error) {
	return &kernel.Expansion{Argv: []string{name}}, nil
}

// declared are the models of a configuration.
const declared = `
[agent]
model = "main"
[models.main]
provider = "openai"
url = "https://api.openai.com/v1/"
model = "gpt-5"
key = "vault://global/openai"
max_tokens = 4096
[models.claude]
provider = "anthropic"
url = "https://api.anthropic.com/v1"
key = "vault://principal:uid:1000/claude"
[models.ours]
provider = "openai_chat"
url = "http://models.internal:11434/v1"
network = "127.0.0.1:11434"
[models.tests]
provider = "scripted"
`

func models(t testing.TB, src string, change func(*Config)) *Models {
	t.Helper()
	c, err := config.Parse("/etc/palyra/palyrad.toml", []byte(src), []string{"HOME=/home/alice"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Tools: others{}, Models: c.Models, Default: c.Agent.Model, Fetch: "/usr/libexec/palyra/palyra-fetch", Egress: true, Workspaces: []string{"src"}}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var alice = policy.LocalUser("uid:1000")

func expand(m *Models, input string) (*kernel.Expansion, error) {
	return m.Expand(context.Background(), alice, turn.Tool, []byte(input))
}

const hello = `{"messages":[{"parts":[{"text":"hello"}],"role":"user"}]}`

// TestTurn: what a turn costs is its model's price, and how large its question is its owner's to
// know.
func TestTurn(t *testing.T) {
	m := models(t, declared+"price_input = 7\nprice_cached = 2\nprice_output = 11\n", nil)
	d, release, err := m.Keep(budget.Owner{Name: "uid:1000"}, []byte(hello))
	if err != nil {
		t.Fatal(err)
	}
	at, err := Input("tests", d)
	if err != nil {
		t.Fatal(err)
	}
	want := func(user, input string, bytes int64, known bool) {
		t.Helper()
		name, n, p, ok := m.Turn(user, []byte(input))
		if ok != known || n != bytes || ok && (name != "tests" || p != (agentloop.Price{Input: 7, Cached: 2, Output: 11})) {
			t.Errorf("%s %s: %q, %d bytes, %+v, %v", user, input, name, n, p, ok)
		}
	}
	want("uid:1000", `{"model":"tests","request":`+hello+`}`, int64(len(hello)), true)
	want("uid:1000", string(at), int64(len(hello)), true)
	want("uid:1001", string(at), 0, true)
	release()
	want("uid:1000", string(at), 0, true)
	want("uid:1000", `{"model":"none"}`, 0, false)
	want("uid:1000", `no`, 0, false)
}

// TestExpand: of a model's call its caller chooses the question alone, and a capsule takes what
// the operator declared as it is.
func TestExpand(t *testing.T) {
	const fetch = "/usr/libexec/palyra/palyra-fetch"
	m := models(t, declared, nil)
	for name, want := range map[string]struct{ argv, hosts, secrets string }{
		"main": {fetch + " model.turn openai https://api.openai.com/v1 gpt-5 secret:header:authorization=MODEL_KEY",
			"api.openai.com:443", "MODEL_KEY=vault://global/openai header:authorization POST api.openai.com:443/v1"},
		"claude": {fetch + " model.turn anthropic https://api.anthropic.com/v1 claude secret:header:x-api-key=MODEL_KEY",
			"api.anthropic.com:443", "MODEL_KEY=vault://principal:uid:1000/claude header:x-api-key POST api.anthropic.com:443/v1"},
		"ours":  {fetch + " model.turn openai_chat http://models.internal:11434/v1 ours", "models.internal:11434 127.0.0.1:11434", ""},
		"tests": {fetch + " model.turn scripted - tests", "", ""},
	} {
		x, err := expand(m, fmt.Sprintf(`{"model":%q,"request":%s}`, name, hello))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if clear := strings.Contains(want.argv, " http://"); x.EgressNetworks != clear {
			t.Errorf("%s: leads to networks alone: %v, in the clear: %v", name, x.EgressNetworks, clear)
		}
		if x.EgressEarly != (want.secrets != "") {
			t.Errorf("%s: palyra-egress connects early: %v", name, x.EgressEarly)
		}
		if strings.Join(x.Argv, " ") != want.argv || strings.Join(x.EgressHosts, " ") != want.hosts || strings.Join(x.EgressSecrets, " ") != want.secrets {
			t.Errorf("%s: %q, hosts %q, secrets %q", name, x.Argv, x.EgressHosts, x.EgressSecrets)
		}
		if !x.LeaveOperands || x.Workspace != "" || len(x.Env)+len(x.Secrets)+len(x.Mounts) > 0 || x.Sensitive {
			t.Errorf("%s: %+v", name, x)
		}
		if _, err := egress.ParseRules(x.EgressHosts); err != nil {
			t.Error(err)
		}
		if _, err := egress.ParseUses(x.EgressSecrets); err != nil {
			t.Error(err)
		}
		r, err := turn.ParseRequest(x.Stdin)
		if err != nil || r.Messages[0].Parts[0].Text != "hello" || (r.Script != nil) != (name == "tests") {
			t.Errorf("%s: asks %s, %v", name, x.Stdin, err)
		}
	}
	if x, err := m.Expand(t.Context(), alice, "palyra.echo", nil); err != nil || x.Argv[0] != "palyra.echo" {
		t.Errorf("another tool: %+v, %v", x, err)
	}
}

// TestRefused: what a caller can't choose is refused, by name.
func TestRefused(t *testing.T) {
	m := models(t, declared, nil)
	for input, want := range map[string]string{
		`{}`:               "not_found",
		`{"model":"main"}`: "invalid_input",
		`{"model":"gpt-5","request":` + hello + `}`:                                                                  "not_found",
		`{"model":"main","request":{"messages":[]}}`:                                                                 "invalid_input",
		`{"model":"main","request":null}`:                                                                            "invalid_input",
		`{"model":"main","url":"https://a.example"}`:                                                                 "invalid_input",
		`{"model":"main","digest":"sha256:00"}`:                                                                      "invalid_input",
		`{"model":"main","model":"x"}`:                                                                               "json_syntax",
		`{"model":"main","request":` + hello + `,"digest":"sha256:` + strings.Repeat("0", 63) + `1"}`:                "invalid_input",
		`{"model":"main","digest":"sha256:` + strings.Repeat("0", 63) + `1"}`:                                        "not_found",
		`{"model":"tests","request":{"messages":[{"role":"user","parts":[{"text":"a"}]}],"script":{"turns":[]}}}`:    "invalid_input",
		`{"model":"main","request":{"messages":[{"role":"user","parts":[{"text":"a"}]}],"max_tokens":-1}}`:           "invalid_input",
		`{"model":"main","request":{"messages":[{"role":"user","parts":[{"text":"a"}]}],"url":"https://a.example"}}`: "invalid_input",
	} {
		if x, err := expand(m, input); fault.ReasonOf(err) != want || fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %+v, %v; want %s", input, x, err, want)
		}
	}
	m = models(t, declared, func(c *Config) { c.Fetch = "" })
	if _, err := expand(m, `{"model":"tests","request":`+hello+`}`); fault.ReasonOf(err) != "helper_unusable" || fault.KindOf(err) != fault.Refused {
		t.Errorf("without palyra-fetch: %v", err)
	}
	m = models(t, declared, func(c *Config) { c.Egress = false })
	if _, err := expand(m, `{"model":"main","request":`+hello+`}`); fault.ReasonOf(err) != "egress_lost" || fault.KindOf(err) != fault.Refused {
		t.Errorf("without a way to hosts: %v", err)
	}
	if _, err := expand(m, `{"model":"tests","request":`+hello+`}`); err != nil {
		t.Errorf("a script needs none: %v", err)
	}
}

// TestEmbed: a model that makes embeddings is asked for nothing else, and no other for them.
func TestEmbed(t *testing.T) {
	const texts = `{"embed":{"dimensions":2,"input":["a"]}}`
	m := models(t, declared+`
[models.vectors]
provider = "openai"
kind = "embeddings"
url = "https://api.openai.com/v1"
model = "text-embedding-3-small"
key = "vault://global/openai"
max_tokens = 10
[models.hashes]
provider = "scripted"
kind = "embeddings"
`, nil)
	for name, argv := range map[string]string{
		"vectors": "/usr/libexec/palyra/palyra-fetch model.turn openai https://api.openai.com/v1 text-embedding-3-small secret:header:authorization=MODEL_KEY",
		"hashes":  "/usr/libexec/palyra/palyra-fetch model.turn scripted - hashes",
	} {
		x, err := expand(m, fmt.Sprintf(`{"model":%q,"request":%s}`, name, texts))
		if err != nil || strings.Join(x.Argv, " ") != argv || string(x.Stdin) != texts || (len(x.EgressSecrets) == 1) != (name == "vectors") {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
	for input, want := range map[string]string{
		`{"model":"vectors","request":` + hello + `}`:                                   "makes vectors",
		`{"model":"main","request":` + texts + `}`:                                      "makes no embeddings",
		`{"model":"tests","request":` + texts + `}`:                                     "makes no embeddings",
		`{"model":"vectors","request":{"embed":{"input":["a"]},"script":{"turns":[]}}}`: "no other members",
	} {
		if _, err := expand(m, input); fault.ReasonOf(err) != "invalid_input" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", input, err)
		}
	}
	if d := models(t, "[models.a]\nprovider = \"scripted\"\n[models.b]\nprovider = \"scripted\"\nkind = \"embeddings\"\n", nil).Default(); d != "a" {
		t.Errorf("the default is %q", d)
	}
}

// TestMaxTokens: a model's bound holds whatever is asked for.
func TestMaxTokens(t *testing.T) {
	m := models(t, declared, nil)
	for _, c := range []struct {
		model     string
		ask, want int64
	}{{"main", 0, 4096}, {"main", 100, 100}, {"main", 5000, 4096}, {"claude", 0, 0}, {"claude", 5000, 5000}} {
		x, err := expand(m, fmt.Sprintf(`{"model":%q,"request":{"messages":[{"role":"user","parts":[{"text":"a"}]}],"max_tokens":%d}}`, c.model, c.ask))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := turn.ParseRequest(x.Stdin); err != nil || r.MaxTokens != c.want {
			t.Errorf("%+v: %d, %v", c, r.MaxTokens, err)
		}
	}
}

// TestKeep: a question at hand is its owner's, is counted, and goes with its last release.
func TestKeep(t *testing.T) {
	memory := budget.New(budget.Limits{Name: "sealed", Total: 8 << 20, Each: 3 << 20})
	m := models(t, declared, func(c *Config) { c.Memory = memory })
	large := `{"messages":[{"parts":[{"text":"` + strings.Repeat("a", 2<<20) + `"}],"role":"user"}]}`
	owner := budget.Owner{Name: alice.ID}
	d, release, err := m.Keep(owner, []byte(large))
	if err != nil {
		t.Fatal(err)
	}
	again, releaseAgain, err := m.Keep(owner, []byte(large))
	if err != nil || again != d || memory.Held() != int64(len(large)) {
		t.Fatalf("%v, %v, %d bytes are held", again, err, memory.Held())
	}
	input, err := Input("main", d)
	if err != nil {
		t.Fatal(err)
	}
	x, err := expand(m, string(input))
	if err != nil || x.StdinMost != turn.MaxRequest || len(x.Stdin) < 2<<20 {
		t.Fatalf("%v", err)
	}
	if _, err := m.Expand(t.Context(), policy.LocalUser("uid:1001"), turn.Tool, input); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another user's: %v", err)
	}
	other := strings.Replace(large, "aaa", "bbb", 1)
	if _, _, err := m.Keep(owner, []byte(other)); fault.ReasonOf(err) != "budget" {
		t.Errorf("more than the share: %v", err)
	}
	if _, _, err := m.Keep(owner, []byte(`{"messages":[]}`)); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("no question: %v", err)
	}
	release()
	release()
	if _, err := expand(m, string(input)); err != nil {
		t.Errorf("it was kept twice and released once: %v", err)
	}
	releaseAgain()
	if _, err := expand(m, string(input)); fault.ReasonOf(err) != "not_found" || memory.Held() != 0 || len(m.kept) != 0 {
		t.Errorf("released: %v, %d bytes are held", err, memory.Held())
	}
}

// TestScripts: a scripted model answers what its file says, or the built-in script about the first
// workspace; a file that is no script is an error at the start.
func TestScripts(t *testing.T) {
	script := func(m *Models, name string) (s turn.Script) {
		t.Helper()
		x, err := expand(m, fmt.Sprintf(`{"model":%q,"request":%s}`, name, hello))
		if err != nil {
			t.Fatal(err)
		}
		r, err := turn.ParseRequest(x.Stdin)
		if err == nil {
			err = json.Unmarshal(r.Script, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := script(models(t, declared, nil), "tests")
	if len(s.Turns) != 3 || s.Turns[0].Calls[0].Name != "fs_list_dir" || string(s.Turns[0].Calls[0].Input) != `{"limit":50,"workspace":"src"}` ||
		!strings.Contains(string(s.Turns[1].Calls[0].Input), "{{last}}") || len(s.Turns[2].Calls) != 0 {
		t.Errorf("%+v", s)
	}
	file := filepath.Join(t.TempDir(), "script.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"turns": [{"text": "no"}]}`)
	m := models(t, "[models.a]\nprovider = \"scripted\"\nscript = \""+file+"\"\n", nil)
	if s := script(m, "a"); len(s.Turns) != 1 || s.Turns[0].Text != "no" {
		t.Errorf("%+v", s)
	}
	if m.Default() != "a" || !slices.Equal(m.Names(), []string{"a"}) {
		t.Errorf("the only model isn't the default: %q", m.Default())
	}
	for _, text := range []string{"", `{"turns":[{"say":"x"}]}`, `{"turns":[{"text":"` + strings.Repeat("a", maxScript) + `"}]}`} {
		write(text)
		if _, err := New(m.cfg); fault.ReasonOf(err) != "bad_file" {
			t.Errorf("%.30s: %v", text, err)
		}
	}
	if models(t, strings.Replace(declared, `model = "main"`, "", 1), nil).Default() != "" {
		t.Error("one of several is the default unasked")
	}
}

// TestBuiltIn: the built-in script looks at a workspace that there is.
func TestBuiltIn(t *testing.T) {
	for _, c := range []struct {
		workspaces []string
		want       string
	}{{[]string{"src", "docs"}, `"workspace":"src"`}, {nil, "there is no workspace"}} {
		m := models(t, "[models.tests]\nprovider = \"scripted\"\n", func(cfg *Config) { cfg.Workspaces = c.workspaces })
		if s := string(m.scripts["tests"]); !strings.Contains(s, c.want) || strings.Contains(s, "{{workspace}}") {
			t.Errorf("with %q: %s", c.workspaces, s)
		}
	}
}
