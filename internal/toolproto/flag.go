package toolproto

import (
	"slices"
	"strings"
)

// Flag says that a path that was written is one that other programs run or obey
// without being asked.
type Flag struct {
	Path string `json:"path"`
	Kind string `json:"kind"` // see Place
	Why  string `json:"why"`
}

// KindExecutable is the kind of the flag for a file that is made executable and has
// no other.
const KindExecutable = "executable"

// FlagOf returns the kind of the flag that a file gets in a brief: that of its name, or
// that of the permissions that are set; "" if it gets none.
func FlagOf(name, permissions string) string {
	if f, ok := Planted(name); ok {
		return f.Kind
	}
	if permissions == "0755" {
		return KindExecutable
	}
	return ""
}

// Flagged returns the flags that the brief of a writing tool carries, with the
// paths and the reasons that go with them. argv is that of palyra-tool.
func Flagged(tool string, argv []string) []Flag {
	var out []Flag
	if !slices.Contains([]string{WriteFile, ApplyPatch, ChangesApply, ChangesUndo, ChangesRecover}, tool) {
		return nil
	}
	path := "" // of the argument that a flag belongs to
	for _, a := range argv[min(2, len(argv)):] {
		name, text, _ := strings.Cut(a, "=")
		switch {
		case slices.Contains([]string{"path", "create", "modify", "to", "ref", "head"}, name):
			// The new name of a renamed file counts.
			path = text
		case name == "flag":
			out = append(out, flagged(path, text))
		}
	}
	return out
}

// flagged finds the reason for a flag.
func flagged(path, kind string) Flag {
	if name, err := Unescape(path); err == nil {
		if f, ok := Planted(name); ok && f.Kind == kind {
			return Flag{Path: path, Kind: kind, Why: f.Why}
		}
	}
	return Flag{Path: path, Kind: kind, Why: MarkWhy(kind)}
}

// The kinds of flags that what a change makes of a file gives, besides KindExecutable.
const (
	MarkSetID = "set_id"
	MarkOpen  = "others_write"
	MarkOut   = "leads_out"
	MarkCase  = "case"
)

// MarkWhy returns the reason for a flag that isn't one of a place.
func MarkWhy(kind string) string {
	switch kind {
	case KindExecutable:
		return "it can be run as a program"
	case MarkSetID:
		return "it runs as its owner or group, or hands its group down"
	case MarkOpen:
		return "any user of the host may write to it"
	case MarkOut:
		return "it leads out of the workspace"
	case MarkCase:
		return "another name of the folder differs in case alone"
	case MarkRewritten:
		return "it leaves commits behind that it had"
	case MarkRefGone:
		return "the branch goes"
	case MarkRefOther:
		return "it moves, and isn't checked out; or it is new, and git takes its name before that of a remote, a tag or a commit"
	case MarkTag:
		return "a tag comes, moves or goes"
	case MarkHead:
		return "another branch or commit is checked out"
	case MarkCommits:
		return "it brings many commits, or much content"
	}
	return "other programs run or obey it"
}
