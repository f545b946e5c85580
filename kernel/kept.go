package kernel

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/internal/toolproto"
	"palyra/isolate/evidence"
	"palyra/kernel/internal/pin"
	"palyra/kernel/internal/planted"
)

// After a call with placeholders the gate reads the files that it changed in its workspace, or in
// the layer over it. A placeholder in one is a tripwire, unless the secret's use says "keep": git,
// npm and others write down what they were given, and then the files are named in the receipt and
// in an act of the journal, and that's all. In a name it's a tripwire always: no program keeps one
// there that it means to send.
//
// The private folders of a call aren't read, which go with it, nor its caches and mounts.

// The bounds of reading. What is beyond them is counted in the evidence.
const (
	keptChanges = 4096
	keptBytes   = 16 << 20 // of all files; the smallest are read first
	keptTime    = 250 * time.Millisecond
	keptText    = 8 << 10 // of paths in the evidence
	maxKeptPath = 1024    // bytes of one path in an act, and in a leak
)

// keeping is a look for what a call leaves with placeholders.
type keeping struct {
	look *planted.Look
	dir  *pin.Handle // the workspace, which is its owner's, or the layer's folder
}

// keeping begins to look for what the call leaves in dir; nil if it has no placeholders.
func (c *call) keeping(look *planted.Look, dir *pin.Handle) *keeping {
	if c.trip == nil {
		return nil
	}
	look.List(keptChanges)
	return &keeping{look, dir}
}

// readChanges reads what the call changed, and notes what has a placeholder.
func (c *call) readChanges(ctx context.Context, dead bool) {
	k := c.kept
	if k == nil {
		return
	}
	c.kept = nil
	if k.look != c.look { // the layer's
		defer k.dir.Close()
		k.look.End(dead, lookLimits(ctx))
	}
	changes, unread := k.look.Changes()
	slices.SortFunc(changes, func(a, b planted.Change) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), strings.Compare(a.Path, b.Path))
	})
	most := keptTime
	if ctx.Err() != nil {
		most = cut
	}
	until, left := time.Now().Add(most), int64(keptBytes)
	var kept, leaked []evidence.Kept
	for _, x := range changes {
		values := c.k.values(&c.who.Principal)
		path := toolproto.Escape(c.trip.look(evidence.LeakPlanted, unnamed(values, x.Path)))
		c.trip.look(evidence.LeakPlanted, x.Target)
		if !x.File || x.Size == 0 {
			continue
		}
		names, n, err := c.trip.read(k.dir, x.Path, left, until)
		if left -= n; err != nil {
			unread++
		}
		for _, name := range names {
			if f := (evidence.Kept{Name: name, Path: path}); c.trapOf(name).Keep {
				kept = append(kept, f)
			} else {
				leaked = append(leaked, f)
			}
		}
	}
	slices.SortFunc(leaked, byPath)
	for _, f := range leaked {
		c.trip.saw(evidence.Leak{Name: f.Name, Where: evidence.LeakFile, Path: cutPath(f.Path)})
	}
	c.noteKept(ctx, kept, unread)
}

var errUnread = errors.New("not read to its end")

// read returns the variables whose placeholders a file has, and how many bytes it read, n at most.
func (t *tripwire) read(dir *pin.Handle, path string, n int64, until time.Time) (names []string, read int64, err error) {
	if n <= 0 || !time.Now().Before(until) {
		return nil, 0, errUnread
	}
	h, err := pin.At(dir, path, pin.Plain)
	if err != nil {
		return nil, 0, err
	}
	defer h.Close()
	f, err := h.Open()
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	s := t.marks.Of("").Stream()
	s.Tell(func(mark string) {
		if name := strings.TrimPrefix(mark, markPrefix); !slices.Contains(names, name) {
			names = append(names, name)
		}
	})
	buf := make([]byte, min(h.Stat.Size+1, chunk))
	for {
		m, rerr := f.Read(buf[:min(int64(len(buf)), n-read+1)])
		read += int64(m)
		s.Next(buf[:m])
		switch {
		case errors.Is(rerr, io.EOF):
			s.End()
			return names, read, nil
		case rerr != nil:
			return names, read, rerr
		case read > n || !time.Now().Before(until):
			s.End()
			return names, read, errUnread
		}
	}
}

func byPath(a, b evidence.Kept) int {
	return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Name, b.Name))
}

// cutPath bounds a path for an act.
func cutPath(path string) string {
	return strings.ToValidUTF8(path[:min(len(path), maxKeptPath)], "")
}

// noteKept adds the files with placeholders to the evidence, and to the journal.
func (c *call) noteKept(ctx context.Context, kept []evidence.Kept, unread int64) {
	slices.SortFunc(kept, byPath)
	if r := c.out.Result; r != nil && r.Evidence != nil {
		e := &r.Evidence.Egress
		e.Unread = unread
		text := 0
		for i, k := range kept {
			if text += len(k.Path); i == evidence.MaxKept || text > keptText {
				e.MoreKept = int64(len(kept) - i)
				break
			}
			e.Kept = append(e.Kept, k)
		}
	}
	told := make(map[string]int)
	for _, k := range kept {
		told[k.Name]++
	}
	for _, k := range kept {
		n := told[k.Name]
		if delete(told, k.Name); n == 0 {
			continue
		}
		t := c.trapOf(k.Name)
		a := Act{Act: ActKept, Principal: c.who.Principal.ID, Subject: t.Ref, Detail: map[string]string{"call": t.call, "variable": k.Name,
			"files": strconv.Itoa(n), "path": cutPath(k.Path)}}
		if t.run != "" {
			a.Detail["run"] = t.run
		}
		// A journal that doesn't take it takes no result, and the call says so.
		_, _ = c.k.record(context.WithoutCancel(ctx), a)
	}
}

// ActKept is the act of a placeholder that a call left in files, and might. Its subject is the
// secret.
const ActKept = "secret.kept"
