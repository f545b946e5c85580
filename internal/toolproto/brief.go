package toolproto

import (
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// Each Brief returns the arguments that palyra-tool gets behind the tool's name.
// They say what the input means in a few words, so that policy can read them and
// a person who is asked sees them; palyra-tool refuses an input that they do not
// belong to. Paths are spelled as in the input.

// Brief says how long.
func (in *SleepInput) Brief() []string { return []string{"ms=" + strconv.FormatInt(in.MS, 10)} }

// Brief says what is read.
func (in *ReadFileInput) Brief() []string { return []string{"path=" + in.Path} }

// Brief says what is listed.
func (in *ListDirInput) Brief() []string {
	return []string{"path=" + in.Path, "depth=" + strconv.FormatInt(in.Depth, 10)}
}

// Brief says where what is looked for.
func (in *SearchInput) Brief() []string { return []string{"path=" + in.Path, "pattern=" + in.Pattern} }

// Brief says what is written where, and whether other programs run or obey it.
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
		if f, ok := Planted(name); ok {
			out = append(out, "flag="+f.Kind)
		}
	}
	return out
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
		case slices.Contains([]string{"path", "create", "modify", "rename"}, name):
			path = text
		case name == "flag":
			out = append(out, flagged(path, text))
		}
	}
	return out
}

// flagged finds the reason for a flag. Of a renamed file the new name counts,
// which is behind one of the arrows in it.
func flagged(path, kind string) Flag {
	for rest := path; ; {
		if name, err := Unescape(rest); err == nil {
			if f, ok := Planted(name); ok && f.Kind == kind {
				return Flag{Path: path, Kind: kind, Why: f.Why}
			}
		}
		_, after, more := strings.Cut(rest, " -> ")
		if !more {
			return Flag{Path: path, Kind: kind, Why: "other programs run or obey it"}
		}
		rest = after
	}
}

// Brief says which part of what is read.
func (in *ArtifactReadInput) Brief() []string {
	return []string{"digest=" + in.Digest, "offset=" + strconv.FormatInt(in.Offset, 10), "limit=" + strconv.FormatInt(in.Limit, 10)}
}
