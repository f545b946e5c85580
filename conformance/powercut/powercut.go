// Package powercut cuts the power of a simulated disk at every point of a
// recorded workload.
//
// strace records a process's changes of a directory: every write with its bytes, every
// rename, unlink, mkdir and truncate, every fsync and fdatasync, across its threads. [Disk]
// replays that up to a point and tells data that a flush has made durable from data in
// memory; [Disk.Cut] writes a directory as the power failure may leave it. The journal is
// then opened from that directory and held to everything that the process had acknowledged
// before that point.
//
// The disk is as bad as POSIX lets it be, short of lying:
//
//   - fsync of a file makes its content and size durable, and not its name; fsync of a
//     directory its names. A flush covers the calls that had returned when it began.
//   - Unflushed writes may be lost, kept, or kept in any of their sectors of 512
//     bytes, later ones without earlier ones; a file that grew may have its
//     new size, with zeros, without its data.
//   - Unflushed changes of a directory are kept from the first to any one of
//     them, each directory for itself, whatever became of the files' content. A
//     rename is done or not done.
//
// The package doesn't protect against a disk that acknowledges a flush which it didn't do,
// a file system that corrupts flushed data, and orders of system calls that the recorded
// run didn't have.
package powercut

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Op is one thing that a process did.
type Op struct {
	Kind   string // write, truncate, create, mkdir, rename, unlink, sync, say
	Path   string // what it was done to
	To     string // rename: the new name
	Data   []byte // write, say
	Off    int64  // write: where; -1 at the end. truncate: the size
	Began  int    // how many Ops had ended when this one began
	Number int    // of this Op
}

// Disk is a directory as the running process sees it, and the durable part of it.
type Disk struct {
	root *node
}

// node is a file or a directory.
type node struct {
	dir      bool
	data     []byte // durable content
	writes   []Op   // since then: write, truncate
	names    map[string]*node
	changes  []change         // since names was durable
	volatile map[string]*node // what the process sees
}

// change is one of a directory: a name that leads to a node, or to none.
type change struct {
	number int
	sets   map[string]*node // nil: removed
}

func newDir() *node {
	return &node{dir: true, names: make(map[string]*node), volatile: make(map[string]*node)}
}

// Load returns a Disk with the content of a directory, all of it durable.
func Load(dir string) (*Disk, error) {
	root, err := load(dir)
	return &Disk{root}, err
}

func load(path string) (*node, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		b, err := os.ReadFile(path)
		return &node{data: b}, err
	}
	n := newDir()
	es, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range es {
		c, err := load(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		n.names[e.Name()], n.volatile[e.Name()] = c, c
	}
	return n, nil
}

// find returns the node of a path as the process sees it, nil if there is none.
func (d *Disk) find(path string) *node {
	n := d.root
	for _, name := range strings.Split(path, "/") {
		if name == "." || name == "" {
			continue
		}
		if n == nil || !n.dir {
			return nil
		}
		n = n.volatile[name]
	}
	return n
}

// Do applies an Op. Paths are relative to the directory.
func (d *Disk) Do(op Op) error {
	bad := func() error {
		return fmt.Errorf("op %d: %s %q: no such file on the simulated disk", op.Number, op.Kind, op.Path)
	}
	parent, base := d.find(filepath.Dir(op.Path)), filepath.Base(op.Path)
	set := func(dir *node, names map[string]*node) {
		for name, n := range names {
			if n == nil {
				delete(dir.volatile, name)
			} else {
				dir.volatile[name] = n
			}
		}
		dir.changes = append(dir.changes, change{op.Number, names})
	}
	switch op.Kind {
	case "say":
		return nil
	case "write", "truncate":
		n := d.find(op.Path)
		if n == nil {
			return bad()
		}
		if op.Off < 0 {
			op.Off = int64(len(n.content(all)))
		}
		n.writes = append(n.writes, op)
		return nil
	case "sync":
		n := d.find(op.Path)
		if n == nil {
			return bad()
		}
		n.flush(op.Began)
		return nil
	}
	if parent == nil || !parent.dir {
		return bad()
	}
	switch op.Kind {
	case "create":
		if parent.volatile[base] == nil {
			set(parent, map[string]*node{base: {}})
		}
	case "mkdir":
		set(parent, map[string]*node{base: newDir()})
	case "unlink":
		if parent.volatile[base] == nil {
			return bad()
		}
		set(parent, map[string]*node{base: nil})
	case "rename":
		n, to := parent.volatile[base], filepath.Base(op.To)
		if n == nil || filepath.Dir(op.To) != filepath.Dir(op.Path) {
			return bad() // the journal renames within a directory only
		}
		set(parent, map[string]*node{base: nil, to: n})
	default:
		return fmt.Errorf("op %d: kind %q", op.Number, op.Kind)
	}
	return nil
}

// flush makes everything done before the Op with this number durable.
func (n *node) flush(before int) {
	if n.dir {
		i := 0
		for i < len(n.changes) && n.changes[i].number < before {
			i++
		}
		n.names = apply(n.names, n.changes[:i])
		n.changes = n.changes[i:]
		return
	}
	i := 0
	for i < len(n.writes) && n.writes[i].Number < before {
		i++
	}
	n.data = (&node{data: n.data, writes: n.writes[:i]}).content(all)
	n.writes = n.writes[i:]
}

func apply(names map[string]*node, changes []change) map[string]*node {
	out := maps.Clone(names)
	for _, c := range changes {
		for name, n := range c.sets {
			if n == nil {
				delete(out, name)
			} else {
				out[name] = n
			}
		}
	}
	return out
}

// Loss says what becomes of unflushed changes.
type Loss struct {
	Name  string
	names func(n int) int            // how many of n changes of a directory are kept
	data  func() bool                // whether a sector of a write is kept
	grows func(from, to int64) int64 // what a file's new size is
}

func all(int64) bool { return true }

// Losses are the ways in which Cut is done: nothing, all, names without data,
// and n at random.
func Losses(rng *rand.Rand, n int) []Loss {
	keep := func(from, to int64) int64 { return from }
	grow := func(from, to int64) int64 { return to }
	no, yes := func() bool { return false }, func() bool { return true }
	none, every := func(int) int { return 0 }, func(n int) int { return n }
	out := []Loss{
		{"what was not flushed is lost", none, no, keep},
		{"nothing is lost", every, yes, grow},
		{"names without data", every, no, keep},
		{"names and sizes without data", every, no, grow},
		{"data without names", none, yes, grow},
	}
	for i := range n {
		chance := rng.Float64()
		out = append(out, Loss{fmt.Sprint("at random ", i), func(n int) int { return rng.IntN(n + 1) },
			func() bool { return rng.Float64() < chance },
			func(from, to int64) int64 {
				switch rng.IntN(3) {
				case 0:
					return from
				case 1:
					return to
				}
				return min(to, (from+rng.Int64N(to-from+1)+511)/512*512)
			}})
	}
	return out
}

const sector = 512

// content returns a file's content with those sectors of its writes that keep
// allows. Its size is that of the process's view.
func (n *node) content(keep func(off int64) bool) []byte {
	b := slices.Clone(n.data)
	for _, w := range n.writes {
		if w.Kind == "truncate" {
			b = resize(b, w.Off)
			continue
		}
		if end := w.Off + int64(len(w.Data)); end > int64(len(b)) {
			b = resize(b, end)
		}
		for at := w.Off; at < w.Off+int64(len(w.Data)); {
			next := min(at/sector*sector+sector, w.Off+int64(len(w.Data)))
			if keep(at) {
				copy(b[at:next], w.Data[at-w.Off:next-w.Off])
			}
			at = next
		}
	}
	return b
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

// after is a file's content after a power failure.
func (n *node) after(l Loss) []byte {
	b := n.content(func(int64) bool { return l.data() })
	if len(b) > len(n.data) {
		return resize(b, l.grows(int64(len(n.data)), int64(len(b))))
	}
	return b
}

// Cut writes the state after a power failure into dir, which must not exist, and returns a
// digest of it.
func (d *Disk) Cut(dir string, l Loss) (sum [32]byte, err error) {
	h := sha256.New()
	err = d.root.write(dir, l, h)
	return [32]byte(h.Sum(nil)), err
}

func (n *node) write(path string, l Loss, h io.Writer) error {
	if !n.dir {
		b := n.after(l)
		fmt.Fprintf(h, "%q %d ", filepath.Base(path), len(b))
		_, _ = h.Write(b) // a hash takes everything
		return os.WriteFile(path, b, 0o600)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	fmt.Fprintf(h, "%q/ ", filepath.Base(path))
	names := apply(n.names, n.changes[:l.names(len(n.changes))])
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := names[name].write(filepath.Join(path, name), l, h); err != nil {
			return err
		}
	}
	return nil
}
