package patch

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Parse reads a patch. Its errors are of kind fault.Usage and have the reason
// invalid_input or too_large; they name the line and quote names only.
func Parse(data []byte) ([]File, error) {
	if len(data) == 0 {
		return nil, broken(1, "is empty")
	}
	r := &reader{rest: data}
	var files []File
	for !r.done() {
		if len(files) == MaxFiles {
			return nil, fault.New(fault.Usage, "too_large", "read patch", fmt.Errorf("more than %d files", MaxFiles))
		}
		f, err := r.file()
		if err != nil {
			return nil, err
		}
		files = append(files, *f)
	}
	if err := names(files); err != nil {
		return nil, err
	}
	return files, nil
}

// reader takes a patch apart by lines.
type reader struct {
	rest []byte
	line int // that was read last; from 1
}

func (r *reader) done() bool { return len(r.rest) == 0 }

// peek returns the next line without its line feed.
func (r *reader) peek() string {
	l, _, _ := bytes.Cut(r.rest, []byte("\n"))
	return string(l)
}

// next reads a line, with its line feed.
func (r *reader) next() []byte {
	n := bytes.IndexByte(r.rest, '\n') + 1
	if n == 0 {
		n = len(r.rest)
	}
	l := r.rest[:n]
	r.rest, r.line = r.rest[n:], r.line+1
	return l
}

// header reads the next line if it begins with prefix, and returns what follows.
func (r *reader) header(prefix string) (string, bool) {
	if r.done() {
		return "", false
	}
	rest, ok := strings.CutPrefix(r.peek(), prefix)
	if ok {
		r.next()
	}
	return rest, ok
}

const (
	devNull = "/dev/null"
	gitLine = "diff --git "
)

// file reads the patch of one file. Old and New are the names as they stand
// there, prefixes included; names settles them.
func (r *reader) file() (*File, error) {
	f := &File{Op: Modify, Line: r.line + 1}
	if rest, ok := r.header(gitLine); ok {
		f.git = true
		if err := r.extended(f, rest); err != nil {
			return nil, err
		}
	}
	old, ok := r.header("--- ")
	if !ok {
		if f.git && f.alone() {
			return f, nil
		}
		return nil, broken(r.line+1, "want a line that begins with --- and names a file")
	}
	at := r.line
	neu, ok := r.header("+++ ")
	if !ok {
		return nil, broken(r.line+1, "want a line that begins with +++ and names a file")
	}
	if err := r.sides(f, old, neu, at); err != nil {
		return nil, err
	}
	for !r.done() && strings.HasPrefix(r.peek(), "@@ ") {
		if len(f.Hunks) == MaxHunks {
			return nil, fault.New(fault.Usage, "too_large", fmt.Sprintf("read patch, line %d", r.line+1), fmt.Errorf("more than %d hunks", MaxHunks))
		}
		h, err := r.hunk()
		if err != nil {
			return nil, err
		}
		if n := len(f.Hunks); n > 0 {
			p := &f.Hunks[n-1]
			if wanted(h.OldStart, h.OldLines) < wanted(p.OldStart, p.OldLines)+p.OldLines {
				return nil, broken(h.At, "the hunk overlaps the one before it, or stands before it")
			}
		}
		f.Hunks = append(f.Hunks, *h)
	}
	switch {
	case len(f.Hunks) == 0:
		return nil, broken(r.line+1, "want a hunk, which begins with @@")
	case f.Op == Create && (len(f.Hunks) > 1 || f.Hunks[0].OldLines > 0 || f.Hunks[0].OldStart > 0):
		return nil, broken(f.Hunks[0].At, "a created file has nothing that a hunk could change")
	case f.Op == Delete && (len(f.Hunks) > 1 || f.Hunks[0].NewLines > 0 || f.Hunks[0].NewStart > 0):
		return nil, broken(f.Hunks[0].At, "a deleted file has nothing left")
	}
	return f, nil
}

// alone reports whether git prints a file like this without hunks.
func (f *File) alone() bool {
	return f.Op == Create || f.Op == Delete || f.Op == Rename || f.Op == Modify && f.Mode != ""
}

// sides takes the two names.
func (r *reader) sides(f *File, old, neu string, line int) error {
	oldName, err := readName(old)
	if err != nil {
		return broken(line, "%v", err)
	}
	newName, err := readName(neu)
	if err != nil {
		return broken(line+1, "%v", err)
	}
	if f.git {
		// git repeats the names in these lines.
		if want := orNull(f.Old, f.Op == Create); oldName != want {
			return broken(line, "names %q, and the lines before name %q", clip(oldName), clip(want))
		}
		if want := orNull(f.New, f.Op == Delete); newName != want {
			return broken(line+1, "names %q, and the lines before name %q", clip(newName), clip(want))
		}
		return nil
	}
	f.Old, f.New = oldName, newName
	switch {
	case oldName == devNull && newName == devNull:
		return broken(line, "both names are %s", devNull)
	case oldName == devNull:
		f.Op, f.Old = Create, ""
	case newName == devNull:
		f.Op, f.New = Delete, ""
	}
	return nil
}

func orNull(name string, null bool) string {
	if null {
		return devNull
	}
	return name
}

// extended reads what git prints between its first line and the names.
func (r *reader) extended(f *File, rest string) error {
	old, neu, err := gitNames(rest)
	if err != nil {
		return broken(r.line, "%v", err)
	}
	f.Old, f.New = old, neu
	var from, to string
	seen := make(map[string]bool)
	for !r.done() {
		line := r.peek()
		key := extendedKey(line)
		if key == "" {
			break
		}
		r.next()
		if seen[key] {
			return broken(r.line, "says %q twice", strings.TrimSpace(key))
		}
		seen[key] = true
		value := line[len(key):]
		switch key {
		case "old mode ", "new mode ", "new file mode ", "deleted file mode ":
			mode, err := readMode(value)
			if err != nil {
				return fault.New(fault.Usage, "invalid_input", fmt.Sprintf("read patch, line %d", r.line), err)
			}
			switch key {
			case "old mode ":
				f.OldMode = mode
			case "new mode ":
				f.Mode = mode
			case "new file mode ":
				f.Op, f.Mode = Create, mode
			case "deleted file mode ":
				f.Op, f.OldMode = Delete, mode
			}
		case "rename from ":
			from = value
		case "rename to ":
			to = value
		case "similarity index ", "dissimilarity index ":
			if n, ok := strings.CutSuffix(value, "%"); !ok || !number(n) {
				return broken(r.line, "want a percentage")
			}
		case "index ":
			if !indexLine(value) {
				return broken(r.line, "want two object names and perhaps a mode")
			}
		default: // copies and binary patches
			return fault.New(fault.Usage, "invalid_input", fmt.Sprintf("read patch, line %d", r.line),
				fmt.Errorf("%q is not something that can be applied here", strings.TrimSpace(key)))
		}
	}
	if (from == "") != (to == "") {
		return broken(r.line, "a rename needs both names")
	}
	created, deleted, modes := seen["new file mode "], seen["deleted file mode "], seen["old mode "] || seen["new mode "]
	switch {
	case from == "" && old[len("a/"):] != neu[len("b/"):]:
		return broken(f.Line, "the two names are of different files, and no rename is announced")
	case seen["old mode "] != seen["new mode "]:
		return broken(r.line, "a change of mode needs both modes")
	case created && (deleted || modes || from != ""), deleted && (modes || from != ""):
		return broken(r.line, "the lines contradict each other")
	case created:
		f.Old = ""
	case deleted:
		f.New = ""
	case from != "":
		f.Op = Rename
		fromName, err1 := readName(from)
		toName, err2 := readName(to)
		if err := errors.Join(err1, err2); err != nil {
			return broken(r.line, "%v", err)
		}
		if f.Old != "a/"+fromName || f.New != "b/"+toName {
			return broken(r.line, "the rename names other files than the first line")
		}
	}
	return nil
}

// extendedKey returns which extended header a line is, "" if it is none.
func extendedKey(line string) string {
	for _, key := range []string{"old mode ", "new mode ", "new file mode ", "deleted file mode ", "rename from ", "rename to ",
		"similarity index ", "dissimilarity index ", "index ", "copy from ", "copy to ", "GIT binary patch", "Binary files "} {
		if strings.HasPrefix(line, key) {
			return key
		}
	}
	return ""
}

// readMode takes git's mode of a regular file.
func readMode(s string) (string, error) {
	switch s {
	case "100644":
		return "0644", nil
	case "100755":
		return "0755", nil
	}
	return "", fmt.Errorf("mode %q: only regular files, 100644 and 100755", clip(s))
}

func number(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

func indexLine(s string) bool {
	objects, mode, ok := strings.Cut(s, " ")
	if ok {
		if _, err := readMode(mode); err != nil {
			return false
		}
	}
	a, b, ok := strings.Cut(objects, "..")
	return ok && hexName(a) && hexName(b)
}

func hexName(s string) bool {
	return len(s) >= 4 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// hunk reads one hunk with exactly the lines that it announces.
func (r *reader) hunk() (*Hunk, error) {
	text := strings.TrimSuffix(string(r.next()), "\n")
	h, err := hunkHeader(text)
	if err != nil {
		return nil, broken(r.line, "%v", err)
	}
	h.At = r.line
	if h.OldLines+h.NewLines > len(r.rest) {
		return nil, broken(r.line, "announces more lines than the patch has")
	}
	old, neu := h.OldLines, h.NewLines
	oldEnd, newEnd := false, false // that side's last line had no line feed
	for old > 0 || neu > 0 {
		if r.done() {
			return nil, broken(r.line, "the hunk that begins at line %d lacks lines", h.At)
		}
		l := r.next()
		op := l[0]
		needOld, needNew := op != '+', op != '-'
		switch {
		case op != ' ' && op != '-' && op != '+':
			return nil, broken(r.line, "a line of a hunk begins with a space, - or +; the hunk at line %d lacks %d old and %d new lines", h.At, old, neu)
		case needOld && old == 0 || needNew && neu == 0:
			return nil, broken(r.line, "one line more than the hunk at line %d announces", h.At)
		case needOld && oldEnd || needNew && newEnd:
			return nil, broken(r.line, "follows a line that has no line feed")
		case l[len(l)-1] != '\n':
			return nil, broken(r.line, "the patch ends in the middle of a line")
		}
		line := Line{Op: op, Text: l[1:]}
		if !r.done() && strings.HasPrefix(r.peek(), `\ `) {
			r.next()
			line.Text = line.Text[:len(line.Text)-1]
			oldEnd, newEnd = oldEnd || needOld, newEnd || needNew
			if len(line.Text) == 0 {
				return nil, broken(r.line, "an empty line without a line feed is no line")
			}
		}
		if needOld {
			old--
		}
		if needNew {
			neu--
		}
		h.Lines = append(h.Lines, line)
	}
	if !hasChange(h) {
		return nil, broken(h.At, "the hunk changes nothing")
	}
	return h, nil
}

func hasChange(h *Hunk) bool {
	for _, l := range h.Lines {
		if l.Op != ' ' {
			return true
		}
	}
	return false
}

func hunkHeader(text string) (*Hunk, error) {
	bad := errors.New("want @@ -start,count +start,count @@")
	ranges, _, ok := strings.Cut(strings.TrimPrefix(text, "@@ -"), " @@")
	if !ok || !strings.HasPrefix(text, "@@ -") {
		return nil, bad
	}
	a, b, ok := strings.Cut(ranges, " +")
	if !ok {
		return nil, bad
	}
	h := &Hunk{}
	var err1, err2 error
	h.OldStart, h.OldLines, err1 = lineRange(a)
	h.NewStart, h.NewLines, err2 = lineRange(b)
	if err1 != nil || err2 != nil || h.OldLines+h.NewLines == 0 {
		return nil, bad
	}
	return h, nil
}

// lineRange reads "start" or "start,count".
func lineRange(s string) (start, count int, err error) {
	a, b, two := strings.Cut(s, ",")
	if !two {
		b = "1"
	}
	for _, t := range []string{a, b} {
		if !number(t) || len(t) > 1 && t[0] == '0' {
			return 0, 0, errors.New("no number")
		}
	}
	start, _ = strconv.Atoi(a)
	count, _ = strconv.Atoi(b)
	if start == 0 && count > 0 {
		return 0, 0, errors.New("lines are counted from 1")
	}
	return start, count, nil
}

// names settles the paths of all files: see the package comment for prefixes.
func names(files []File) error {
	strip, keep, open := false, false, true
	for i := range files {
		f := &files[i]
		switch {
		case f.git:
			strip = true
		case f.Op == Modify && f.Old == f.New:
			keep = true
		case f.Op == Modify && strings.HasPrefix(f.Old, "a/") && strings.HasPrefix(f.New, "b/") && f.Old[2:] == f.New[2:]:
			strip = true
		case f.Op == Modify:
			return pathError(f, errors.New("the two names are of different files; a rename needs git's lines for it"))
		case f.Op == Create:
			open = open && strings.HasPrefix(f.New, "b/")
		case f.Op == Delete:
			open = open && strings.HasPrefix(f.Old, "a/")
		}
	}
	if strip && keep {
		return fault.New(fault.Usage, "invalid_input", "read patch", errors.New("some names have the prefixes a/ and b/, others do not"))
	}
	strip = strip || !keep && open
	seen := make(map[string]bool)
	for i := range files {
		f := &files[i]
		for _, n := range []struct {
			name   *string
			prefix string
		}{{&f.Old, "a/"}, {&f.New, "b/"}} {
			if *n.name == "" {
				continue
			}
			if strip {
				cut, ok := strings.CutPrefix(*n.name, n.prefix)
				if !ok {
					return pathError(f, fmt.Errorf("a name lacks the prefix %s that others have", n.prefix))
				}
				*n.name = cut
			}
			if err := toolproto.CheckPath(*n.name); err != nil || *n.name == "." {
				return pathError(f, fmt.Errorf("%q: not a plain path below the workspace: %v", clip(*n.name), err))
			}
		}
		for _, name := range distinct(f.Old, f.New) {
			if seen[name] {
				return pathError(f, errors.New("the patch names it twice"))
			}
			seen[name] = true
		}
	}
	return inside(files, seen)
}

func distinct(a, b string) []string {
	switch {
	case a == b || b == "":
		return []string{a}
	case a == "":
		return []string{b}
	}
	return []string{a, b}
}

// inside refuses a path that would have to be a file and a folder.
func inside(files []File, seen map[string]bool) error {
	for i := range files {
		name := files[i].New
		for at := strings.LastIndexByte(name, '/'); at > 0; at = strings.LastIndexByte(name[:at], '/') {
			if seen[name[:at]] {
				return pathError(&files[i], errors.New("another file of the patch stands in its way"))
			}
		}
	}
	return nil
}

func pathError(f *File, err error) error {
	return fault.New(fault.Usage, "invalid_input", fmt.Sprintf("read patch, line %d, names of %q", f.Line, clip(f.Path())), err)
}

func clip(s string) string {
	if len(s) > 128 {
		return s[:128] + "..."
	}
	return s
}
