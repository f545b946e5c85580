package builtin

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/patch"
	"palyra/internal/toolproto"
)

func sum(b []byte) canon.Digest { return canon.Sum(b) }

// permBits returns the mode for "0644" or "0755".
func permBits(s string) fs.FileMode {
	if s == "0755" {
		return 0o755
	}
	return 0o644
}

// writeFile is fs.write_file.
func (e *Env) writeFile(t *tree.Tree, in *toolproto.WriteFileInput) (any, error) {
	b, err := in.Bytes()
	if err != nil {
		return nil, err
	}
	path := name(in.Path)
	s := newChangeset(e, t)
	defer s.close()
	c := &change{op: patch.Modify, from: path, to: path, content: b, perm: permBits(in.Permissions)}
	s.changes = []*change{c}
	if in.Mode == "create" {
		if err := s.free(path); err != nil {
			return nil, err
		}
		c.op, c.from = patch.Create, ""
	} else if err := s.load(c); errors.Is(err, fs.ErrNotExist) && s.free(path) == nil {
		c.op, c.from = patch.Create, ""
	} else if err != nil {
		return nil, err
	}
	if err := expect(in, c); err != nil {
		return nil, err
	}
	if c.op == patch.Modify {
		if in.Permissions == "" {
			c.perm = c.was.Perm
		}
		if in.Mode == "append" {
			c.content = slices.Concat(c.former, b)
		}
	}
	if len(c.content) > toolproto.MaxDigested {
		return nil, fault.New(fault.Refused, "too_large", fmt.Sprintf("write %q", path),
			fmt.Errorf("%d bytes, limit %d", len(c.content), toolproto.MaxDigested))
	}
	c.finish()
	if err := s.apply(in.Parents); err != nil {
		return nil, err
	}
	r := &toolproto.WriteFileResult{Change: c.result, Flags: flags(c)}
	return r, nil
}

// expect compares the present file with the caller's belief.
func expect(in *toolproto.WriteFileInput, c *change) error {
	if in.ExpectedDigest == "" {
		return nil
	}
	op := fmt.Sprintf("write %q", c.to)
	if c.op == patch.Create {
		return fault.New(fault.Busy, "changed", op, fmt.Errorf("there is no such file"))
	}
	if got := sum(c.former).String(); got != in.ExpectedDigest {
		return fault.New(fault.Busy, "changed", op, fmt.Errorf("holds %s", got))
	}
	return nil
}

// flags names the paths that other programs run or obey.
func flags(changes ...*change) []toolproto.Flag {
	out := []toolproto.Flag{}
	for _, c := range changes {
		if c.to == "" {
			continue
		}
		if f, ok := toolproto.Planted(c.to); ok {
			out = append(out, f)
		} else if c.perm&0o111 != 0 && (c.from == "" || c.was.Perm&0o111 == 0) {
			out = append(out, toolproto.Flag{Path: tree.Show(c.to), Kind: toolproto.KindExecutable, Why: "was not executable before"})
		}
	}
	return out
}

// applyPatch is fs.apply_patch.
func (e *Env) applyPatch(t *tree.Tree, in *toolproto.ApplyPatchInput) (any, error) {
	text, err := in.Bytes()
	if err != nil {
		return nil, err
	}
	files, err := patch.Parse(text)
	if err != nil {
		return nil, err
	}
	s := newChangeset(e, t)
	defer s.close()
	if err := s.plan(files, int(in.Offset)); err != nil {
		return nil, err
	}
	r := &toolproto.ApplyPatchResult{DryRun: in.DryRun, Changes: []toolproto.Change{}, Flags: flags(s.changes...)}
	for _, c := range s.changes {
		r.Changes = append(r.Changes, c.result)
	}
	if !in.DryRun {
		if err := s.apply(true); err != nil {
			return nil, err
		}
		r.Leftovers = s.leftovers
	}
	return r, nil
}

// maxPatched bounds the total size of a patch's files, before and after, in bytes.
const maxPatched = 128 << 20

// plan reads the patch's files and works out their new content.
func (s *changeset) plan(files []patch.File, offset int) error {
	total := 0
	for i := range files {
		f := &files[i]
		c := &change{op: f.Op, from: f.Old, to: f.New, perm: permBits(f.Mode)}
		s.changes = append(s.changes, c)
		if c.from != "" {
			if err := s.load(c); err != nil {
				return err
			}
			if f.OldMode != "" && (c.was.Perm&0o100 != 0) != (f.OldMode == "0755") {
				return fault.New(fault.Busy, "changed", fmt.Sprintf("patch %q", c.from), fmt.Errorf("its mode is not %s", f.OldMode))
			}
			if f.Mode == "" {
				c.perm = c.was.Perm
			}
		}
		if c.op == patch.Create || c.op == patch.Rename {
			if err := s.free(c.to); err != nil {
				return err
			}
		}
		var err error
		var offsets []int64
		if c.content, offsets, err = f.Apply(c.former, offset); err != nil {
			return err
		}
		if total += len(c.former) + len(c.content); total > maxPatched {
			return fault.New(fault.Refused, "too_large", "plan patch", fmt.Errorf("its files hold more than %d bytes", maxPatched))
		}
		c.result.Hunks = int64(len(f.Hunks))
		if strings.Trim(fmt.Sprint(offsets), "[0 ]") != "" {
			c.result.Offsets = offsets
		}
		c.finish()
	}
	return nil
}
