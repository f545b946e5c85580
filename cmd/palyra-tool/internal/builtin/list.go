package builtin

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/toolproto"
)

// maxNames bounds the names read from one folder.
const maxNames = 100_000

// lister lists folders.
type lister struct {
	in    *toolproto.ListDirInput
	out   *toolproto.ListDirResult
	bytes int
}

// listDir is fs.list_dir.
func listDir(t *tree.Tree, in *toolproto.ListDirInput) (any, error) {
	d, err := t.Dir(name(in.Path))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l := &lister{in: in, out: &toolproto.ListDirResult{Path: in.Path, Entries: []toolproto.Entry{}, Skipped: []toolproto.Reason{}}}
	if err := l.folder(d, 1); err != nil {
		return nil, err // not even the first one
	}
	return l.out, nil
}

// folder lists one folder, and below it while depth lasts.
func (l *lister) folder(d *tree.Dir, depth int64) error {
	names, more, err := d.Names(maxNames)
	if err != nil {
		return err
	}
	if more {
		l.out.Truncated = true
	}
	for _, base := range names {
		st, err := d.Stat(base)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			skip(&l.out.Skipped, err)
			continue
		}
		if !l.entry(d, base, st) {
			l.out.Truncated = true
			return nil
		}
		if st.Kind != tree.Directory || depth == l.in.Depth {
			continue
		}
		sub, err := d.Sub(base)
		if err == nil {
			err = l.folder(sub, depth+1)
			sub.Close()
		}
		if err != nil {
			skip(&l.out.Skipped, err)
		}
		if l.out.Truncated {
			return nil
		}
	}
	return nil
}

// entry adds one name. It reports whether there is room for another.
func (l *lister) entry(d *tree.Dir, base string, st tree.Stat) bool {
	if len(l.in.Types) > 0 && !slices.Contains(l.in.Types, string(st.Kind)) {
		return true
	}
	e := toolproto.Entry{Path: tree.Show(d.Path(base)), Type: string(st.Kind), Permissions: permissions(st),
		Modified: st.Modified.UTC().Format(time.RFC3339), SetID: st.SetID, Leftover: tree.IsLeftover(base)}
	switch st.Kind {
	case tree.File:
		e.Size = st.Size
		if st.Links > 1 {
			e.HardLinks = st.Links
		}
	case tree.Symlink:
		if target, err := d.Target(base); err == nil {
			e.Target = tree.Show(target)
		}
	}
	l.bytes += len(e.Path) + len(e.Target)
	if int64(len(l.out.Entries)) == l.in.Limit || l.bytes > maxOutput {
		return false
	}
	l.out.Entries = append(l.out.Entries, e)
	return true
}

// skip names something that was left out.
func skip(to *[]toolproto.Reason, err error) {
	if len(*to) < toolproto.MaxSkipped {
		*to = append(*to, toolproto.ReasonOf(err))
	}
}
