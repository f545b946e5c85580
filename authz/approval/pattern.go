package approval

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// PatternVersion is the version of Pattern.
const PatternVersion = 1

// Pattern is a set of calls by their parsed fields. A field is equal, or bounded;
// nothing is compared as a piece of text that a shell would read again. What
// bounds the calls is what they can reach: program, workspace, network, tier and
// limits. Its canonical JSON has a digest, which receipts name.
type Pattern struct {
	Version      int          `json:"version"`
	Tool         string       `json:"tool"`
	Executable   string       `json:"executable"` // resolved path
	Digest       canon.Digest `json:"digest"`     // of it
	Argv         []PatternArg `json:"argv"`       // one for each argument: neither more nor fewer
	Env          canon.Digest `json:"env"`        // of all names and values
	Cwd          string       `json:"cwd"`
	Workspace    string       `json:"workspace"` // host directory; "" is an empty private one
	ReadOnly     bool         `json:"read_only"`
	Stdin        string       `json:"stdin"`        // mode
	StdinDigest  canon.Digest `json:"stdin_digest"` // of a sealed one, unless AnyContent
	AnyContent   bool         `json:"any_content"`  // whatever the program is given to read or write
	Network      string       `json:"network"`
	EgressHosts  []string     `json:"egress_hosts"` // at most these
	Capabilities []string     `json:"capabilities"` // at most these
	Tier         string       `json:"tier"`         // at least this
	Limits       Limits       `json:"limits"`       // at most these
}

// PatternArg says what one argument may be.
type PatternArg struct {
	// Kind is "exact": Text; "within": Text and a relative path that stays beneath
	// the working directory and is no option, of process.run to no folder; or
	// "content": Text and a size or digest of what AnyContent lets differ.
	Kind string `json:"kind"`
	Text string `json:"text"` // the argument, or what comes before the path or value ("path=")
}

// The kinds of PatternArg.
const (
	ArgExact   = "exact"
	ArgWithin  = "within"
	ArgContent = "content"
)

// Loosen says in what a Pattern is wider than the call it is made from. The zero
// Loosen allows other contents of the same files, and less of limits, egress and
// capabilities.
type Loosen struct {
	Within  []int `json:"within,omitempty"`  // positions in argv, 1 is the first argument
	Content bool  `json:"content,omitempty"` // another standard input; of a built-in tool, other content to write
}

// processRun is the tool whose program its caller names; all others run what the
// operator's table says.
const processRun = "process.run"

// runsOthers are programs that start what their arguments or their input files
// name, without being interpreters by name: a pattern of them would be a pattern
// of anything. What the list misses is confined like everything else.
var runsOthers = []string{"make", "gmake", "bmake", "ninja", "cmake", "ctest", "meson", "scons", "rake", "just", "find", "fd", "tar", "bsdtar", "cpio",
	"rsync", "scp", "sftp", "git", "hg", "svn", "vi", "vim", "nvim", "ex", "ed", "emacs", "nano", "less", "more", "man", "sed", "sort", "split", "zip",
	"go", "cargo", "rustc", "gcc", "cc", "g++", "c++", "clang", "ld", "as", "npm", "npx", "yarn", "pnpm", "pip", "pipx", "uv", "gem", "bundle", "mvn",
	"gradle", "ant", "docker", "podman", "kubectl", "systemctl", "crontab", "at", "batch", "dpkg", "apt", "apt-get", "rpm", "m4", "cpp", "tclsh", "jq", "yq",
	"sqlite3", "psql", "mysql", "openssl", "curl", "wget", "socat", "nc", "ncat", "mount", "install", "ln", "busybox"}

// NewPattern makes the pattern of calls like c, wider by what l says. It is
// fault.Denied "pattern_refused" where a pattern would bound nothing: of shells,
// interpreters, loaders, wrappers and scripts, of programs that start others, and
// of programs that are not the system's own. Such calls are approved by their
// capsule.
func NewPattern(tool string, c *Call, l Loosen) (*Pattern, error) {
	refused := func(format string, a ...any) (*Pattern, error) {
		return nil, fault.New(fault.Denied, "pattern_refused", "make pattern", fmt.Errorf(format, a...)).WithHint("approve the capsule itself")
	}
	name := path.Base(c.Executable)
	family := strings.TrimRight(name, "0123456789.-")
	switch builtin := tool != processRun; {
	case len(c.Argv) == 0 || c.Executable == "" || c.Digest.IsZero() || c.EnvDigest.IsZero() || c.Kind == "":
		return refused("the call is not described in full")
	case c.Script != "":
		return refused("a script runs what is in it")
	case c.Kind != "other":
		return refused("%q is a %s: its arguments are programs", name, c.Kind)
	case !builtin && (slices.Contains(runsOthers, name) || slices.Contains(runsOthers, family)):
		return refused("%q starts what its arguments or files name", name)
	case !builtin && !c.System:
		return refused("%q is not the system's own", c.Executable)
	case c.Stdin == "stream" && !l.Content:
		return refused("what the program reads from a stream is not known")
	}
	p := &Pattern{Version: PatternVersion, Tool: tool, Executable: c.Executable, Digest: c.Digest, Env: c.EnvDigest, Cwd: c.Cwd,
		Workspace: c.Workspace, ReadOnly: c.ReadOnly, Stdin: c.Stdin, StdinDigest: c.StdinDigest, AnyContent: l.Content, Network: c.Network,
		EgressHosts: sorted(c.EgressHosts), Capabilities: sorted(c.Capabilities), Tier: c.Tier, Limits: c.Bounds}
	if l.Content {
		p.StdinDigest = canon.Digest{}
	}
	for i, a := range c.Argv {
		p.Argv = append(p.Argv, PatternArg{Kind: ArgExact, Text: a})
		if prefix, ok := contentArg(a); ok && tool != processRun && i > 1 && l.Content {
			p.Argv[i] = PatternArg{Kind: ArgContent, Text: prefix}
		}
	}
	for _, i := range l.Within {
		if i < 1 || i >= len(c.Argv) || tool != processRun && i < 2 {
			return nil, fault.New(fault.Usage, "bad_position", "make pattern", fmt.Errorf("argument %d is not one that can differ", i))
		}
		p.Argv[i] = PatternArg{Kind: ArgWithin}
		if before, _, ok := strings.Cut(c.Argv[i], "="); ok && tool != processRun {
			p.Argv[i].Text = before + "="
		}
	}
	if err := p.Match(tool, c); err != nil { // a position that is loosened must fit itself
		return nil, fault.New(fault.Usage, "bad_position", "make pattern", err)
	}
	return p, nil
}

// contentArg recognises what the kernel says of a built-in tool's content.
func contentArg(a string) (prefix string, ok bool) {
	before, _, ok := strings.Cut(a, "=")
	return before + "=", ok && (before == "size" || before == "digest")
}

func sorted(ss []string) []string {
	out := append([]string{}, ss...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Match returns nil if the call is one of p's, and otherwise the first field in
// which it is not. Shells and their like match no pattern, whatever it says.
func (p *Pattern) Match(tool string, c *Call) error {
	no := func(field string) error { return fmt.Errorf("%s differs", field) }
	switch {
	case p == nil || p.Version != PatternVersion || p.Digest.IsZero():
		return errors.New("no pattern")
	case c.Kind != "other" || c.Script != "":
		return errors.New("shells, interpreters and scripts fit no pattern")
	case p.Tool != tool:
		return no("tool")
	case p.Executable != c.Executable || p.Digest != c.Digest:
		return no("executable")
	case p.Env != c.EnvDigest:
		return no("environment")
	case p.Cwd != c.Cwd:
		return no("cwd")
	case p.Workspace != c.Workspace || p.ReadOnly && !c.ReadOnly:
		return no("workspace")
	case p.Stdin != c.Stdin || !p.AnyContent && p.StdinDigest != c.StdinDigest:
		return no("stdin")
	case p.Network != c.Network:
		return no("network")
	case !within(c.EgressHosts, p.EgressHosts):
		return no("egress")
	case !within(c.Capabilities, p.Capabilities):
		return no("capabilities")
	case c.Tier == "" || c.Tier < p.Tier: // "a", "b", "c": each stricter about processes than the one before
		return no("tier")
	case !c.Bounds.within(&p.Limits):
		return no("limits")
	case len(c.Argv) != len(p.Argv):
		return no("number of arguments")
	}
	for i, a := range p.Argv {
		if !a.match(tool, c.Argv[i], c) {
			return no(fmt.Sprintf("argument %d", i))
		}
	}
	return nil
}

// match reports whether one argument of c fits. A program that its caller chose
// gets no folder for a file, and nothing that can become one before it runs: it may do
// to everything in a folder what it was to do to one file.
func (a PatternArg) match(tool, s string, c *Call) bool {
	switch a.Kind {
	case ArgExact:
		return s == a.Text
	case ArgContent:
		rest, ok := strings.CutPrefix(s, a.Text)
		return ok && rest != "" && strings.Trim(rest, "0123456789abcdefsh:") == ""
	case ArgWithin:
		rest, ok := strings.CutPrefix(s, a.Text)
		named := func(l string) bool { return l == rest || strings.HasSuffix(l, "/"+rest) }
		if tool == processRun && slices.ContainsFunc(c.Absent, func(l string) bool { _, in := strings.CutPrefix(c.Cwd+"/", l+"/"); return in }) {
			return false // more names have no file than the capsule lists: the workspace stands for them
		}
		return ok && beneath(rest) && !slices.ContainsFunc(c.Loose, named) &&
			(tool != processRun || rest != "." && !slices.ContainsFunc(c.Folders, named) && !slices.ContainsFunc(c.Absent, named))
	}
	return false
}

// beneath reports whether s is a relative path without tricks: clean, not going
// up, of characters that a person sees as they are, and no option nor what programs
// take for more than the name of a file, which a file can have, too: "of=x" of dd,
// "+cmd", "@list", "concat:a|b".
func beneath(s string) bool {
	if s == "" || strings.IndexByte("/-+@%!~", s[0]) >= 0 || strings.ContainsAny(s, "=:|") || path.Clean(s) != s || s == ".." || strings.HasPrefix(s, "../") {
		return false
	}
	return Escape(s) == s // no control, bidi, zero-width or look-alike characters, no quotes
}

func within(have, bound []string) bool {
	return !slices.ContainsFunc(have, func(s string) bool { return !slices.Contains(bound, s) })
}

// Sum is the digest of p's canonical JSON.
func (p *Pattern) Sum() (canon.Digest, error) {
	b, err := canon.Marshal(p)
	if err != nil {
		return canon.Digest{}, err
	}
	return canon.Sum(b), nil
}

// Text is p as lines of printable ASCII.
func (p *Pattern) Text() string {
	var b strings.Builder
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "  %-11s "+format+"\n", append([]any{name}, a...)...)
	}
	row("tool", "%s", Escape(p.Tool))
	row("program", "%s %s", shown(p.Executable), p.Digest)
	for i, a := range p.Argv {
		switch a.Kind {
		case ArgWithin:
			what := "ANY FILE"
			if p.Tool != processRun {
				what = "ANY FILE OR FOLDER"
			}
			row(fmt.Sprintf("argument %d", i), "%s %s in the working directory or below", shown(a.Text), what)
		case ArgContent:
			row(fmt.Sprintf("argument %d", i), "%s ANY", shown(a.Text))
		default:
			row(fmt.Sprintf("argument %d", i), "%s", shown(a.Text))
		}
	}
	row("environment", "exactly that of this call, %s", p.Env)
	row("in", "%s", shown(p.Cwd))
	row("workspace", "%s", workspace(&Call{Workspace: p.Workspace, ReadOnly: p.ReadOnly}))
	row("network", "%s", network(&Call{EgressHosts: p.EgressHosts}))
	if p.AnyContent {
		row("stdin", "%s, ANY CONTENT", Escape(orNone(p.Stdin)))
	} else {
		row("stdin", "%s", Escape(orNone(p.Stdin)))
	}
	row("can", "%s", Escape(strings.Join(p.Capabilities, ", ")))
	row("tier", "%s or stricter", Escape(orNone(p.Tier)))
	row("limits", "at most those of this call")
	return b.String()
}
