package git

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Type is the type of an object, as packs number it.
type Type byte

// The types of objects.
const (
	Commit Type = 1
	Tree   Type = 2
	Blob   Type = 3
	Tag    Type = 4
)

var typeNames = [...]string{Commit: "commit", Tree: "tree", Blob: "blob", Tag: "tag"}

// String returns git's name of the type.
func (t Type) String() string {
	if t < Commit || t > Tag {
		return "unknown"
	}
	return typeNames[t]
}

// MaxObject bounds one object, in bytes.
const MaxObject = 32 << 20

// Object is one object.
type Object struct {
	Type Type
	Data []byte
}

// ID returns the object's name.
func (o *Object) ID() (id ID) {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", o.Type, len(o.Data))
	h.Write(o.Data)
	h.Sum(id[:0])
	return id
}

// Objects reads the objects of a repository. Close it.
type Objects struct {
	folder Folder
	left   *Budget
	packs  []*pack
	loaded bool
}

// NewObjects returns the objects of a repository.
func NewObjects(f Folder, left *Budget) *Objects { return &Objects{folder: f, left: left} }

// Close closes the packs.
func (o *Objects) Close() {
	for _, p := range o.packs {
		p.close()
	}
	o.packs, o.loaded = nil, false
}

func loose(id ID) string {
	s := id.String()
	return "objects/" + s[:2] + "/" + s[2:]
}

// Has reports whether the repository has an object of its own.
func (o *Objects) Has(id ID) (bool, error) {
	if err := o.load(); err != nil {
		return false, err
	}
	for _, p := range o.packs {
		if _, ok, err := p.find(id); ok || err != nil {
			return ok, err
		}
	}
	f, err := o.folder.Open(loose(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// Read reads an object and checks its name.
func (o *Objects) Read(id ID) (*Object, error) {
	x, err := o.read(id, 0)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", id, err)
	}
	if x.ID() != id {
		return nil, fmt.Errorf("object %s: %w", id, bad("it has another name"))
	}
	return x, nil
}

func (o *Objects) read(id ID, depth int) (*Object, error) {
	if err := o.load(); err != nil {
		return nil, err
	}
	for _, p := range o.packs {
		if at, ok, err := p.find(id); err != nil {
			return nil, err
		} else if ok {
			return p.read(o, at, depth)
		}
	}
	f, err := o.folder.Open(loose(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return o.loose(f)
}

func (o *Objects) loose(f *os.File) (*Object, error) {
	b, err := o.inflate(f, o.left.each()+64)
	if err != nil {
		return nil, err
	}
	head, _, ok := bytes.Cut(b[:min(len(b), 64)], []byte{0})
	if !ok {
		return nil, bad("no header")
	}
	data := b[len(head)+1:]
	name, size, _ := strings.Cut(string(head), " ")
	if size != strconv.Itoa(len(data)) {
		return nil, bad("its header tells of %.20q bytes, it has %d", size, len(data))
	}
	i := slices.Index(typeNames[:], name)
	if i < int(Commit) {
		return nil, bad("type %.20q", name)
	}
	return &Object{Type(i), data}, nil
}

// maxPadding bounds what a zlib stream may have besides as many bytes again as it holds: what is
// read ahead, and blocks without content, of which a stream may have any number.
const maxPadding = 8 << 10

// padded reads a stream up to a bound.
type padded struct {
	r       io.Reader
	n, most int64
}

// Read implements io.Reader.
func (p *padded) Read(b []byte) (int, error) {
	if p.n > p.most {
		return 0, errors.New("a stream with blocks that hold nothing")
	}
	n, err := p.r.Read(b)
	p.n += int64(n)
	return n, err
}

// inflate reads a zlib stream of at most so many bytes.
func (o *Objects) inflate(r io.Reader, most int64) ([]byte, error) {
	p := &padded{r: r, most: 2*min(most, o.left.Left) + maxPadding}
	b, err := o.inflateAll(p, most)
	if err == nil && p.n > 2*int64(len(b))+maxPadding {
		return nil, bad("a stream with blocks that hold nothing")
	}
	return b, err
}

// inflateAll is inflate for a stream in memory.
func (o *Objects) inflateAll(r io.Reader, most int64) ([]byte, error) {
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, bad("%v", err)
	}
	defer z.Close()
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(z, min(most, o.left.Left)+1))
	if err := o.left.spend(n + 64); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, bad("%v", err)
	}
	if n > most {
		return nil, wrap(ErrTooLarge, "an object of more than %d bytes", most)
	}
	return b.Bytes(), nil
}

// CommitInfo is what counts of a commit.
type CommitInfo struct {
	Tree    ID
	Parents []ID
	Subject string // its first line of text
}

// maxParents bounds the parents of a commit.
const maxParents = 64

// ParseCommit reads a commit.
func ParseCommit(data []byte) (c CommitInfo, err error) {
	head, text, _ := bytes.Cut(data, []byte("\n\n"))
	first := true
	for line := range strings.SplitSeq(string(head), "\n") {
		key, value, _ := strings.Cut(line, " ")
		var id ID
		switch {
		case first && key == "tree":
			c.Tree, err = ParseID(value)
		case !first && key == "parent":
			if id, err = ParseID(value); len(c.Parents) == maxParents {
				err = wrap(ErrTooLarge, "a commit with more than %d parents", maxParents)
			}
			c.Parents = append(c.Parents, id)
		case !first && key == "author":
			line, _, _ := bytes.Cut(bytes.TrimLeft(text, "\n"), []byte("\n"))
			c.Subject = strings.ToValidUTF8(string(line[:min(len(line), 400)]), "\uFFFD")
			return c, nil
		default:
			err = bad("a commit with a line %.20q at its head", key)
		}
		if err != nil {
			return c, err
		}
		first = false
	}
	return c, bad("a commit without an author")
}

// ParseTag returns what a tag is for.
func ParseTag(data []byte) (of ID, t Type, err error) {
	lines := strings.SplitN(string(data[:min(len(data), 200)]), "\n", 3)
	if len(lines) < 3 || !strings.HasPrefix(lines[0], "object ") || !strings.HasPrefix(lines[1], "type ") {
		return of, 0, bad("a tag's head")
	}
	if of, err = ParseID(lines[0][len("object "):]); err != nil {
		return of, 0, err
	}
	i := slices.Index(typeNames[:], lines[1][len("type "):])
	if i < int(Commit) {
		return of, 0, bad("a tag for a %.20q", lines[1])
	}
	return of, Type(i), nil
}

// The modes of a TreeEntry.
const (
	ModeFolder = 0o40000
	ModeFile   = 0o100644
	ModeRuns   = 0o100755
	ModeLink   = 0o120000
	ModeModule = 0o160000 // a commit of another repository
)

// TreeEntry is one name of a tree.
type TreeEntry struct {
	Name string
	Mode uint32
	ID   ID
}

// ParseTree reads a tree, whose names must be such as a working tree may have.
func ParseTree(data []byte) ([]TreeEntry, error) {
	var out []TreeEntry
	seen := make(map[string]bool)
	last := ""
	for len(data) > 0 {
		mode, _, ok := bytes.Cut(data[:min(len(data), 8)], []byte(" "))
		if !ok {
			return nil, bad("a tree's entry without a mode")
		}
		rest := data[len(mode)+1:]
		m, err := strconv.ParseUint(string(mode), 8, 32)
		if err != nil || mode[0] == '0' || !okMode(uint32(m)) {
			return nil, bad("a tree with the mode %.10q", mode)
		}
		name, rest, ok := bytes.Cut(rest, []byte{0})
		if !ok || len(rest) < len(ID{}) {
			return nil, bad("a tree that ends in the middle")
		}
		e := TreeEntry{Name: string(name), Mode: uint32(m), ID: ID(rest[:20])}
		if err := CheckName(e.Name); err != nil {
			return nil, err
		}
		key := e.Name
		if e.Mode == ModeFolder {
			key += "/"
		}
		if key <= last || seen[e.Name] || e.ID.IsZero() {
			return nil, bad("a tree whose names are out of order, or one name twice")
		}
		seen[e.Name], last = true, key
		out, data = append(out, e), rest[20:]
	}
	return out, nil
}

func okMode(m uint32) bool {
	return slices.Contains([]uint32{ModeFolder, ModeFile, ModeRuns, ModeLink, ModeModule, 0o100664}, m)
}

// ignored are the runes that HFS+ overlooks in names: git's utf8.c, next_hfs_char.
const ignored = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"

// CheckName refuses a name that a tree or an index may not have: git's verify_path, on each
// system at once.
func CheckName(name string) error {
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune(ignored, r) && r != utf8.RuneError {
			return -1
		}
		return r
	}, name)
	plain, _, _ = strings.Cut(plain, ":")
	plain = strings.ToLower(strings.TrimRight(plain, " ."))
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"), len(name) > 255:
		return bad("the name %.60q in a tree", name)
	case plain == ".git", plain == "git~1", strings.HasPrefix(strings.ToLower(name), ".git\\"):
		return bad("the name %.60q in a tree: it is git's own", name)
	}
	return nil
}

// MaxPath bounds a path in a tree or an index, in bytes: Linux opens no longer one.
const MaxPath = 4095

// CheckPath is CheckName for each element of a path.
func CheckPath(path string) error {
	if len(path) > MaxPath {
		return bad("a path of %d bytes", len(path))
	}
	for e := range strings.SplitSeq(path, "/") {
		if err := CheckName(e); err != nil {
			return err
		}
	}
	return nil
}

// Refers returns the objects that an object needs. Commits of other repositories aren't.
func (o *Object) Refers() ([]ID, error) {
	switch o.Type {
	case Commit:
		c, err := ParseCommit(o.Data)
		return append(c.Parents, c.Tree), err
	case Tree:
		var out []ID
		entries, err := ParseTree(o.Data)
		for _, e := range entries {
			if e.Mode != ModeModule {
				out = append(out, e.ID)
			}
		}
		return out, err
	case Tag:
		id, _, err := ParseTag(o.Data)
		return []ID{id}, err
	}
	return nil, nil
}
