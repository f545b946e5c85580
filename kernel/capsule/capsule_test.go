package capsule

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

func fileOf(path, content string, size int64, pinned string) File {
	return File{Path: path, Digest: canon.Sum([]byte(content)), Size: size, Pinned: pinned}
}

// example is the capsule of docs/formats/capsule.md.
func example() *Capsule {
	arg := "-e"
	return &Capsule{
		Version: 1, Tool: "process.run", Argv: []string{"./report.sh", "in.csv", "--out=../build"},
		Executable: fileOf("/usr/bin/dash", "dash", 125688, PinnedSystem),
		Scripts:    []Script{{fileOf("/workspace/report.sh", "#!/bin/sh -e\n", 13, PinnedSealed), "/bin/sh", &arg}},
		Env:        []string{"HOME=/tmp", "LANG=C.UTF-8"}, Cwd: "/workspace",
		Workspace: &Workspace{Source: "/home/alice/project", ReadOnly: true, UID: 1000, GID: 1000},
		Stdin:     Stdin{Mode: StdinNone},
		Operands:  []File{fileOf("/workspace/in.csv", "a,b\n", 4, PinnedOnApproval)},
		Unpinned:  []Unpinned{{"/workspace/build", KindDirectory}}, EgressHosts: []string{}, Secrets: []call.Secret{},
		Limits:    isolate.Limits{Wall: time.Minute, CPU: time.Minute, Memory: 1 << 30, PIDs: 256, Output: 1 << 24, FileSize: 1 << 28, OpenFiles: 1024, Disk: 1 << 28, Inodes: 16384},
		TierFloor: tier.C,
	}
}

func TestRoundTrip(t *testing.T) {
	b, id, err := example().Seal()
	if err != nil {
		t.Fatal(err)
	}
	if id != canon.Sum(b) {
		t.Error("the identity is not the digest of the bytes")
	}
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, example()) {
		t.Errorf("got %+v", got)
	}
}

// TestEveryMemberCounts changes each leaf of the JSON: the digest must change,
// or the capsule be refused. A field that decides nothing would be no part of it.
func TestEveryMemberCounts(t *testing.T) {
	b, id, err := example().Seal()
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	var n int
	var walk func(path string, set func(any), v any)
	walk = func(path string, set func(any), v any) {
		try := func(w any) {
			n++
			set(w)
			m, err := canon.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := Parse(m); err == nil {
				if _, other, _ := c.Seal(); other == id {
					t.Errorf("%s: changed without a new identity", path)
				}
			}
			set(v)
		}
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(path+"."+k, func(w any) { v[k] = w }, e)
				delete(v, k)
				m, _ := canon.Marshal(tree)
				if _, err := Parse(m); err == nil {
					t.Errorf("%s.%s: may be left out", path, k)
				}
				v[k] = e
			}
		case []any:
			for i, e := range v {
				walk(path+"[]", func(w any) { v[i] = w }, e)
			}
			try(append([]any{v}, v...))
		case string:
			try(v + "x")
			if strings.HasPrefix(v, "sha256:") {
				try("sha256:" + strings.Repeat("0", 64))
			}
		case float64:
			try(v + 1)
		case bool:
			try(!v)
		case nil:
			try("x")
		}
	}
	walk("", nil, tree)
	if n < 40 {
		t.Errorf("only %d changes tried", n)
	}
}

// TestOptional: what a capsule need not have has one spelling as well.
func TestOptional(t *testing.T) {
	c := example()
	loader := fileOf("/usr/lib/ld.so", "ld", 2, PinnedSystem)
	c.Loader = &loader
	c.Unpinned = append(c.Unpinned, Unpinned{"/workspace/build", KindLibrary}, Unpinned{"/workspace/none", KindAbsent})
	b, id, err := c.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, plain, _ := example().Seal(); plain == id {
		t.Error("the loader does not count")
	}
	if _, err := Parse(bytes.Replace(b, []byte(`"limits"`), []byte(`"loader":null,"limits"`), 1)); err == nil {
		t.Error("a null loader is one more spelling")
	}
}

// TestSession: a call that shares one session's network is another than one that shares another's.
func TestSession(t *testing.T) {
	ids := make(map[canon.Digest]bool)
	for _, session := range []string{"ses_1", "ses_2"} {
		c := example()
		c.Network, c.Session = isolate.NetworkSession, session
		b, id, err := c.Seal()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("got %+v, %v", got, err)
		}
		ids[id] = true
	}
	if len(ids) != 2 {
		t.Error("the session does not count")
	}
}

func hosts(rules ...string) func(*Capsule) {
	return func(c *Capsule) { c.EgressHosts, c.Network = rules, isolate.NetworkEgress }
}

// TestHostsCount: each rule is part of the identity.
func TestHostsCount(t *testing.T) {
	ids := map[canon.Digest]bool{}
	for _, rules := range [][]string{{"*.a.example:443"}, {"a.example:443"}, {"a.example:8443"}, {"a.example:443", "b.example:443"}, {"10.0.0.0/8:443"}} {
		c := example()
		hosts(rules...)(c)
		b, id, err := c.Seal()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("got %+v, %v", got, err)
		}
		ids[id] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d identities, want 5", len(ids))
	}
}

func TestRefused(t *testing.T) {
	for name, spoil := range map[string]func(c *Capsule){
		"version":            func(c *Capsule) { c.Version = 2 },
		"no tool":            func(c *Capsule) { c.Tool = "" },
		"no argv":            func(c *Capsule) { c.Argv = nil },
		"null list":          func(c *Capsule) { c.Operands = nil },
		"hosts, no network":  func(c *Capsule) { c.EgressHosts = []string{"example.com:443"} },
		"network, no hosts":  func(c *Capsule) { c.Network = isolate.NetworkEgress },
		"host without port":  hosts("example.com"),
		"host in capitals":   hosts("Example.com:443"),
		"hosts unsorted":     hosts("b.example:443", "a.example:443"),
		"host twice":         hosts("a.example:443", "a.example:443"),
		"hosts, loopback":    func(c *Capsule) { hosts("a.example:443")(c); c.Network = isolate.NetworkLoopback },
		"hosts at tier b":    func(c *Capsule) { hosts("a.example:443")(c); c.TierFloor = tier.B },
		"secret":             func(c *Capsule) { c.Secrets = []call.Secret{{Name: "x"}} },
		"relative cwd":       func(c *Capsule) { c.Cwd = "workspace" },
		"cwd with dots":      func(c *Capsule) { c.Cwd = "/workspace/../etc" },
		"no tier":            func(c *Capsule) { c.TierFloor = tier.None },
		"NUL in argv":        func(c *Capsule) { c.Argv[1] = "a\x00b" },
		"argv not UTF-8":     func(c *Capsule) { c.Argv[1] = "a\xffb" },
		"unsorted env":       func(c *Capsule) { c.Env = []string{"B=1", "A=1"} },
		"repeated env":       func(c *Capsule) { c.Env = []string{"A=1", "A=2"} },
		"env without value":  func(c *Capsule) { c.Env = []string{"A"} },
		"not pinned":         func(c *Capsule) { c.Executable.Pinned = "" },
		"no digest":          func(c *Capsule) { c.Executable.Digest = canon.Digest{} },
		"empty executable":   func(c *Capsule) { c.Executable.Size = 0 },
		"relative path":      func(c *Capsule) { c.Executable.Path = "true" },
		"no interpreter":     func(c *Capsule) { c.Scripts[0].Interpreter = "" },
		"operand twice":      func(c *Capsule) { c.Operands = append(c.Operands, c.Operands[0]) },
		"operand as system":  func(c *Capsule) { c.Operands[0].Pinned = PinnedSystem },
		"unknown kind":       func(c *Capsule) { c.Unpinned[0].Kind = "x" },
		"stdin mode":         func(c *Capsule) { c.Stdin.Mode = "" },
		"stream with digest": func(c *Capsule) { c.Stdin = Stdin{Mode: StdinStream, Digest: canon.Sum(nil)} },
		"sealed, no digest":  func(c *Capsule) { c.Stdin = Stdin{Mode: StdinSealed} },
		"no limit":           func(c *Capsule) { c.Limits.PIDs = 0 },
		"negative limit":     func(c *Capsule) { c.Limits.Memory = -1 },
		"not exact limit":    func(c *Capsule) { c.Limits.Memory = 1<<53 + 1 },
		"workspace relative": func(c *Capsule) { c.Workspace.Source = "x" },
		"operands, no place": func(c *Capsule) { c.Workspace = nil },
		"absent, no place":   func(c *Capsule) { c.Workspace, c.Operands, c.Unpinned[0].Kind = nil, []File{}, KindAbsent },
		"unpinned twice":     func(c *Capsule) { c.Unpinned = append(c.Unpinned, c.Unpinned[0]) },
		"unsorted kinds":     func(c *Capsule) { c.Unpinned = append(c.Unpinned, Unpinned{"/workspace/build", KindAbsent}) },
		"loader not pinned":  func(c *Capsule) { c.Loader = &File{Path: "/lib/ld.so", Digest: canon.Sum(nil), Size: 1} },
		"loader sealed": func(c *Capsule) {
			c.Loader = &File{Path: "/lib/ld.so", Digest: canon.Sum(nil), Size: 1, Pinned: PinnedSealed}
		},
		"session's network, no session": func(c *Capsule) { c.Network = isolate.NetworkSession },
		"session, no such network":      func(c *Capsule) { c.Network, c.Session = isolate.NetworkLoopback, "ses_1" },
		"loader, no digest":             func(c *Capsule) { c.Loader = &File{Path: "/lib/ld.so", Size: 1, Pinned: PinnedSystem} },
	} {
		c := example()
		spoil(c)
		if _, _, err := c.Seal(); fault.KindOf(err) != fault.Usage || err == nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestDocument holds the example of the format's document to the code.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "formats", "capsule.md"))
	if err != nil {
		t.Fatal(err)
	}
	b, id, err := example().Seal()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(doc, []byte("```json\n"))
	shown, _, _ := bytes.Cut(rest, []byte("```"))
	var compact bytes.Buffer
	if err := json.Compact(&compact, shown); err != nil || !bytes.Equal(compact.Bytes(), b) {
		t.Errorf("the document's example is %s, want %s: %v", compact.Bytes(), b, err)
	}
	if !bytes.Contains(doc, []byte(id.String())) {
		t.Errorf("the example's digest is not in the document: %s", id)
	}
}

func FuzzParse(f *testing.F) {
	b, _, err := example().Seal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := Parse(in)
		if err != nil {
			if fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		out, _, err := c.Seal()
		if err != nil || !bytes.Equal(in, out) {
			t.Fatalf("parsed %s, printed %s, %v", in, out, err)
		}
	})
}
