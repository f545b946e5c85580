package toolproto

import (
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// Each Brief returns the arguments that palyra-tool gets behind the tool's name. They give
// the meaning of the input in a few words, so that policy can read them and an approver
// sees them; palyra-tool refuses an input that they don't belong to. Paths are spelled as
// in the input.

// Brief says how long the tool sleeps.
func (in *SleepInput) Brief() []string { return []string{"ms=" + strconv.FormatInt(in.MS, 10)} }

// Brief names the file to read.
func (in *ReadFileInput) Brief() []string { return []string{"path=" + in.Path} }

// Brief names the folder to list.
func (in *ListDirInput) Brief() []string {
	return []string{"path=" + in.Path, "depth=" + strconv.FormatInt(in.Depth, 10)}
}

// Brief names the folder and the pattern of the search.
func (in *SearchInput) Brief() []string { return []string{"path=" + in.Path, "pattern=" + in.Pattern} }

// Brief names the file and the content to write, and says whether other programs run or
// obey it.
func (in *WriteFileInput) Brief() []string {
	b, err := in.Bytes()
	if err != nil {
		return nil // Check has refused it
	}
	out := []string{"path=" + in.Path, "mode=" + in.Mode, "size=" + strconv.Itoa(len(b)), "digest=" + canon.Sum(b).String()}
	if in.Permissions != "" {
		out = append(out, "permissions="+in.Permissions)
	}
	if name, err := ParsePath(in.Path); err == nil {
		if kind := FlagOf(name, in.Permissions); kind != "" {
			out = append(out, "flag="+kind)
		}
	}
	return out
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
	if tool != WriteFile && tool != ApplyPatch {
		return nil
	}
	path := "" // of the argument that a flag belongs to
	for _, a := range argv[min(2, len(argv)):] {
		name, text, _ := strings.Cut(a, "=")
		switch {
		case slices.Contains([]string{"path", "create", "modify", "to"}, name):
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
	if kind == KindExecutable {
		return Flag{Path: path, Kind: kind, Why: "it can be run as a program"}
	}
	return Flag{Path: path, Kind: kind, Why: "other programs run or obey it"}
}

// Brief names the artifact and the part to read.
func (in *ArtifactReadInput) Brief() []string {
	return []string{"digest=" + in.Digest, "offset=" + strconv.FormatInt(in.Offset, 10), "limit=" + strconv.FormatInt(in.Limit, 10)}
}
