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

// Pattern is a set of calls by their parsed fields. A field is equal, or bounded; the
// comparison never treats a field as text that a shell would read again. Program,
// workspace, network, tier and limits bound what the calls can reach. Its canonical JSON
// has a digest, which receipts name.
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
	AnyContent   bool         `json:"any_content"`  // of the program's input and output
	Network      string       `json:"network"`
	EgressHosts  []string     `json:"egress_hosts"` // at most these
	Capabilities []string     `json:"capabilities"` // at most these
	Tier         string       `json:"tier"`         // at least this
	Limits       Limits       `json:"limits"`       // at most these
}

// PatternArg bounds one argument.
type PatternArg struct {
	// Kind is "exact": Text; "within": Text and a relative path that stays beneath
	// the working directory and is no option, of process.run to no folder; or
	// "content": Text and a size or digest of what AnyContent lets differ.
	Kind string `json:"kind"`
	Text string `json:"text"` // the argument, or what comes before the path or value ("path=")
	// Names is, of an exact one of process.run, "file" if it names a file that is held,
	// "folder" if it names a folder; absent if it names neither. That must stay so, except
	// that a file may come where there was nothing.
	Names string `json:"names,omitempty"`
}

// The kinds of PatternArg.
const (
	ArgExact   = "exact"
	ArgWithin  = "within"
	ArgContent = "content"
)

// Loosen says how a Pattern is wider than the call it is made from. The zero Loosen allows
// other contents of the same files, lower limits, less egress and fewer capabilities.
type Loosen struct {
	Within []int `json:"within,omitempty"` // positions in argv, 1 is the first argument
	// Content allows another standard input, or a built-in tool other content to write.
	Content bool `json:"content,omitempty"`
}

// processRun is the tool whose program its caller names; all others run programs of the
// operator's table.
const processRun = "process.run"

// plain are the ordinary programs that read, print, compare and move files, and start no
// other program and run no code for any argument, file or input. Only these have patterns:
// a program that this list misses costs a question, and never gives a pattern of anything.
// Left out for an option each: sort (--compress-program), split (--filter), diff3 and sdiff
// (--diff-program), ln (what a link leads to is no part of a pattern), objdump and nm
// (--plugin), rg (--pre), dc (!), awk and sed.
const plain = `[ b2sum base32 base64 basename basenc cal cat chgrp chmod chown cksum cmp col colrm column
	comm cp csplit cut date dd df diff dir dirname du echo expand expr factor false fmt fold grep groups hd head
	hexdump hostid hostname id join link locale logname look ls md5sum mkdir mkfifo mktemp mv nl nproc numfmt
	od paste pathchk pr printenv printf ptx pwd readlink realpath rev rm rmdir seq sha1sum sha224sum sha256sum sha384sum
	sha512sum shred shuf sleep stat sum sync tac tail tee test touch tr tree true truncate tsort tty uname unexpand uniq
	unlink uptime users uuidgen vdir wc who whoami xxd yes`

// isPlain reports whether the program's file and the name that it is called by are both a
// plain program's. Some programs act on that name.
func isPlain(c *Call) bool {
	listed := func(name string) bool {
		for p := range strings.FieldsSeq(plain) {
			if p == path.Base(name) {
				return true
			}
		}
		return false
	}
	return len(c.Argv) > 0 && listed(c.Executable) && listed(c.Argv[0])
}

// NewPattern makes the pattern of calls like c, wider by what l says. It returns
// fault.Denied "invalid_input" if a pattern would bound nothing: for shells,
// interpreters, loaders, wrappers and scripts, for programs that may start others, and for
// programs that aren't the system's own. Approvers approve such calls by their capsule.
func NewPattern(tool string, c *Call, l Loosen) (*Pattern, error) {
	refused := func(format string, a ...any) (*Pattern, error) {
		return nil, fault.New(fault.Denied, "invalid_input", "make pattern", fmt.Errorf(format, a...)).WithHint("approve the capsule itself")
	}
	name := path.Base(c.Executable)
	switch builtin := tool != processRun; {
	case len(c.Argv) == 0 || c.Executable == "" || c.Digest.IsZero() || c.EnvDigest.IsZero() || c.Kind == "":
		return refused("the call is not described in full")
	case c.Script != "":
		return refused("a script runs what is in it")
	case c.Kind != "other":
		return refused("%q is a %s: its arguments are programs", name, c.Kind)
	case !builtin && !isPlain(c):
		return refused("%q, called %q, may start what its arguments or files name: only ordinary file tools have patterns", name, path.Base(c.Argv[0]))
	case !builtin && !c.System:
		return refused("%q is not the system's own", c.Executable)
	case c.Staged:
		return refused("its workspace is staged: a yes is about one call's layer")
	case c.Background:
		return refused("it runs in the background, and a yes is about one such program")
	case len(c.Mounts)+len(c.Caches) > 0:
		return refused("it reads mounts or caches, whose content may differ each time")
	case len(c.Secrets) > 0:
		return refused("it reads secrets")
	case len(c.EgressInspect)+len(c.EgressSecrets) > 0:
		return refused("its requests are inspected, and a yes is about one such call")
	case c.TTY != nil:
		return refused("it has a terminal, on which anything may be typed")
	case c.MCP != nil:
		return refused("it asks a server, and a yes is about one such question")
	case strings.HasPrefix(tool, "changes.") && l.Content:
		return refused("its digest names the list of changes that the yes is about")
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
		exact := PatternArg{Kind: ArgExact, Text: a}
		if tool == processRun && i > 0 {
			exact.Names = c.names(i)
		}
		p.Argv = append(p.Argv, exact)
		if prefix, ok := contentArg(a); ok && tool != processRun && i > 1 && l.Content {
			p.Argv[i] = PatternArg{Kind: ArgContent, Text: prefix}
		}
	}
	for _, i := range l.Within {
		if i < 1 || i >= len(c.Argv) || tool != processRun && i < 2 {
			return nil, fault.New(fault.Usage, "invalid_input", "make pattern", fmt.Errorf("argument %d is not one that can differ", i))
		}
		p.Argv[i] = PatternArg{Kind: ArgWithin}
		if before, _, ok := strings.Cut(c.Argv[i], "="); ok && tool != processRun {
			p.Argv[i].Text = before + "="
		}
	}
	if err := p.Match(tool, c); err != nil { // a position that is loosened must fit itself
		return nil, fault.New(fault.Usage, "invalid_input", "make pattern", err)
	}
	return p, nil
}

// contentArg recognises the kernel's description of a built-in tool's content.
func contentArg(a string) (prefix string, ok bool) {
	before, _, ok := strings.Cut(a, "=")
	return before + "=", ok && (before == "size" || before == "digest")
}

func sorted(ss []string) []string {
	out := append([]string{}, ss...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Match returns nil if the call is one of p's, and otherwise names the first field that
// differs. Shells and their like match no pattern, whatever it says.
func (p *Pattern) Match(tool string, c *Call) error {
	no := func(field string) error { return fmt.Errorf("%s differs", field) }
	switch {
	case p == nil || p.Version != PatternVersion || p.Digest.IsZero():
		return errors.New("no pattern")
	case c.Kind != "other" || c.Script != "":
		return errors.New("shells, interpreters and scripts fit no pattern")
	case tool == processRun && !isPlain(c):
		return errors.New("only ordinary file tools fit a pattern")
	case p.Tool != tool:
		return no("tool")
	case p.Executable != c.Executable || p.Digest != c.Digest:
		return no("executable")
	case p.Env != c.EnvDigest:
		return no("environment")
	case p.Cwd != c.Cwd:
		return no("cwd")
	case p.Workspace != c.Workspace || p.ReadOnly && !c.ReadOnly || c.Staged || len(c.Mounts)+len(c.Caches) > 0:
		return no("workspace")
	case p.Stdin != c.Stdin || !p.AnyContent && p.StdinDigest != c.StdinDigest:
		return no("stdin")
	case len(c.Secrets) > 0:
		return no("secrets")
	case len(c.EgressInspect)+len(c.EgressSecrets) > 0:
		return no("requests")
	case c.TTY != nil:
		return no("terminal")
	case c.MCP != nil: // its arguments are the server's, and say nothing of tool and question
		return no("question")
	case p.Network != c.Network:
		return no("network")
	case c.Background:
		return no("background")
	case !within(c.EgressHosts, p.EgressHosts):
		return no("egress")
	case !within(c.Capabilities, p.Capabilities):
		return no("capabilities")
	case c.Tier == "" || c.Tier < p.Tier:
		// "a", "b", "c": each is stricter about processes than the one before.
		return no("tier")
	case !lower(&c.Bounds, &p.Limits):
		return no("limits")
	case len(c.Argv) != len(p.Argv):
		return no("number of arguments")
	}
	for i, a := range p.Argv {
		if !a.match(tool, c.Argv[i], c) || i > 0 && !a.namesAsBefore(tool, i, c) {
			return no(fmt.Sprintf("argument %d", i))
		}
	}
	return nil
}

// match reports whether one argument of c fits. A program that its caller chose gets no
// folder in the place of a file, and nothing that can become one before it runs: it would
// do to everything in the folder what it was to do to one file.
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
			// More names have no file than the capsule lists: the workspace stands for
			// them.
			return false
		}
		return ok && beneath(rest) && !slices.ContainsFunc(c.Loose, named) &&
			(tool != processRun || rest != "." && !slices.ContainsFunc(c.Folders, named) && !slices.ContainsFunc(c.Absent, named))
	}
	return false
}

// namesAsBefore reports whether an exact argument still names the same kind of thing. A
// program that its caller chose would do to everything in a folder what it was to do to one
// file; and the kernel holds no file that doesn't exist yet.
func (a PatternArg) namesAsBefore(tool string, i int, c *Call) bool {
	if tool != processRun || a.Kind != ArgExact {
		return true
	}
	now := c.names(i)
	return now == a.Names || now == namesFile && a.Names == ""
}

// The values of PatternArg.Names and Call.Named; the last fits no pattern.
const (
	namesFile   = "file"
	namesFolder = "folder"
	namesLoose  = "loose"
)

// names says what argument i names: by the kernel's finding or, in a call that an older
// version recorded, by its text.
func (c *Call) names(i int) string {
	if len(c.Named) != len(c.Argv) {
		return c.worst(c.Argv[i], c.listed(), func(name string) string { return name })
	}
	return c.Named[i]
}

// Name fills in Named. place returns the place that the kernel found a name to lead to, as
// the lists spell it; "" is none.
func (c *Call) Name(place func(name string) string) {
	listed := c.listed()
	c.Named = make([]string, len(c.Argv))
	for i, arg := range c.Argv[1:] {
		c.Named[i+1] = c.worst(arg, listed, place)
	}
}

// listed says what the lists have under each of their paths: the worst of it.
func (c *Call) listed() map[string]string {
	m := make(map[string]string)
	for _, o := range c.Operands {
		m[o.Path] = namesFile
	}
	for _, f := range c.Folders {
		m[f] = namesFolder
	}
	for _, l := range c.Loose {
		m[l] = namesLoose
	}
	return m
}

// worst returns the worst kind that an argument names by itself or behind its first "=".
func (c *Call) worst(arg string, listed map[string]string, place func(name string) string) (what string) {
	_, value, _ := strings.Cut(arg, "=")
	for _, name := range []string{place(arg), place(value)} {
		if name == "" {
			continue
		}
		if !path.IsAbs(name) {
			name = c.Cwd + "/" + name
		}
		for _, at := range []string{name, path.Clean(name)} {
			switch kind := listed[at]; {
			case kind == namesLoose, what == namesLoose:
				what = namesLoose
			case kind == namesFolder, what == namesFolder:
				what = namesFolder
			case kind != "":
				what = kind
			}
		}
	}
	return what
}

// beneath reports whether s is a relative path without tricks: clean, not going up, of
// characters that a person sees as they are, no option, and none of the names that programs
// read as more than a file's: "of=x" of dd, "+cmd", "@list", "concat:a|b".
func beneath(s string) bool {
	if s == "" || strings.IndexByte("/-+@%!~", s[0]) >= 0 || strings.ContainsAny(s, "=:|") || path.Clean(s) != s || s == ".." || strings.HasPrefix(s, "../") {
		return false
	}
	return Escape(s) == s // no control, bidi, zero-width or look-alike characters, no quotes
}

// lower reports whether no limit of l is above that of m.
func lower(l, m *Limits) bool {
	return l.Wall <= m.Wall && l.CPU <= m.CPU && l.Memory <= m.Memory && l.PIDs <= m.PIDs && l.Output <= m.Output &&
		l.FileSize <= m.FileSize && l.OpenFiles <= m.OpenFiles && l.Disk <= m.Disk && l.Inodes <= m.Inodes
}

func within(have, bound []string) bool {
	return !slices.ContainsFunc(have, func(s string) bool { return !slices.Contains(bound, s) })
}

// Sum returns the digest of p's canonical JSON.
func (p *Pattern) Sum() (canon.Digest, error) {
	b, err := canon.Marshal(p)
	if err != nil {
		return canon.Digest{}, err
	}
	return canon.Sum(b), nil
}

// Text returns p as lines of printable ASCII.
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
			named := map[string]string{namesFile: ", a file", namesFolder: ", a FOLDER"}[a.Names]
			row(fmt.Sprintf("argument %d", i), "%s%s", shown(a.Text), named)
		}
	}
	row("environment", "exactly that of this call, %s", p.Env)
	row("in", "%s", shown(p.Cwd))
	row("workspace", "%s", workspace(&Call{Workspace: p.Workspace, ReadOnly: p.ReadOnly}))
	row("network", "%s", network(&Call{EgressHosts: p.EgressHosts, Network: p.Network}))
	for _, h := range p.EgressHosts {
		row("reaches", "%s", host(h))
	}
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
