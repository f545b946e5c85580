package toolproto

import (
	"bytes"
	"path"
	"strings"
	"testing"
	"unicode"

	"palyra/internal/fault"
)

func TestDecode(t *testing.T) {
	read := func() any { return new(ReadFileInput) }
	list := func() any { return new(ListDirInput) }
	search := func() any { return new(SearchInput) }
	write := func() any { return new(WriteFileInput) }
	run := func() any { return new(RunInput) }
	artifact := func() any { return new(ArtifactReadInput) }
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct {
		name   string
		into   func() any
		in     string
		reason string
	}{
		{"fine", read, `{"workspace":"w","path":"a/b"}`, ""},
		{"everything", read, `{"workspace":"w","path":"a","unit":"lines","offset":0,"limit":1048576}`, ""},
		{"not JSON", read, `path=x`, "json_syntax"},
		{"an array", read, `[]`, "invalid_input"},
		{"unknown", read, `{"workspace":"w","path":"a","Path":"b"}`, "invalid_input"},
		{"twice", read, `{"workspace":"w","path":"a","path":"b"}`, "json_syntax"},
		{"null", read, `{"workspace":"w","path":null}`, "invalid_input"},
		{"null list", list, `{"workspace":"w","types":null}`, "invalid_input"},
		{"null in a list", list, `{"workspace":"w","types":[null]}`, "invalid_input"},
		{"behind", read, `{"workspace":"w","path":"a"}{}`, "json_syntax: data after the value"},
		{"deep", read, `{"workspace":[[[[["w"]]]]]}`, "json_syntax"},
		{"too large", write, `{"content":"` + strings.Repeat("x", MaxInput) + `"}`, "json_too_large"},
		{"number as text", read, `{"workspace":"w","path":"a","limit":"1"}`, "invalid_input"},
		{"fraction", read, `{"workspace":"w","path":"a","limit":1.5}`, "invalid_input"},

		{"missing", read, `{"workspace":"w"}`, "invalid_input: member path: is required"},
		{"no workspace", read, `{"path":"a"}`, "invalid_input: member workspace: is required"},
		{"empty workspace", read, `{"workspace":"","path":"a"}`, "invalid_input: 0 characters"},
		{"zero is not left out", read, `{"workspace":"w","path":"a","limit":0}`, "invalid_input: 0 is not within"},
		{"too much", read, `{"workspace":"w","path":"a","limit":1048577}`, "invalid_input: 1048577 is not within"},
		{"negative", read, `{"workspace":"w","path":"a","offset":-1}`, "invalid_input: -1 is not within"},
		{"not in the list", read, `{"workspace":"w","path":"a","unit":"words"}`, "invalid_input: want one of"},
		{"empty is not in the list", read, `{"workspace":"w","path":"a","unit":""}`, "invalid_input: want one of"},
		{"not in the list, inside", list, `{"workspace":"w","types":["file","door"]}`, "invalid_input: want one of"},
		{"too many", list, `{"workspace":"w","types":["file","file","file","file","file","file","file"]}`, "invalid_input: 7 of them"},

		{"hosts", run, `{"argv":["x"],"egress_hosts":["a.example","10.0.0.0/8:5432"],"network":"loopback"}`, ""},
		{"hosts in a network without", run, `{"argv":["x"],"egress_hosts":["a.example"],"network":"fresh"}`, "invalid_input: a call with egress_hosts has a network of its own"},
		{"hosts in a session's network", run, `{"argv":["x"],"egress_hosts":["a.example"],"network":"session"}`, "invalid_input: a call with egress_hosts has a network of its own"},
		{"path", read, `{"workspace":"w","path":"../a"}`, "invalid_input: spell the path plainly"},
		{"folder as file", read, `{"workspace":"w","path":"."}`, "invalid_input: names the workspace itself"},
		{"folder", list, `{"workspace":"w","path":"."}`, ""},
		{"regexp", search, `{"workspace":"w","pattern":"(","regexp":true}`, "invalid_input: compile pattern"},
		{"no regexp", search, `{"workspace":"w","pattern":"("}`, ""},
		{"regexp bomb", search, `{"workspace":"w","pattern":"((a{1000}){1000}){1000}","regexp":true}`, "invalid_input: compile pattern"},
		{"glob", search, `{"workspace":"w","pattern":"x","globs":["[a"]}`, "invalid_input: read glob"},
		{"empty glob", search, `{"workspace":"w","pattern":"x","exclude":["a//b"]}`, "invalid_input: read glob"},
		{"base64", write, `{"workspace":"w","path":"a","mode":"create","content":"Y Q==","encoding":"base64"}`, "invalid_input: not base64"},
		{"base64 that ends in bits", write, `{"workspace":"w","path":"a","mode":"create","content":"YR==","encoding":"base64"}`, "invalid_input: not base64"},
		{"base64 by lines", write, `{"workspace":"w","path":"a","mode":"create","content":"YQ==\n","encoding":"base64"}`, "invalid_input: not base64"},
		{"empty content", write, `{"workspace":"w","path":"a","mode":"create","content":""}`, ""},
		{"no content", write, `{"workspace":"w","path":"a","mode":"create"}`, "invalid_input: member content: is required"},
		{"no mode", write, `{"workspace":"w","path":"a","content":""}`, "invalid_input: member mode: is required"},
		{"setuid", write, `{"workspace":"w","path":"a","mode":"create","content":"","permissions":"4755"}`, "invalid_input: want one of"},
		{"digest", write, `{"workspace":"w","path":"a","mode":"append","content":"","expected_digest":"sha256:00"}`, "invalid_input: parse digest"},
		{"digest of nothing", write, `{"workspace":"w","path":"a","mode":"create","content":"","expected_digest":"` + digest + `"}`, "invalid_input: no former content"},
		{"no argv", run, `{"argv":[]}`, "invalid_input: 0 of them"},
		{"folder of no workspace", run, `{"argv":["id"],"cwd":"a"}`, "invalid_input: need a workspace"},
		{"read-only nothing", run, `{"argv":["id"],"read_only":true}`, "invalid_input: need a workspace"},
		{"artifact", artifact, `{"digest":"` + digest + `"}`, ""},
		{"artifact in capitals", artifact, `{"digest":"` + strings.ToUpper(digest) + `"}`, "invalid_input"},
		{"what the kernel sets", artifact, `{"digest":"` + digest + `","size":1}`, "invalid_input"},
	} {
		err := Decode([]byte(c.in), c.into())
		reason, text, _ := strings.Cut(c.reason, ": ") // of one reason there are several
		if fault.ReasonOf(err) != reason || (err == nil) != (reason == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v (%s), want %q", c.name, err, fault.ReasonOf(err), c.reason)
		}
		if err != nil && fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: kind %v", c.name, fault.KindOf(err))
		}
	}
	in := new(ArtifactReadInput)
	if err := DecodeInner([]byte(`{"digest":"`+digest+`","size":7}`), in); err != nil || in.Size != 7 || in.Limit != 65536 {
		t.Errorf("%+v, %v", in, err)
	}
}

// inputs is one of each.
func inputs() []any {
	return []any{new(EchoInput), new(SleepInput), new(ReadFileInput), new(ListDirInput), new(SearchInput), new(WriteFileInput),
		new(ApplyPatchInput), new(ArtifactReadInput), new(RunInput)}
}

// TestMembers reads every tag, and wants a sentence and, of what is not
// required, a default that passes.
func TestMembers(t *testing.T) {
	for _, in := range inputs() {
		for _, m := range Members(in) {
			if m.Doc == "" && !m.Hidden {
				t.Errorf("%T: %s has no sentence", in, m.Name)
			}
			if m.Enum != nil && m.Default != "" && m.checkString("", m.Default, 0, 0) != nil {
				t.Errorf("%T: default of %s is not among its values", in, m.Name)
			}
		}
	}
}

// FuzzDecode: what is read reads the same once it is printed again, which is
// what palyra-tool gets to see.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"workspace":"w","path":"a\\x0ab","unit":"lines"}`))
	f.Add([]byte(`{"workspace":"w","pattern":"a|b","regexp":true,"globs":["**/*.go"]}`))
	f.Add([]byte(`{"workspace":"w","path":"a","mode":"append","content":"YQ==","encoding":"base64"}`))
	f.Add([]byte(`{"argv":["id"],"env":["A=b"],"timeout_ms":5}`))
	f.Add([]byte(`{"workspace":"w","patch":"--- x","offset":3,"dry_run":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for i, in := range inputs() {
			if err := Decode(data, in); err != nil {
				if fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) == "" {
					t.Fatalf("%T: %v", in, err)
				}
				continue
			}
			line, err := Encode(in)
			if err != nil {
				t.Fatal(err)
			}
			again := inputs()[i]
			if err := DecodeInner(bytes.TrimSpace(line), again); err != nil {
				t.Fatalf("%T: %s: %v", in, line, err)
			}
			if second, err := Encode(again); err != nil || !bytes.Equal(second, line) {
				t.Fatalf("%T: %s and %s, %v", in, line, second, err)
			}
		}
	})
}

func TestPath(t *testing.T) {
	long := strings.Repeat("x", 255)
	for _, c := range []struct{ in, want string }{
		{"a", "a"}, {".", "."}, {"a/b.c", "a/b.c"}, {"grüße/日本", "grüße/日本"}, {`a\x0ab`, "a\nb"}, {`\x5c`, `\`}, {`\xff`, "\xff"},
		{`\xe2\x80\xae`, "\u202e"}, {"a b", "a b"}, {"...", "..."}, {".git", ".git"}, {long, long},
		{"", ""}, {"/a", ""}, {"a/", ""}, {"a//b", ""}, {"..", ""}, {"a/../b", ""}, {"./a", ""}, {"a/.", ""}, {`a\x00`, ""}, {"a\x00", ""},
		{"a\nb", ""}, {"a\u202e", ""}, {`\x41`, ""}, {`\xFF`, ""}, {`\xc3\xbc`, ""}, {`\`, ""}, {`\\`, ""}, {`\x5`, ""}, {`\n`, ""}, {"\xff", ""},
		{`\x2e\x2e`, ""}, {`a\x2fb`, ""}, {"a\u00a0b", ""}, {"a\u200bb", ""},
		{long + "x", ""}, {strings.Repeat("a/", 64) + "a", ""}, {strings.Repeat(long+"/", 17) + "a", ""},
	} {
		got, err := ParsePath(c.in)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: got %q, %v; want %q", c.in, got, err, c.want)
		}
		if err != nil && fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%q: %v", c.in, err)
		}
	}
}

// FuzzEscape: every name has one spelling, which is printable.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"a", "a\nb", `\`, "\xff\xfe", "ü\u202e", "\x1b[31m", "日\u0301", `\x0a`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s := Escape(name)
		for _, r := range s {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q spells %q", s, name)
			}
		}
		if back, err := Unescape(s); err != nil || back != name {
			t.Fatalf("%q: %q, %v", name, back, err)
		}
		if back, err := Unescape(name); err == nil && Escape(back) != name {
			t.Fatalf("%q is another spelling of %q", name, back)
		}
	})
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"*.go", "a.go", true}, {"*.go", "x/y/a.go", true}, {"*.go", "a.gox", false}, {"x/*.go", "x/a.go", true}, {"x/*.go", "y/x/a.go", false},
		{"x/*.go", "x/y/a.go", false}, {"x/**/*.go", "x/a.go", true}, {"x/**/*.go", "x/y/z/a.go", true}, {"**/x", "x", true}, {"**/x", "y/x", true},
		{"**/x", "y/xx", false}, {"x/**", "x", true}, {"x/**", "x/y/z", true}, {"**", "x/y", true}, {"x/**/*", "x", false}, {"x/**/*", "x/y", true},
		{"[ab]", "b", true}, {"?", "ab", false}, {"*", ".hidden", true}, {"**/**/**/x", "a/b", false},
	} {
		if got := MatchGlob(c.glob, c.name); got != c.want {
			t.Errorf("%s, %s: got %v", c.glob, c.name, got)
		}
	}
}

// FuzzGlob compares with the definition, by trying every way.
func FuzzGlob(f *testing.F) {
	f.Add("a/**/b*", "a/x/bc")
	f.Add("**/**/x", "x")
	f.Add("[", "[")
	f.Fuzz(func(t *testing.T, glob, name string) {
		if CheckGlob(glob) != nil || len(glob)+len(name) > 40 || !strings.Contains(glob, "/") {
			return
		}
		var try func(p, n []string) bool
		try = func(p, n []string) bool {
			switch {
			case len(p) == 0:
				return len(n) == 0
			case p[0] == "**":
				return try(p[1:], n) || len(n) > 0 && try(p, n[1:])
			case len(n) == 0:
				return false
			}
			ok, err := path.Match(p[0], n[0])
			return ok && err == nil && try(p[1:], n[1:])
		}
		if got, want := MatchGlob(glob, name), try(strings.Split(glob, "/"), strings.Split(name, "/")); got != want {
			t.Errorf("%q, %q: got %v, want %v", glob, name, got, want)
		}
	})
}

func TestPlanted(t *testing.T) {
	for name, want := range map[string]string{".git/hooks/pre-commit": "hook", "sub/.git/hooks/x": "hook", ".git/config": "git",
		".GIT/HOOKS/x": "hook", ".git": "git", "a/.git": "git", ".git/index": "git", ".npmrc": "package", ".hg/hgrc": "hg", ".config/fish/a/b": "shell", ".github/workflows/ci.yml": "ci", ".github/README.md": "",
		".envrc": "shell", "x/.envrc": "shell", "x.envrc": "", "Makefile": "build", "src/Makefile": "build", "Makefile.txt": "", "a.pth": "build",
		"CLAUDE.md": "agent", ".vscode/tasks.json": "editor", "gitignore": "", ".gitignore": "", "x/.mcp.json": "agent", ".ssh/authorized_keys": "shell",
		"package.json": "build", "x/package.json/y": ""} {
		f, ok := Planted(name)
		if f.Kind != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", name, f.Kind, want)
		}
	}
	for _, p := range Places() {
		for pattern := range strings.FieldsSeq(p.Paths) {
			name := "a/" + strings.NewReplacer("**", "any/thing", "*", "some").Replace(pattern)
			if f, ok := Planted(name); !ok || f.Kind != p.Kind || f.Why == "" {
				t.Errorf("%s by %s: %+v, want %s", name, pattern, f, p.Kind)
			}
		}
	}
}
