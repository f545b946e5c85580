package approval

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// sealed is a call as the kernel describes it.
func sealed() Call {
	return Call{
		Principal: "u", Tool: "process.run", Argv: []string{"wc", "-l", "docs/a.txt"}, Executable: "/usr/bin/wc", Digest: canon.Sum([]byte("wc")), Kind: "other", System: true,
		EnvDigest: canon.Sum([]byte("env")), EnvNames: []string{"PATH"}, Cwd: "/workspace", Workspace: "/home/alice/src", Stdin: "none",
		Capabilities: []string{"process_exec", "filesystem_write"}, Tier: "c", Network: "fresh",
		Bounds: Limits{Wall: 60e9, CPU: 60e9, Memory: 1 << 30, PIDs: 256, Output: 16 << 20, FileSize: 1 << 20, OpenFiles: 1024, Disk: 1 << 20, Inodes: 100},
	}
}

// TestPatternBounds changes one field of a call at a time: what can do more, or
// something else, fits no pattern.
func TestPatternBounds(t *testing.T) {
	base := sealed()
	p, err := NewPattern("process.run", &base, Loosen{Within: []int{2}})
	if err != nil {
		t.Fatal(err)
	}
	type change struct {
		name string
		fits bool
		f    func(*Call)
	}
	tests := []change{
		{"nothing", true, func(*Call) {}},
		{"another file", true, func(c *Call) { c.Argv[2] = "docs/b.txt" }},
		{"a file of another folder below", true, func(c *Call) { c.Argv[2] = "x/y/z" }},
		{"less memory", true, func(c *Call) { c.Bounds.Memory-- }},
		{"fewer capabilities", true, func(c *Call) { c.Capabilities = c.Capabilities[:1] }},
		{"a read-only workspace", true, func(c *Call) { c.ReadOnly = true }},
		{"a file named as an operand of dd", false, func(c *Call) { c.Argv[2] = "of=x" }},
		{"a file named as a command", false, func(c *Call) { c.Argv[2] = "+q" }},
		{"a file named as a list", false, func(c *Call) { c.Argv[2] = "@x" }},
		{"a file named as two", false, func(c *Call) { c.Argv[2] = "concat:a|b" }},
		{"more absent names than are listed", false, func(c *Call) { c.Absent = []string{"/workspace"} }},
		{"another name is absent", true, func(c *Call) { c.Absent = []string{"/workspace/b.txt"} }},
		{"an exact argument", false, func(c *Call) { c.Argv[1] = "-c" }},
		{"argv[0]", false, func(c *Call) { c.Argv[0] = "sh" }},
		{"one argument more", false, func(c *Call) { c.Argv = append(c.Argv, "x") }},
		{"one argument less", false, func(c *Call) { c.Argv = c.Argv[:2] }},
		{"executable", false, func(c *Call) { c.Digest = canon.Sum([]byte("other")) }},
		{"its path", false, func(c *Call) { c.Executable = "/usr/local/bin/wc" }},
		{"a script", false, func(c *Call) { c.Script = "/home/alice/src/wc" }},
		{"a shell", false, func(c *Call) { c.Kind = "shell" }},
		{"an unknown kind", false, func(c *Call) { c.Kind = "" }},
		{"environment", false, func(c *Call) { c.EnvDigest = canon.Sum([]byte("LD_X")) }},
		{"cwd", false, func(c *Call) { c.Cwd = "/workspace/docs" }},
		{"workspace", false, func(c *Call) { c.Workspace = "/home/alice" }},
		{"no workspace", false, func(c *Call) { c.Workspace = "" }},
		{"stdin", false, func(c *Call) { c.Stdin = "stream" }},
		{"stdin's content", false, func(c *Call) { c.StdinDigest = canon.Sum([]byte("x")) }},
		{"network", false, func(c *Call) { c.Network = "host" }},
		{"egress", false, func(c *Call) { c.EgressHosts = []string{"example.org"} }},
		{"inspected requests", false, func(c *Call) { c.EgressInspect = []string{"example.org:443"} }},
		{"a use of a secret", false, func(c *Call) {
			c.EgressSecrets = []call.EgressSecret{{Use: "T=vault://global/a header:x a.example:443"}}
		}},
		{"a capability more", false, func(c *Call) { c.Capabilities = append(c.Capabilities, "network") }},
		{"tier", false, func(c *Call) { c.Tier = "b" }},
		{"no tier", false, func(c *Call) { c.Tier = "" }},
		{"a file that is a link", false, func(c *Call) { c.Argv[2] = "docs/l"; c.Loose = []string{"/workspace/docs/l"} }},
		{"a folder", false, func(c *Call) { c.Argv[2] = "docs/d"; c.Folders = []string{"/workspace/docs/d"} }},
		{"a name that is not there", false, func(c *Call) { c.Argv[2] = "docs/n"; c.Absent = []string{"/workspace/docs/n"} }},
		{"a file beside a folder", true, func(c *Call) { c.Argv[2] = "docs/f"; c.Folders = []string{"/workspace/docs/d", "/workspace/f"} }},
	}
	for _, path := range []string{"", ".", "..", "../a", "a/../../b", "/etc/passwd", "-rf", "--files0-from=x", "a//b", "a/", "./a", "a\nb", "a\x1b[2J", "a\u202eb", "a\u200bb", "é", "a\x00b"} {
		tests = append(tests, change{"the path " + path, false, func(c *Call) { c.Argv[2] = path }})
	}
	for i, name := range []string{"wall", "cpu", "memory", "pids", "output", "file_size", "open_files", "disk", "inodes"} {
		tests = append(tests, change{"more " + name, false, func(c *Call) {
			l := &c.Bounds
			*[]*int64{(*int64)(&l.Wall), (*int64)(&l.CPU), &l.Memory, &l.PIDs, &l.Output, &l.FileSize, &l.OpenFiles, &l.Disk, &l.Inodes}[i]++
		}})
	}
	for _, test := range tests {
		c := sealed()
		test.f(&c)
		if err := p.Match("process.run", &c); (err == nil) != test.fits {
			t.Errorf("%q: %v, want fits %v", test.name, err, test.fits)
		}
	}
	if err := p.Match("other.tool", &base); err == nil {
		t.Error("another tool fits")
	}
	var none *Pattern
	if none.Match("process.run", &base) == nil || (&Pattern{}).Match("process.run", &base) == nil {
		t.Error("no pattern fits")
	}
}

// TestInterpretersGetNoPattern: complaint 2. A yes to whoami must not become a
// yes to whatever a shell is told.
func TestInterpretersGetNoPattern(t *testing.T) {
	for name, change := range map[string]func(*Call){
		"shell":             func(c *Call) { c.Kind = "shell" },
		"interpreter":       func(c *Call) { c.Kind = "interpreter" },
		"loader":            func(c *Call) { c.Kind = "loader" },
		"wrapper":           func(c *Call) { c.Kind = "wrapper" },
		"unknown":           func(c *Call) { c.Kind = "" },
		"script":            func(c *Call) { c.Script = "/x" },
		"make":              func(c *Call) { c.Executable = "/usr/bin/make" },
		"find":              func(c *Call) { c.Executable = "/usr/bin/find" },
		"a version of gcc":  func(c *Call) { c.Executable = "/usr/bin/gcc-14" },
		"gcc of Debian":     func(c *Call) { c.Executable = "/usr/bin/x86_64-linux-gnu-gcc-12" },
		"ld of Debian":      func(c *Call) { c.Executable = "/usr/bin/x86_64-linux-gnu-ld.bfd" },
		"g++ of Debian":     func(c *Call) { c.Executable = "/usr/bin/aarch64-linux-gnu-g++-12" },
		"vim of Debian":     func(c *Call) { c.Executable = "/usr/bin/vim.basic" },
		"a small vim":       func(c *Call) { c.Executable = "/usr/bin/vim.tiny" },
		"nc of Debian":      func(c *Call) { c.Executable = "/usr/bin/nc.openbsd" },
		"aa-exec":           func(c *Call) { c.Executable, c.Argv = "/usr/bin/aa-exec", []string{"aa-exec", "a"} },
		"a new program":     func(c *Call) { c.Executable, c.Argv = "/usr/bin/frobnicate", []string{"frobnicate", "a"} },
		"several in one":    func(c *Call) { c.Executable = "/usr/bin/coreutils" },
		"called coreutils":  func(c *Call) { c.Argv = []string{"coreutils", "--coreutils-prog=env", "a"} },
		"sort":              func(c *Call) { c.Executable, c.Argv = "/usr/bin/sort", []string{"sort", "a"} },
		"called vi":         func(c *Call) { c.Argv = []string{"/tmp/vi", "a"} },
		"not the system's":  func(c *Call) { c.System = false },
		"staged":            func(c *Call) { c.Staged = true },
		"a stream":          func(c *Call) { c.Stdin = "stream" },
		"no environment":    func(c *Call) { c.EnvDigest = canon.Digest{} },
		"no program digest": func(c *Call) { c.Digest = canon.Digest{} },
		"no argv":           func(c *Call) { c.Argv = nil },
	} {
		c := sealed()
		change(&c)
		if p, err := NewPattern("process.run", &c, Loosen{}); p != nil || fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	// The table's tools are not chosen by whoever asks, and need not be root's file.
	c := written("a.txt", "1")
	if _, err := NewPattern("fs.write_file", &c, Loosen{}); err != nil {
		t.Error(err)
	}
	c.Kind = "shell"
	if _, err := NewPattern("fs.write_file", &c, Loosen{}); err == nil {
		t.Error("a tool that is a shell has a pattern")
	}
}

// written is a call of the built-in tool that writes files.
func written(path, content string) Call {
	c := sealed()
	c.Argv = []string{"/opt/palyra-tool", "fs.write_file", "path=" + path, "mode=create", "size=1", "digest=" + canon.Sum([]byte(content)).String()}
	c.Executable, c.System, c.Stdin, c.StdinDigest, c.Network = "/opt/palyra-tool", false, "sealed", canon.Sum([]byte("in"+content)), "void"
	return c
}

func TestPatternOfTool(t *testing.T) {
	c := written("src/a.go", "1")
	p, err := NewPattern("fs.write_file", &c, Loosen{Within: []int{2}, Content: true})
	if err != nil {
		t.Fatal(err)
	}
	other := written("src/deep/b.go", "2")
	if err := p.Match("fs.write_file", &other); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Call){
		"a hook":            func(c *Call) { c.Argv = append(c.Argv, "flag=hook") },
		"another mode":      func(c *Call) { c.Argv[3] = "mode=overwrite" },
		"another tool":      func(c *Call) { c.Argv[1] = "fs.apply_patch" },
		"out of the folder": func(c *Call) { c.Argv[2] = "path=../x" },
		"a digest of words": func(c *Call) { c.Argv[5] = "digest=flag=x" },
		"another field":     func(c *Call) { c.Argv[4] = "mode=1" },
	} {
		o := written("src/b.go", "2")
		change(&o)
		if p.Match("fs.write_file", &o) == nil {
			t.Errorf("%s fits", name)
		}
	}
	exact, err := NewPattern("fs.write_file", &c, Loosen{})
	if err != nil || exact.Match("fs.write_file", &other) == nil {
		t.Errorf("without content: %v", err)
	}
	for _, within := range [][]int{{0}, {1}, {6}, {-1}, {3, 99}} {
		if _, err := NewPattern("fs.write_file", &c, Loosen{Within: within}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("position %v: %v", within, err)
		}
	}
}

// TestPatternDigest: a pattern has one digest, and it depends on every field.
func TestPatternDigest(t *testing.T) {
	c := sealed()
	a, _ := NewPattern("process.run", &c, Loosen{})
	b, _ := NewPattern("process.run", &c, Loosen{Within: []int{2}})
	da, err := a.Sum()
	if err != nil {
		t.Fatal(err)
	}
	if db, _ := b.Sum(); da == db || da.IsZero() {
		t.Error("two patterns with one digest")
	}
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var again Pattern
	if err := json.Unmarshal(raw, &again); err != nil {
		t.Fatal(err)
	}
	if d, _ := again.Sum(); d != da || again.Match("process.run", &c) != nil {
		t.Error("a pattern that was written and read is another")
	}
	text := b.Text()
	if !strings.Contains(text, "environment exactly that of this call, "+b.Env.String()) || !strings.Contains(text, "ANY FILE") || !strings.Contains(text, "WRITABLE") || !strings.Contains(text, "tier") {
		t.Error(text)
	}
}

// FuzzPattern: whatever a path is, if it fits, it stays in the working directory,
// is no option and looks like what it is.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{"a", "../a", "-x", "a/b", "/", "a\u202e", "a/../b", ""} {
		f.Add(s)
	}
	base := sealed()
	p, err := NewPattern("process.run", &base, Loosen{Within: []int{2}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := sealed()
		c.Argv[2] = s
		if p.Match("process.run", &c) != nil {
			return
		}
		if s == "" || s[0] == '-' || s[0] == '/' || slices.Contains(strings.Split(s, "/"), "..") || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q fits", s)
		}
	})
}

// TestPatternNames: an exact argument names what it named when the pattern was made.
func TestPatternNames(t *testing.T) {
	digest := canon.Sum([]byte("x"))
	file := func(c *Call, names ...string) {
		for _, n := range names {
			c.Operands = append(c.Operands, Operand{Path: "/workspace/" + n, Digest: digest})
		}
	}
	folder := func(c *Call, names ...string) {
		for _, n := range names {
			c.Folders = append(c.Folders, "/workspace/"+n)
		}
	}
	base := sealed()
	base.Argv = []string{"rm", "-rf", "a", "./d/", "--list=l", "new", "b"}
	base.Executable = "/usr/bin/rm"
	file(&base, "a", "l", "b")
	folder(&base, "d")
	base.Absent = []string{"/workspace/new"}
	p, err := NewPattern("process.run", &base, Loosen{Within: []int{6}})
	if err != nil {
		t.Fatal(err)
	}
	if text := p.Text(); !strings.Contains(text, `"a", a file`) || !strings.Contains(text, `"./d/", a FOLDER`) {
		t.Errorf("the pattern is\n%s", text)
	}
	for name, x := range map[string]struct {
		fits bool
		f    func(*Call)
	}{
		"the same":                       {true, func(c *Call) { file(c, "a", "l"); folder(c, "d") }},
		"other files and a new one":      {true, func(c *Call) { file(c, "a", "l", "new", "b"); folder(c, "d") }},
		"a file is a folder":             {false, func(c *Call) { file(c, "l"); folder(c, "a", "d") }},
		"a file is a link":               {false, func(c *Call) { file(c, "l"); folder(c, "d"); c.Loose = []string{"/workspace/a"} }},
		"a file is gone":                 {false, func(c *Call) { file(c, "l"); folder(c, "d"); c.Absent = []string{"/workspace/a"} }},
		"a file behind = is a folder":    {false, func(c *Call) { file(c, "a"); folder(c, "d", "l") }},
		"a folder is a file":             {false, func(c *Call) { file(c, "a", "l", "d") }},
		"nothing is a folder":            {false, func(c *Call) { file(c, "a", "l"); folder(c, "d", "new") }},
		"a file is gone, and not listed": {false, func(c *Call) { file(c, "l"); folder(c, "d") }},
	} {
		c := base
		c.Operands, c.Folders, c.Absent = nil, nil, nil
		if x.f(&c); (p.Match("process.run", &c) == nil) != x.fits {
			t.Errorf("%s: %v", name, p.Match("process.run", &c))
		}
	}
}

// TestPatternNamed: what an argument names is what the kernel found, however it is
// spelled.
func TestPatternNamed(t *testing.T) {
	// A link of the system makes this /workspace/v/x.
	const odd = "/usr/lib/ssl/certs/../../../workspace/v/x"
	call := func(list func(*Call)) *Call {
		c := sealed()
		c.Executable, c.Argv = "/usr/bin/rm", []string{"rm", "-rf", odd, "b"}
		c.Operands = []Operand{{Path: "/workspace/b"}}
		list(&c)
		c.Name(func(name string) string { return map[string]string{odd: "/workspace/v/x", "b": "/workspace/b"}[name] })
		return &c
	}
	file := call(func(c *Call) { c.Operands = append(c.Operands, Operand{Path: "/workspace/v/x"}) })
	p, err := NewPattern("process.run", file, Loosen{Within: []int{3}})
	if err != nil || p.Argv[2].Names != namesFile || p.Argv[1].Names != "" {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, c := range map[string]*Call{
		"a folder": call(func(c *Call) { c.Folders = []string{"/workspace/v/x"} }),
		"a link":   call(func(c *Call) { c.Loose = []string{"/workspace/v/x"} }),
		"absent":   call(func(c *Call) { c.Absent = []string{"/workspace/v/x"} }),
	} {
		if p.Match("process.run", c) == nil {
			t.Errorf("%s fits", name)
		}
	}
}

// TestQuestionsGetNoPattern: arguments of a call that asks a server are the server's own, and say
// neither which of its tools is asked nor what. With any content each of them would fit.
func TestQuestionsGetNoPattern(t *testing.T) {
	c := written("src/a.go", "1")
	loose := Loosen{Content: true}
	p, err := NewPattern("mcp.call", &c, loose)
	if err != nil {
		t.Fatal(err)
	}
	c.MCP = &call.MCP{Server: "files", Tool: "read", Arguments: []string{"path=a"}}
	if p.Match("mcp.call", &c) == nil {
		t.Error("a question to a server fits")
	}
	for _, l := range []Loosen{{}, loose} {
		if p, err := NewPattern("mcp.call", &c, l); p != nil || fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%+v: %+v, %v", l, p, err)
		}
	}
}

// TestListsGetNoPattern: a yes to apply changes is about one list, of which the arguments name the
// first files alone.
func TestListsGetNoPattern(t *testing.T) {
	c := written("src/a.go", "1")
	c.Argv = []string{"/opt/palyra-tool", "changes.apply", "layer=fix", "digest=" + canon.Sum([]byte("list")).String(), "changes=1"}
	for _, tool := range []string{"changes.apply", "changes.undo", "changes.recover"} {
		if p, err := NewPattern(tool, &c, Loosen{Content: true}); p != nil || fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %+v, %v", tool, p, err)
		}
		if _, err := NewPattern(tool, &c, Loosen{}); err != nil {
			t.Errorf("%s, of the same list: %v", tool, err)
		}
	}
}
