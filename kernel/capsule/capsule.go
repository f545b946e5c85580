// Package capsule is the identity of a call.
//
// A [Capsule] holds everything that decides what will happen, and nothing else:
// no ids, no times, no names of people. Its canonical JSON is what is decided,
// shown for approval, run and attested; the SHA-256 of those bytes names it.
// Two calls with one digest do the same thing to the same bytes.
//
//	c, err := capsule.Parse(data)     // refuses any other spelling
//	b, id, err := c.Seal()
//
// The format, with an example and its rules, is docs/formats/capsule.md.
//
// What it does not protect against: what a program reads that its capsule does
// not name. Libraries, interpreters' modules and files of the workspace that no
// argument names are outside; Unpinned lists what an argument or the program's
// headers name and what could not be held.
package capsule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"palyra/call"
	"palyra/call/egress"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
)

// Version is the version of the format.
const Version = 1

// MaxBytes bounds a capsule's JSON. It is less than execve takes, so that every
// argument of every call fits into its receipt.
const MaxBytes = 512 << 10

// Capsule is the canonical form of one call.
type Capsule struct {
	Version int      `json:"version"`
	Tool    string   `json:"tool"` // "process.run", or the one whose table made the rest
	Argv    []string `json:"argv"` // as it was asked for; a script's interpreter is not in it

	Executable File     `json:"executable"` // the binary that the kernel will load
	Scripts    []Script `json:"scripts"`    // files with a #! line, outermost first; the last one's interpreter is Executable

	Env []string `json:"env"` // complete, "NAME=VALUE", sorted by name
	Cwd string   `json:"cwd"` // as the program sees it

	Workspace *Workspace `json:"workspace"` // null: an empty private one
	Stdin     Stdin      `json:"stdin"`
	Operands  []File     `json:"operands"` // arguments that name regular files beneath the workspace, sorted by path
	Unpinned  []Unpinned `json:"unpinned"` // what else is named and not held, sorted by path and kind

	EgressHosts []string      `json:"egress_hosts"` // rules of call/egress, canonical and sorted; Network is NetworkEgress or NetworkPreflight exactly where there are some
	Secrets     []call.Secret `json:"secrets"`      // sorted by name; never a value

	Limits    call.Limits `json:"limits"`
	TierFloor tier.Tier   `json:"tier_floor"`

	// The rest is absent where it is zero: that is its one spelling then.

	// Network is a value of isolate.Spec.Network.
	Network string `json:"network,omitempty"`
	// Session is isolate.Spec.Session, whose network it is.
	Session string `json:"session,omitempty"`
	// Capabilities are those that the tool's table declares, sorted, on top of
	// what the members above show.
	Capabilities []string `json:"capabilities,omitempty"`
	// Sensitive says that the tool's table declares the tool so.
	Sensitive bool `json:"sensitive,omitempty"`
	// Mounts are sorted by path.
	Mounts []call.Mount `json:"mounts,omitempty"`
	// Caches are names, sorted; see package isolate/cache.
	Caches []string `json:"caches,omitempty"`
	// Declared says that Mounts, Caches and part of Env are what the operator declared for the
	// workspace.
	Declared *call.Declared `json:"declared,omitempty"`
	// TTY is the program's terminal; Env has its Term. What Stdin says is typed there.
	TTY *call.TTY `json:"tty,omitempty"`
	// Background says that no caller waits for the program's end.
	Background bool `json:"background,omitempty"`
	// EgressInspect are rules about requests, and EgressSecrets uses of secrets in them, as package
	// call/egress spells both, sorted. EgressHosts has a rule for the host of each.
	EgressInspect []string            `json:"egress_inspect,omitempty"`
	EgressSecrets []call.EgressSecret `json:"egress_secrets,omitempty"`
	// Loader is the dynamic loader that Executable names (PT_INTERP), always of the
	// system; absent where it names none, and in capsules of older versions.
	Loader *File `json:"loader,omitempty"`
}

// File is a file that was opened and hashed.
type File = call.File

// Workspace is a host folder shown to the program.
type Workspace = call.Workspace

// Stdin says what the program reads.
type Stdin = call.Stdin

// The values of File.Pinned.
const (
	PinnedSystem     = "system"
	PinnedSealed     = "sealed"
	PinnedOnApproval = "on_approval"
)

// Script is a file that begins with #!.
type Script struct {
	File
	Interpreter string  `json:"interpreter"` // as its first line spells it
	Argument    *string `json:"argument"`    // the one optional argument, null if none
}

// The modes of Stdin.
const (
	StdinNone   = "none"   // empty
	StdinSealed = "sealed" // read in full before the decision
	StdinStream = "stream" // unknown; decided without having seen it
)

// Unpinned is something that an argument names beneath the workspace, or the
// executable's headers anywhere, and that is not held: it may be another thing by
// the time it is used.
type Unpinned struct {
	Path string `json:"path"` // as the program sees it
	Kind string `json:"kind"` // one of the kinds below
}

// The kinds of Unpinned.
const (
	KindDirectory  = "directory"
	KindSymlink    = "symlink"    // or beneath one
	KindSpecial    = "special"    // FIFO, socket, device
	KindUnreadable = "unreadable" // by whoever sealed the call
	KindTooLarge   = "too_large"  // together beyond what is hashed
	KindAbsent     = "absent"     // nothing yet; of the workspace itself: more such names than are listed
	KindProgram    = "program"    // the name of a program of the workspace, which no copy covers
	KindStaged     = "staged"     // a file of a staged workspace: the layer may have another
	KindLibrary    = "library"    // a place that is not the system's, from which the loader takes libraries
)

// CompareUnpinned orders by path, then by kind.
func CompareUnpinned(a, b Unpinned) int {
	return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Kind, b.Kind))
}

// Kinds are the kinds of Unpinned, sorted.
func Kinds() []string {
	return []string{KindAbsent, KindDirectory, KindLibrary, KindProgram, KindSpecial, KindStaged, KindSymlink, KindTooLarge, KindUnreadable}
}

// Seal checks c and returns its canonical JSON and digest.
func (c *Capsule) Seal() ([]byte, canon.Digest, error) {
	if err := c.check(); err != nil {
		return nil, canon.Digest{}, err
	}
	b, err := canon.Marshal(c)
	if err != nil {
		return nil, canon.Digest{}, err
	}
	if len(b) > MaxBytes {
		return nil, canon.Digest{}, fault.New(fault.Usage, "too_large", "seal capsule",
			fmt.Errorf("%d bytes of JSON, limit %d", len(b), MaxBytes)).
			WithHint("pass data on standard input or in a file of the workspace instead of in arguments")
	}
	return b, canon.Sum(b), nil
}

// Parse reads canonical JSON. It refuses what Seal would not have written.
func Parse(data []byte) (*Capsule, error) {
	var c Capsule
	if err := canon.Decode(data, &c, canon.Limits{Bytes: MaxBytes, Depth: 8}); err != nil {
		return nil, err
	}
	b, _, err := c.Seal()
	if err != nil {
		return nil, err
	}
	// Also catches absent members, which decode to what prints as present ones.
	if !bytes.Equal(b, data) {
		return nil, fault.New(fault.Usage, "json_syntax", "parse capsule", errors.New("not in canonical form"))
	}
	return &c, nil
}

func bad(format string, args ...any) error {
	return fault.New(fault.Usage, "invalid_input", "check capsule", fmt.Errorf(format, args...))
}

// check holds c to the rules of the format. Lists are never null so that an
// empty one has one spelling.
func (c *Capsule) check() error {
	switch {
	case c.Version != Version:
		return bad("version %d, want %d", c.Version, Version)
	case c.Tool == "":
		return bad("no tool")
	case len(c.Argv) == 0:
		return bad("no argv")
	case c.Scripts == nil || c.Env == nil || c.Operands == nil || c.Unpinned == nil || c.EgressHosts == nil || c.Secrets == nil:
		return bad("a list is null")
	case !path.IsAbs(c.Cwd) || path.Clean(c.Cwd) != c.Cwd:
		return bad("cwd %q is not absolute and clean", c.Cwd)
	case c.TierFloor == tier.None:
		return bad("no tier floor")
	case !isolate.HasNetwork(c.TierFloor, c.Network):
		return bad("network %q at tier %s", c.Network, c.TierFloor)
	}
	if (len(c.EgressHosts) > 0) != (c.Network == isolate.NetworkEgress || c.Network == isolate.NetworkPreflight) {
		return bad("network %q with %d egress hosts", c.Network, len(c.EgressHosts))
	}
	if len(c.EgressInspect)+len(c.EgressSecrets) > 0 && c.Network != isolate.NetworkEgress {
		return bad("network %q with rules of requests or uses of secrets", c.Network)
	}
	if _, err := c.Inspection(); err != nil {
		return bad("%v", err)
	}
	if err := isolate.CheckSession(c.Network, c.Session); err != nil {
		return bad("%v", err)
	}
	if err := isolate.CheckTTY(c.TierFloor, c.TTY); err != nil {
		return bad("%v", err)
	}
	if t := c.TTY; t != nil && !slices.Contains(c.Env, "TERM="+t.Term) {
		return bad("env has no TERM=%s", t.Term)
	}
	for i, v := range c.Capabilities {
		if v == "" || i > 0 && c.Capabilities[i-1] >= v {
			return bad("capabilities are not sorted names")
		}
	}
	for _, s := range slices.Concat(c.Argv, c.Env) {
		if strings.IndexByte(s, 0) >= 0 {
			return bad("NUL in an argument or in the environment")
		}
	}
	if err := c.checkFiles(); err != nil {
		return err
	}
	if !slices.IsSortedFunc(c.Env, func(a, b string) int { return strings.Compare(Name(a), Name(b)) }) {
		return bad("env is not sorted")
	}
	for i, e := range c.Env {
		if n := Name(e); n == "" || len(n) == len(e) || i > 0 && Name(c.Env[i-1]) == n {
			return bad("env %q is not NAME=VALUE or is repeated", n)
		}
	}
	return c.checkStdinAndLimits()
}

func (c *Capsule) checkFiles() error {
	files := []File{c.Executable}
	for _, s := range c.Scripts {
		files = append(files, s.File)
		if s.Interpreter == "" {
			return bad("script without an interpreter")
		}
	}
	for _, f := range files {
		if f.Pinned != PinnedSystem && f.Pinned != PinnedSealed || f.Digest.IsZero() || f.Size <= 0 || !path.IsAbs(f.Path) {
			return bad("executable or script %q is not pinned", f.Path)
		}
	}
	for i, f := range c.Operands {
		if f.Pinned != PinnedOnApproval || f.Digest.IsZero() || f.Size < 0 || !path.IsAbs(f.Path) {
			return bad("operand %q is not pinned", f.Path)
		}
		if i > 0 && c.Operands[i-1].Path >= f.Path {
			return bad("operands are not sorted")
		}
	}
	if l := c.Loader; l != nil && (l.Pinned != PinnedSystem || l.Digest.IsZero() || l.Size <= 0 || !path.IsAbs(l.Path)) {
		return bad("loader %q is not a file of the system", l.Path)
	}
	for i, u := range c.Unpinned {
		switch {
		case !slices.Contains(Kinds(), u.Kind):
			return bad("unpinned %q: unknown kind %q", u.Path, u.Kind)
		case c.Workspace == nil && u.Kind != KindLibrary:
			return bad("operands without a workspace")
		}
		if i > 0 && CompareUnpinned(c.Unpinned[i-1], u) >= 0 {
			return bad("unpinned is not sorted")
		}
	}
	if w := c.Workspace; w != nil && (!path.IsAbs(w.Source) || path.Clean(w.Source) != w.Source) {
		return bad("workspace %q is not absolute and clean", w.Source)
	}
	if w := c.Workspace; w != nil && (w.Staged && (w.ReadOnly || c.TierFloor != tier.C) || !w.Staged && w.Layer != "") {
		return bad("a layer without a staged workspace, or one that is read-only or not of tier c")
	}
	if err := isolate.CheckPlaces(c.TierFloor, c.Workspace, c.Mounts, c.Caches); err != nil {
		return bad("%v", err)
	}
	if err := c.checkSecrets(); err != nil {
		return err
	}
	if err := c.checkUses(); err != nil {
		return err
	}
	if d := c.Declared; d != nil && (d.Workspace == "" || c.Workspace == nil) {
		return bad("what is declared for a workspace without a workspace")
	}
	if w := c.Workspace; w != nil && w.Layer != "" {
		if err := stage.CheckName(w.Layer); err != nil {
			return err
		}
	}
	if c.Workspace == nil && len(c.Operands) > 0 {
		return bad("operands without a workspace")
	}
	return nil
}

// Inspection returns the rules about requests and the uses of secrets.
func (c *Capsule) Inspection() (egress.Inspection, error) {
	rules, err := egress.ParseCanonical(c.EgressHosts)
	if err != nil {
		return egress.Inspection{}, err
	}
	return egress.ParseInspection(rules, some(c.EgressInspect), UseTexts(c.EgressSecrets))
}

// UseTexts returns the texts of uses of secrets. It's never nil.
func UseTexts(list []call.EgressSecret) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = s.Use
	}
	return out
}

func some(list []string) []string { return append([]string{}, list...) }

// checkUses holds the uses of one secret to one version of it.
func (c *Capsule) checkUses() error {
	in, err := c.Inspection()
	if err != nil {
		return bad("%v", err)
	}
	known := make(map[string]call.EgressSecret)
	for i, u := range in.Uses {
		s := c.EgressSecrets[i]
		first, again := known[u.Ref]
		switch {
		case s.Version == 0 || s.Record.IsZero():
			return bad("the use %q has no version or record", s.Use)
		case again && (first.Version != s.Version || first.Record != s.Record):
			return bad("two versions of %q", u.Ref)
		case slices.ContainsFunc(c.Env, func(e string) bool { return Name(e) == u.Name }):
			return bad("env sets %s, which holds a placeholder", u.Name)
		}
		known[u.Ref] = s
	}
	return nil
}

func (c *Capsule) checkSecrets() error {
	var names []string
	for _, s := range c.Secrets {
		if s.Ref == "" || s.Version == 0 || s.Record.IsZero() {
			return bad("secret %q has no reference, version or record", s.Name)
		}
		names = append(names, s.Name)
	}
	if err := isolate.CheckSecrets(c.TierFloor, c.Workspace, c.Mounts, names); err != nil {
		return bad("%v", err)
	}
	return nil
}

func (c *Capsule) checkStdinAndLimits() error {
	switch s := c.Stdin; s.Mode {
	case StdinNone, StdinStream:
		if !s.Digest.IsZero() || s.Size != 0 {
			return bad("stdin %q with a digest", s.Mode)
		}
	case StdinSealed:
		if s.Digest.IsZero() || s.Size < 0 {
			return bad("stdin without a digest")
		}
	default:
		return bad("stdin mode %q", s.Mode)
	}
	l := c.Limits
	for _, n := range []int64{int64(l.Wall), int64(l.CPU), l.Memory, l.PIDs, l.Output, l.FileSize, l.OpenFiles, l.Disk, l.Inodes} {
		if n <= 0 {
			return bad("a limit is %d", n)
		}
	}
	return nil
}

// Name returns the name of a NAME=VALUE.
func Name(env string) string {
	name, _, _ := strings.Cut(env, "=")
	return name
}

// EnvNames returns the names of the environment, without their values.
func (c *Capsule) EnvNames() []string {
	out := make([]string, len(c.Env))
	for i, e := range c.Env {
		out[i] = Name(e)
	}
	return out
}
