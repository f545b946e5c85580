package stage

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

// Patch writes the changes as git diff would, for git apply and patch(1). upper and workspace
// are the folders that the list was read from; below precedes each name in the patch; a file that
// has changed since is an error. With binary, files that aren't text are in it, in git's own form.
// It returns what it left out.
func (l *List) Patch(ctx context.Context, w io.Writer, upper, workspace *os.File, below string, binary bool) ([]Skipped, error) {
	p := &patcher{ctx: ctx, w: w, upper: int(upper.Fd()), lower: int(workspace.Fd()), below: below, binary: binary}
	skipped := []Skipped{}
	if !l.Git.empty() {
		skipped = append(skipped, Skipped{topGit, SkipRefs})
	}
	for i := range l.Changes {
		c := &l.Changes[i]
		why, err := p.change(c)
		if err != nil {
			return nil, err
		}
		// Files make and remove the folders that they lie in.
		if why == SkipFolder && c.Kind != Mode && l.beneath(c.raw) {
			why = ""
		}
		if why != "" {
			skipped = append(skipped, Skipped{c.Path, why})
		}
	}
	return skipped, nil
}

// beneath reports whether something changed in a folder.
func (l *List) beneath(folder string) bool {
	at, _ := slices.BinarySearchFunc(l.Changes, folder+"/", func(c Change, name string) int { return strings.Compare(c.raw, name) })
	return at < len(l.Changes) && strings.HasPrefix(l.Changes[at].raw, folder+"/")
}

type patcher struct {
	ctx          context.Context
	w            io.Writer
	upper, lower int
	below        string // before each name
	binary       bool
}

// side is one side of a file in a patch; nil is none.
type side struct {
	mode string // as git has it: 100644, 100755, 120000
	text []byte
}

func (p *patcher) change(c *Change) (skip string, err error) {
	if err := p.ctx.Err(); err != nil {
		return "", fault.New(fault.Canceled, "canceled", "write patch", context.Cause(p.ctx))
	}
	if toolproto.InGit(c.raw) {
		return SkipGit, nil
	}
	old, why, err := p.side(p.lower, c.raw, c.Old)
	if err != nil {
		return "", err
	}
	now, whyNow, err := p.side(p.upper, c.raw, c.New)
	if err != nil {
		return "", err
	}
	if why == "" || why == SkipFolder && whyNow != "" { // what a file lacks says more
		why = whyNow
	}
	switch {
	case old == nil && now == nil:
		return why, nil
	case why == SkipFolder: // one side is a folder, the other goes or comes as a file
	case why != "":
		return why, nil
	}
	if old != nil && now != nil && (old.mode == "120000") != (now.mode == "120000") {
		// Another type is another file.
		if why, err = p.file(c.raw, old, nil); err == nil && why == "" {
			why, err = p.file(c.raw, nil, now)
		}
		return why, err
	}
	return p.file(c.raw, old, now)
}

// side reads one side of a change.
func (p *patcher) side(dir int, name string, n *Node) (s *side, skip string, err error) {
	switch {
	case n == nil:
		return nil, "", nil
	case n.Type == Directory:
		return nil, SkipFolder, nil
	case n.Type != File && n.Type != Symlink:
		return nil, SkipType, nil
	case n.Type == File && n.Digest.IsZero():
		return nil, SkipRead, nil
	case n.Size > MaxText:
		return nil, SkipLong, nil
	}
	changed := func(err error) error {
		return fault.New(fault.Unavailable, "changed", fmt.Sprintf("write patch at %q", name), err).
			WithHint("run it again")
	}
	parent := dir
	last := name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		f, err := sys.FolderBeneath(dir, name[:i])
		if err != nil {
			return nil, "", changed(err)
		}
		defer f.Close()
		parent, last = int(f.Fd()), name[i+1:]
	}
	if n.Type == Symlink {
		target, err := sys.LinkBeneath(parent, last)
		if err != nil {
			return nil, "", changed(err)
		}
		return &side{"120000", []byte(target)}, "", nil
	}
	f, err := sys.FileBeneath(parent, last)
	if err != nil {
		return nil, "", changed(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	if err != nil {
		return nil, "", changed(err)
	}
	if canon.Sum(text) != n.Digest {
		return nil, "", changed(errors.New("it is not the file that was listed"))
	}
	if bytes.Count(text, []byte("\n")) > maxLines && !isBinary(text) {
		return nil, SkipLong, nil
	}
	s = &side{mode: "100644", text: text}
	if len(n.Mode) == 4 && (n.Mode[1]-'0')&1 != 0 {
		s.mode = "100755"
	}
	return s, "", nil
}

// file writes the part of a patch for one file; a nil side is none.
func (p *patcher) file(name string, old, now *side) (skip string, err error) {
	var out bytes.Buffer
	oldName, newName := gitName("a/"+p.below+name), gitName("b/"+p.below+name)
	fmt.Fprintf(&out, "diff --git %s %s\n", oldName, newName)
	switch {
	case old == nil:
		fmt.Fprintf(&out, "new file mode %s\n", now.mode)
		old, oldName = &side{}, "/dev/null"
	case now == nil:
		fmt.Fprintf(&out, "deleted file mode %s\n", old.mode)
		now, newName = &side{}, "/dev/null"
	case old.mode != now.mode:
		fmt.Fprintf(&out, "old mode %s\nnew mode %s\n", old.mode, now.mode)
	}
	same := bytes.Equal(old.text, now.text)
	if same && old.mode == now.mode {
		return SkipMode, nil
	}
	switch {
	case same:
		if old.mode == "" || now.mode == "" {
			fmt.Fprintf(&out, "index %s..%s\n", blob(old), blob(now))
		}
	case isBinary(old.text) || isBinary(now.text):
		if !p.binary {
			return SkipBinary, nil
		}
		fmt.Fprintf(&out, "index %s..%s%s\nGIT binary patch\n", blob(old), blob(now), unchangedMode(old, now))
		literal(&out, now.text)
		literal(&out, old.text)
	default:
		fmt.Fprintf(&out, "index %s..%s%s\n", blob(old), blob(now), unchangedMode(old, now))
		fmt.Fprintf(&out, "--- %s\n+++ %s\n", tabbed(oldName), tabbed(newName))
		if err := unified(&out, old.text, now.text); err != nil {
			return "", err
		}
	}
	_, err = p.w.Write(out.Bytes())
	return "", err
}

func unchangedMode(old, now *side) string {
	if old.mode == now.mode {
		return " " + now.mode
	}
	return ""
}

// isBinary is git's own test.
func isBinary(text []byte) bool { return bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 }

// blob is the name that git has for content; zeros for none. It identifies, and secures
// nothing: the digests of the list do.
func blob(s *side) string {
	if s.mode == "" {
		return strings.Repeat("0", 2*sha1.Size)
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(s.text))
	h.Write(s.text)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// gitName spells a name as git does (quote.c, quote_c_style).
func gitName(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && name[i] >= ' ' && name[i] < 0x7f && name[i] != '"' && name[i] != '\\'
	}
	if plain {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		if at := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); at >= 0 {
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[at])
		} else if c < ' ' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// tabbed ends a name with spaces, which patch(1) would take for the name's end.
func tabbed(name string) string {
	if strings.Contains(name, " ") && name[0] != '"' {
		return name + "\t"
	}
	return name
}

// digits85 are the digits of git's base 85 (base85.c).
const digits85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// literal writes content as a part of git's binary patches: deflated, 52 bytes a line, each
// line behind a letter for its length.
func literal(out *bytes.Buffer, text []byte) {
	fmt.Fprintf(out, "literal %d\n", len(text))
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	z.Write(text) // to memory
	z.Close()
	for b := packed.Bytes(); len(b) > 0; {
		n := min(len(b), 52)
		if n <= 26 {
			out.WriteByte(byte('A' + n - 1))
		} else {
			out.WriteByte(byte('a' + n - 27))
		}
		for at := 0; at < n; at += 4 {
			var four [4]byte
			copy(four[:], b[at:n])
			v := binary.BigEndian.Uint32(four[:])
			var digits [5]byte
			for i := 4; i >= 0; i-- {
				digits[i] = digits85[v%85]
				v /= 85
			}
			out.Write(digits[:])
		}
		out.WriteByte('\n')
		b = b[n:]
	}
	out.WriteByte('\n')
}
