package planted

import (
	"path"
	"slices"
	"strings"
	"testing"

	"palyra/internal/toolproto"
)

// kindsOf returns the kinds of a file by its path, folder after folder as a look
// does it.
func kindsOf(name string) (kinds []string) {
	f := &folder{}
	for {
		e, rest, more := strings.Cut(name, "/")
		at, _ := f.step(e)
		if !more {
			for _, n := range at {
				if !slices.Contains(kinds, n.kind) {
					kinds = append(kinds, n.kind)
				}
			}
			return kinds
		}
		f, name = &folder{at: at}, rest
	}
}

func TestRules(t *testing.T) {
	for _, c := range []struct{ path, kinds string }{
		{".git/hooks/pre-commit", toolproto.PlaceHook},
		{"a/b/c/.git/hooks/post-checkout", toolproto.PlaceHook},
		{".GIT/Hooks/pre-commit", toolproto.PlaceHook},
		{".git/hooks/pre-commit.sample", ""},
		{".git/hooks/PRE-COMMIT.SAMPLE", ""},
		{".git/hooks/dir/x", ""},
		{".git/hooks", toolproto.PlaceHook}, // a link, say
		{".git", toolproto.PlaceGit},        // a link, or a file that says where it is
		{".git/config", toolproto.PlaceGit},
		{".git/config.worktree", toolproto.PlaceGit},
		{".git/worktrees/w/commondir", toolproto.PlaceGit},
		{".git/worktrees/w/gitdir", ""},
		{".git/objects/info/alternates", toolproto.PlaceGit},
		{".git/objects/ab/cdef", ""},
		{".git/index", ""},
		{".git/HEAD", ""},
		{".gitmodules", toolproto.PlaceGit},
		{".gitattributes", ""},
		{".envrc", toolproto.PlaceShell},
		{"sub/.envrc", toolproto.PlaceShell},
		{".vscode/tasks.json", toolproto.PlaceEditor},
		{".vscode", toolproto.PlaceEditor},
		{".idea/a/b/c.xml", toolproto.PlaceEditor},
		{".devcontainer/devcontainer.json", toolproto.PlaceEditor},
		{".mcp.json", toolproto.PlaceAgent},
		{".mcp.json.before-palyra", toolproto.PlaceAgent}, // palyra setup --undo gives its entry back
		{".claude/commands/x.md", toolproto.PlaceAgent},
		{".claude/.envrc", toolproto.PlaceAgent + " " + toolproto.PlaceShell},
		{"AGENTS.md", toolproto.PlaceAgent},
		{".github/workflows/ci.yml", toolproto.PlaceCI},
		{".github/copilot-instructions.md", toolproto.PlaceAgent},
		{".github/CODEOWNERS", ""},
		{".gitlab-ci.yml", toolproto.PlaceCI},
		{".husky/pre-commit", toolproto.PlaceHook},
		{".pre-commit-config.yaml", toolproto.PlaceHook},
		{".npmrc", toolproto.PlacePackage},
		{".cargo/config.toml", toolproto.PlacePackage},
		{".yarn/cache/x.zip", ""},
		{".yarn/releases/yarn.cjs", toolproto.PlacePackage},
		{".gdbinit", toolproto.PlaceTool},
		{".pdbrc", toolproto.PlaceTool},
		{".hg/hgrc", toolproto.PlaceHg},
		{".hg/dirstate", ""},
		{".jj/repo/config.toml", toolproto.PlaceHg},
		{".jj/repo", toolproto.PlaceHg}, // a link, or a file that says where it is
		{"Makefile", ""},
		{"package.json", ""},
		{"main.go", ""},
		{"hooks/pre-commit", ""},
		{"x.envrc", ""},
		{".envrc/x", ""},
	} {
		if got := strings.Join(kindsOf(c.path), " "); got != c.kinds {
			t.Errorf("%s: %q, want %q", c.path, got, c.kinds)
		}
	}
	for _, r := range toolproto.Places() {
		if r.Asked {
			continue
		}
		for p := range strings.FieldsSeq(r.Paths) {
			if p != lower(p) || path.Clean(p) != p {
				t.Errorf("rule %q is not spelled in lower case and plainly", p)
			}
			file := strings.ReplaceAll(strings.ReplaceAll(p, "**", "any/thing"), "*", "some")
			if got := kindsOf(file); !slices.Contains(got, r.Kind) {
				t.Errorf("%s by rule %s: %v, want %s", file, p, got, r.Kind)
			}
		}
	}
}

func TestLeadsOut(t *testing.T) {
	for _, c := range []struct {
		depth  int
		target string
		want   bool
	}{
		{0, "/etc/passwd", true},
		{0, "/", true},
		{0, "/workspace/x", true}, // the program's /workspace is not the host's
		{0, "x", false},
		{0, "./x/./y", false},
		{0, ".", false},
		{0, "", true},
		{0, "..", true},
		{0, "../x", true},
		{1, "..", false},
		{1, "../x", false},
		{1, "./../x//", false},
		{1, "../../x", true},
		{2, "../../x", false},
		{2, "../x/..", true}, // x may be a link
		{3, "a/../b", true},  // so may a
		{0, "...", false},
		{0, "..x/y", false},
	} {
		if got := leadsOut(c.depth, c.target); got != c.want {
			t.Errorf("%q in %d folders: %t", c.target, c.depth, got)
		}
	}
}

// FuzzLeadsOut holds leadsOut to a walk through folders that are folders: what
// that comes out of must be said to lead out, and what is said to stay must stay
// even where every name is a link to the top.
func FuzzLeadsOut(f *testing.F) {
	for _, s := range []string{"", "/", "..", "a/../..", "../a/b", "./.././x", "a//b/../../..", "\x00/..", "\xff\n"} {
		f.Add(uint8(2), s)
	}
	f.Fuzz(func(t *testing.T, d uint8, target string) {
		depth := int(d % 8)
		got := leadsOut(depth, target)
		out := strings.HasPrefix(target, "/") || target == ""
		plain, worst := depth, depth
		for e := range strings.SplitSeq(target, "/") {
			switch e {
			case "", ".":
			case "..":
				plain, worst = plain-1, worst-1
				out = out || plain < 0
				if worst < 0 && !got {
					t.Fatalf("%q in %d folders is said to stay, and comes out if its names are links to the top", target, depth)
				}
			default:
				plain, worst = plain+1, 0
			}
		}
		if out && !got {
			t.Fatalf("%q in %d folders comes out and is said to stay", target, depth)
		}
	})
}

// FuzzRules holds the compiled rules to the rules read word by word.
func FuzzRules(f *testing.F) {
	for _, r := range toolproto.Places() {
		if r.Asked {
			continue
		}
		for p := range strings.FieldsSeq(r.Paths) {
			f.Add("sub/" + p)
		}
	}
	f.Add(".git/hooks/x.sample")
	f.Add(".GIT/CONFIG")
	f.Add("\xff/\n/.envrc")
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || path.Clean("/" + name)[1:] != name || len(name) > 4095 {
			return // no path that a look makes
		}
		want := false
		for _, r := range toolproto.Places() {
			if r.Asked {
				continue
			}
			for p := range strings.FieldsSeq(r.Paths) {
				want = want || slowly(strings.Split(p, "/"), strings.Split(lower(name), "/"))
			}
		}
		if got := len(kindsOf(name)) > 0; got != want {
			t.Fatalf("%q: %t, by the rules %t", name, got, want)
		}
	})
}

// slowly reports whether a path is one of a rule's, or in the place of one of its
// folders, in any folder.
func slowly(rule, name []string) bool {
	for ; len(name) > 0; name = name[1:] {
		for i, e := range name {
			if i == len(rule) {
				break
			}
			if rule[i] == "**" {
				return true
			}
			if rule[i] != e && (rule[i] != "*" || rule[i-1] == "hooks" && strings.HasSuffix(e, ".sample")) {
				break
			}
			if i == len(name)-1 {
				return true
			}
		}
	}
	return false
}
