package receipt

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Planted is what was found in a writable workspace of the host after a call:
// what lies in wait there for whoever reads it, of what the call made or changed
// (docs/formats/receipt.md).
type Planted struct {
	Looked     int64       `json:"looked"`     // entries of folders that were looked at
	Incomplete []Unlooked  `json:"incomplete"` // what was not, sorted by reason; empty: all of it was
	TimesKept  bool        `json:"times_kept"` // the file system moves a file's ctime with every change
	Kinds      []KindCount `json:"kinds"`      // how many there are of each kind, sorted
	Found      []Finding   `json:"found"`      // sorted by path; of each kind the first ones
}

// Unlooked says how many folders were not looked into, or not to their end.
type Unlooked struct {
	Why     string `json:"why"`
	Folders int64  `json:"folders"`
}

// KindCount counts the findings of a kind.
type KindCount struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
}

// Finding is a file that lies in wait. Paths are relative to the workspace; in
// paths and targets a byte that is not printable, and the backslash, is \xHH.
type Finding struct {
	Path   string `json:"path"`
	Kind   string `json:"kind"`
	Mode   string `json:"mode"`             // type and permissions in six octal digits, as git writes them: "100755"
	Target string `json:"target,omitempty"` // of a symbolic link; absent where it is longer than 1 KiB
	Moved  bool   `json:"moved,omitempty"`  // the file is as it was, but a folder above it may have been put here or made a repository
}

// Compare orders findings by path, then kind.
func (f Finding) Compare(g Finding) int {
	return cmp.Or(strings.Compare(f.Path, g.Path), strings.Compare(f.Kind, g.Kind))
}

// Counts is p without the list, for a statement that has no room for it.
func (p *Planted) Counts() *Planted {
	c := *p
	c.Found = []Finding{}
	return &c
}

// The bounds of what was planted.
const (
	maxFindings    = 4096
	maxFindingText = 4 * 4400 // bytes; a path of 4095 and a name of 255, all of it escaped
	maxWord        = 32
)

// normalise makes lists empty rather than null.
func (p *Planted) normalise() {
	if p.Incomplete == nil {
		p.Incomplete = []Unlooked{}
	}
	if p.Kinds == nil {
		p.Kinds = []KindCount{}
	}
	if p.Found == nil {
		p.Found = []Finding{}
	}
}

func (p *Planted) check() error {
	if p.Incomplete == nil || p.Kinds == nil || p.Found == nil {
		return errors.New("planted: a list is null")
	}
	if p.Looked < 0 || len(p.Found) > maxFindings {
		return fmt.Errorf("planted: %d entries looked at, %d findings", p.Looked, len(p.Found))
	}
	last := ""
	for _, u := range p.Incomplete {
		if !isWord(u.Why) || u.Why <= last || u.Folders <= 0 {
			return fmt.Errorf("planted: incomplete %q is no word, out of order, or of no folders", clip(u.Why))
		}
		last = u.Why
	}
	last = ""
	left := make(map[string]int64)
	for _, k := range p.Kinds {
		if !isWord(k.Kind) || k.Kind <= last || k.Count <= 0 {
			return fmt.Errorf("planted: kind %q is no word, out of order, or of nothing", clip(k.Kind))
		}
		last, left[k.Kind] = k.Kind, k.Count
	}
	for i, f := range p.Found {
		if err := f.check(); err != nil {
			return err
		}
		if left[f.Kind]--; left[f.Kind] < 0 {
			return fmt.Errorf("planted: more findings of kind %q than there are", clip(f.Kind))
		}
		if i > 0 && p.Found[i-1].Compare(f) >= 0 {
			return errors.New("planted: findings out of order, or one twice")
		}
	}
	return nil
}

func (f *Finding) check() error {
	switch {
	case f.Path == "" || !printable(f.Path) || !printable(f.Target):
		return errors.New("planted: a path or target that is empty, too long or not printable")
	case len(f.Mode) != 6 || strings.Trim(f.Mode, "01234567") != "":
		return fmt.Errorf("planted: mode %q is not six octal digits", clip(f.Mode))
	}
	return nil
}

// printable leaves to whoever wrote it what else is printable: that changes with
// the tables of Unicode, and a receipt does not.
func printable(s string) bool {
	return len(s) <= maxFindingText && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}

func isWord(s string) bool {
	return s != "" && len(s) <= maxWord && !slices.ContainsFunc([]byte(s), func(c byte) bool { return c != '_' && (c < 'a' || c > 'z') })
}

// checkPlanted wants it in results of calls that could write to a folder of the
// host, and nowhere else.
func (p *Predicate) checkPlanted() error {
	if p.Planted == nil {
		return nil
	}
	if w := p.Capsule.Workspace; p.Intent == nil || w == nil || w.ReadOnly || w.Staged {
		return errors.New("something planted by a call that had no workspace to write to")
	}
	return p.Planted.check()
}
