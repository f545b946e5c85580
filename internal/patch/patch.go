// Package patch reads unified diffs and applies them, exactly or not at all.
//
// # What is read
//
// The output of git diff (without binary patches and copies) and of diff -u, of
// any number of files, and nothing else: no text before, between or after them.
//
//	patch   = file { file }
//	file    = [ "diff --git " a/NAME b/NAME { extended } ] [ "--- " NAME  "+++ " NAME { hunk } ]
//	extended = "old mode " | "new mode " | "new file mode " | "deleted file mode "   followed by 100644 or 100755
//	         | "rename from " NAME | "rename to " NAME
//	         | "similarity index " N "%" | "dissimilarity index " N "%" | "index " HEX ".." HEX [ " " MODE ]
//	hunk    = "@@ -" START [ "," COUNT ] " +" START [ "," COUNT ] " @@" [ text ] { line }
//	line    = ( " " | "-" | "+" ) text | "\ No newline at end of file"
//
// A NAME is plain, up to a tab (diff -u puts a time behind it), or quoted as git quotes it.
// If the names of a file differ only in that they begin with a/ and b/, that is cut off,
// and then it has to be so for the whole patch; a patch of created and deleted files only
// is taken to have it if each name does. A hunk has exactly the lines that it announces.
// Lines end with a line feed; everything before it, a carriage return too, is content.
//
// # How it is applied
//
// Every context and removed line must be in the file, byte for byte, at the place that the
// hunk names. A caller may let [File.Apply] look some lines further up and down; it then
// insists on a single match. It never leaves context out (there is no fuzz), so a patch
// that applies changes the lines that its author saw.
//
// The package doesn't protect against a patch that does what it says.
package patch

import (
	"fmt"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Op is the change of a file. The zero Op is none.
type Op int

// The ways in which a patch can change a file.
const (
	None   Op = iota
	Modify    // its content, its mode or both
	Create    // it must not exist
	Delete    // it must hold exactly what the patch removes
	Rename    // Old to New, which must not exist; its content may change too
)

// String returns the op's name as results spell it.
func (o Op) String() string {
	return [...]string{"none", "modified", "created", "deleted", "renamed"}[o]
}

// Bounds of a patch.
const (
	MaxFiles = 500
	MaxHunks = 5000 // of one file
)

// File is the patch of one file.
type File struct {
	Op   Op
	Old  string // path, unescaped; "" if created
	New  string // path, unescaped; "" if deleted
	Mode string // "0644" or "0755" if the patch sets it, else ""
	// OldMode is the mode that the patch says the file has; "" if it does not say.
	OldMode string

	Hunks []Hunk
	Line  int // of the patch, where the file begins; from 1

	git bool // begins with git's line
}

// Path returns the path that the file has afterwards, or had before it is deleted.
func (f *File) Path() string {
	if f.New == "" {
		return f.Old
	}
	return f.New
}

// Hunk is one place where a file changes.
type Hunk struct {
	OldStart, OldLines int
	NewStart, NewLines int
	Lines              []Line
	At                 int // line of the patch; from 1
}

// Line is a line of a hunk.
type Line struct {
	Op   byte   // ' ', '-' or '+'
	Text []byte // with its line feed, if it has one
}

// broken returns an error of the patch's text.
func broken(line int, format string, a ...any) error {
	return fault.New(fault.Usage, "invalid_input", fmt.Sprintf("read patch, line %d", line), fmt.Errorf(format, a...))
}

// mismatch returns an error of a patch that does not fit the file.
func mismatch(f *File, h *Hunk, format string, a ...any) error {
	op := fmt.Sprintf("patch %q", f.Path())
	if h != nil {
		op += fmt.Sprintf(", hunk at line %d of the patch", h.At)
	}
	return fault.New(fault.Busy, "changed", op, fmt.Errorf(format, a...))
}

// Apply returns the content of the file afterwards, and each hunk's distance in lines from
// its stated place. offset bounds that distance; a hunk without context and removed lines
// never moves. old isn't changed. Its errors are of kind fault.Busy and have the reason changed.
func (f *File) Apply(old []byte, offset int) (content []byte, offsets []int64, err error) {
	was := split(old)
	if f.Op == Create && len(was) > 0 {
		return nil, nil, mismatch(f, nil, "the file is not empty")
	}
	out := make([]byte, 0, len(old)+1024)
	next, delta := 0, 0 // line of was to go on with; lines added so far
	for i := range f.Hunks {
		h := &f.Hunks[i]
		// Without an offset the numbers of the other side have to add up too.
		if start := wanted(h.NewStart, h.NewLines); offset == 0 && start != wanted(h.OldStart, h.OldLines)+delta {
			return nil, nil, mismatch(f, h, "begins at line %d afterwards, and with the hunks before it that is line %d",
				start+1, wanted(h.OldStart, h.OldLines)+delta+1)
		}
		at, err := f.place(h, was, next, offset)
		if err != nil {
			return nil, nil, err
		}
		offsets = append(offsets, int64(at-wanted(h.OldStart, h.OldLines)))
		for _, l := range was[next:at] {
			if out, err = f.add(out, l, h); err != nil {
				return nil, nil, err
			}
		}
		for _, l := range h.Lines {
			if l.Op != '-' {
				if out, err = f.add(out, l.Text, h); err != nil {
					return nil, nil, err
				}
			}
		}
		next = at + h.OldLines
		delta += h.NewLines - h.OldLines
	}
	for _, l := range was[next:] {
		if out, err = f.add(out, l, nil); err != nil {
			return nil, nil, err
		}
	}
	if f.Op == Delete && len(out) > 0 {
		return nil, nil, mismatch(f, nil, "the file holds more than the patch removes")
	}
	return out, offsets, nil
}

// add appends a line, unless the one before it has no line feed.
func (f *File) add(out, line []byte, h *Hunk) ([]byte, error) {
	if n := len(out); n > 0 && out[n-1] != '\n' {
		return nil, mismatch(f, h, "a line without a line feed would not be the last")
	}
	return append(out, line...), nil
}

// wanted returns the line, from 0, that a start and a count in a hunk's header mean:
// without lines the start names the line before.
func wanted(start, count int) int {
	if count == 0 {
		return start
	}
	return start - 1
}

// place returns the line, from 0, at which the lines of a hunk stand.
func (f *File) place(h *Hunk, was [][]byte, from, offset int) (int, error) {
	if h.OldLines == 0 {
		offset = 0
	}
	want, found := wanted(h.OldStart, h.OldLines), -1
	for at := max(want-offset, from); at <= min(want+offset, len(was)-h.OldLines); at++ {
		if !h.stands(was, at) {
			continue
		}
		if found >= 0 {
			return 0, mismatch(f, h, "its lines stand at line %d and at line %d", found+1, at+1)
		}
		found = at
	}
	if found < 0 {
		return 0, mismatch(f, h, "%s", h.why(was, from, want))
	}
	return found, nil
}

// stands reports whether the hunk's context and removed lines are at a line.
func (h *Hunk) stands(was [][]byte, at int) bool {
	for _, l := range h.Lines {
		if l.Op == '+' {
			continue
		}
		if string(was[at]) != string(l.Text) {
			return false
		}
		at++
	}
	return true
}

// why says where a hunk and the file first differ, without quoting either.
func (h *Hunk) why(was [][]byte, from, want int) string {
	switch {
	case want < from:
		return "overlaps the hunk before it"
	case want > len(was):
		return fmt.Sprintf("begins at line %d, and the file has %d", want+1, len(was))
	}
	at := want
	for i, l := range h.Lines {
		if l.Op == '+' {
			continue
		}
		if at >= len(was) || string(was[at]) != string(l.Text) {
			return fmt.Sprintf("line %d of the file is not as line %d of the hunk has it", at+1, i+1)
		}
		at++
	}
	return "does not fit"
}

// split returns the lines of b, each with its line feed if it has one.
func split(b []byte) [][]byte {
	var out [][]byte
	for len(b) > 0 {
		n := len(b)
		for i, c := range b {
			if c == '\n' {
				n = i + 1
				break
			}
		}
		out = append(out, b[:n])
		b = b[n:]
	}
	return out
}

// Brief returns the arguments that name every file of a patch, for policy and for the
// person who decides without reading it: "modify=PATH", "create=PATH", "delete=PATH", or
// "rename=OLD" and "to=NEW", paths spelled as package toolproto spells them. Behind each
// stand "permissions=MODE" if the patch sets them and "flag=KIND" if other programs run or
// obey the file, or it may become a program. A name is the whole rest of its argument, so
// none can be mistaken for two names or for something else. Brief leaves nothing out: a
// patch whose arguments take more than MaxBrief bytes is fault.Usage "too_large".
func Brief(files []File) ([]string, error) {
	var out []string
	size := 0
	add := func(s string) {
		out = append(out, s)
		size += len(s) + len(`"" `)
	}
	for i := range files {
		f := &files[i]
		switch f.Op {
		case Create:
			add("create=" + toolproto.Escape(f.New))
		case Delete:
			add("delete=" + toolproto.Escape(f.Old))
		case Rename:
			add("rename=" + toolproto.Escape(f.Old))
			add("to=" + toolproto.Escape(f.New))
		default:
			add("modify=" + toolproto.Escape(f.New))
		}
		if f.Mode != "" {
			add("permissions=" + f.Mode)
		}
		if kind := toolproto.FlagOf(f.Path(), f.Mode); kind != "" && f.Op != Delete {
			add("flag=" + kind)
		}
	}
	if size > MaxBrief {
		return nil, fault.New(fault.Usage, "too_large", "name the files of the patch",
			fmt.Errorf("the names of %d files take %d bytes, at most %d can be shown to who decides", len(files), size, MaxBrief)).
			WithHint("split the patch, and propose each part by itself")
	}
	return out, nil
}

// MaxBrief bounds the arguments of Brief in bytes, quotes and spaces included: a
// person is shown all of them.
const MaxBrief = 64 << 10
