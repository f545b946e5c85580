package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
)

// view is where the program sees its workspace at tier C.
const view = "/workspace"

// openPlace opens the workspace and the caller's directory and settles where
// the program starts. state is the state directory.
func openPlace(p *Proposal, state string) (_ *place, err error) {
	pl := &place{view: view}
	defer func() {
		if err != nil {
			pl.close()
		}
	}()
	if p.Workspace != "" {
		if pl.workspace, err = openWorkspace(p.Workspace, p.WorkspaceReadOnly, state); err != nil {
			return nil, err
		}
		if p.TierFloor == tier.B {
			pl.view = pl.workspace.Path // used in place: there is no namespace to show it elsewhere
		}
	}
	if p.Dir != "" {
		if !path.IsAbs(p.Dir) {
			return nil, usage("path_not_absolute", fmt.Sprintf("open directory %q", p.Dir), nil)
		}
		if pl.dir, err = pin.At(nil, p.Dir, pin.Anywhere); err != nil {
			return nil, fault.New(fault.NotFound, "directory", fmt.Sprintf("open directory %q", p.Dir), err)
		}
	}
	pl.cwd = p.Cwd
	if pl.cwd == "" {
		pl.cwd = pl.view
	}
	return pl, pl.checkCwd()
}

func (p *place) close() {
	p.dir.Close()
	p.workspace.Close()
}

// checkCwd wants the working directory to be a real folder of the workspace.
func (p *place) checkCwd() error {
	if p.cwd == p.view {
		return nil
	}
	op := fmt.Sprintf("enter directory %q", clip(p.cwd))
	rel, ok := below(p.view, p.cwd)
	if !ok || path.Clean(p.cwd) != p.cwd {
		return usage("cwd_outside_workspace", op, fmt.Errorf("want %s or a folder in it, spelled plainly", p.view))
	}
	if rel == "." {
		return nil
	}
	if p.workspace == nil {
		return usage("cwd_outside_workspace", op, errors.New("the private workspace is empty"))
	}
	h, err := pin.At(p.workspace, rel, pin.Plain)
	if err != nil {
		return usage("cwd", op, err)
	}
	defer h.Close()
	if !h.Stat.Mode.IsDir() {
		return usage("cwd", op, errors.New("not a directory"))
	}
	return nil
}

// openWorkspace opens the folder and refuses those that must never be one.
func openWorkspace(name string, readOnly bool, state string) (*pin.Handle, error) {
	op := fmt.Sprintf("open workspace %q", name)
	if !filepath.IsAbs(name) {
		return nil, usage("path_not_absolute", op, nil)
	}
	// Cleaned, because "link/" would follow the link.
	h, err := pin.Dir(filepath.Clean(name))
	switch {
	case err == nil:
	case fault.KindOf(err) == fault.Unsupported:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, usage("workspace_missing", op, err)
	case isLink(name):
		return nil, usage("workspace_is_link", op, errors.New("is a symbolic link")).
			WithHint("name the folder itself")
	case errors.Is(err, syscall.ENOTDIR):
		return nil, usage("workspace_not_directory", op, err)
	default:
		return nil, usage("workspace_unreachable", op, err)
	}
	if err := checkWorkspace(op, h, readOnly, state); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func isLink(name string) bool {
	fi, err := os.Lstat(filepath.Clean(name))
	return err == nil && fi.Mode()&fs.ModeSymlink != 0
}

func checkWorkspace(op string, h *pin.Handle, readOnly bool, state string) error {
	if h.Path == "/" {
		return usage("workspace_is_root", op, errors.New("is the root directory"))
	}
	if state != "" {
		s, err := pin.At(nil, state, pin.Anywhere)
		if err != nil {
			return usage("state_unreachable", op, err)
		}
		defer s.Close()
		inside, err := within(h, s)
		if err != nil {
			return usage("workspace_unreachable", op, err)
		}
		holds, err := within(s, h)
		if err != nil {
			return usage("state_unreachable", op, err)
		}
		switch {
		case inside:
			return usage("workspace_in_state", op, errors.New("lies inside the state directory"))
		case holds:
			return usage("workspace_holds_state", op, errors.New("contains the state directory"))
		}
	}
	if me := os.Geteuid(); !readOnly && me != 0 && h.Stat.UID != uint32(me) {
		return usage("workspace_not_owned", op, fmt.Errorf("belongs to user %d, this is user %d", h.Stat.UID, me)).
			WithHint("use a folder of your own, or give it read-only with :ro")
	}
	return nil
}

// within reports whether h is root or lies beneath it: by inode along the way up,
// and where that may have begun at the root of another mount of the same file
// system, by the way from the file system's own root.
func within(h, root *pin.Handle) (bool, error) {
	if h.Stat.SameFile(root.Stat) {
		return true, nil
	}
	if h.Stat.Dev == root.Stat.Dev && h.Stat.Mount != root.Stat.Mount {
		there, err := root.Place()
		if err != nil {
			return false, err
		}
		here, err := h.Place()
		if err != nil {
			return false, err
		}
		if _, ok := below(there, here); ok {
			return true, nil
		}
	}
	for dir := h.Path; dir != "/"; {
		dir = path.Dir(dir)
		up, err := pin.At(nil, dir, pin.Anywhere)
		if err != nil {
			return false, err
		}
		same := up.Stat.SameFile(root.Stat)
		up.Close()
		if same {
			return true, nil
		}
	}
	return false, nil
}

// File operands: every argument after the first, and what stands behind the
// first "=" of an argument ("--file=x", "if=x"), is looked up in the workspace.
// One that names a regular file there is an operand. One that names something
// else there is listed as unpinned, so that policy and the approver see what
// cannot be held. Names glued to a flag ("-fx"), taken apart by the program
// or reached through /proc are not found.
//
// An argument that names nothing is listed as absent: the program would read a
// file that is made under that name after the yes. Any word may be such a name,
// and whoever proposes the call chooses the word, so none is left out for its
// looks; only one that begins with "-" is taken for an option, before "--". In a folder that
// is not there either it counts as well. What is listed of them is bounded: beyond
// maxAbsent the workspace itself is listed as absent, which stands for the rest.
const (
	maxHashed   = 256 << 20 // bytes of all operands together; the rest is unpinned
	maxSealed   = 64 << 20  // bytes of all operands together, if a person is asked
	maxOperands = 1024      // operands and unpinned ones
	maxMounted  = 128       // operands, if a person is asked
	maxAbsent   = 64        // absent names
)

// operand is a file operand and where to find it again.
type operand struct {
	rel    string
	mode   fs.FileMode
	record capsule.File
}

// operands looks every argument up.
func (p *place) operands(ctx context.Context, argv []string) ([]operand, []capsule.Unpinned, error) {
	files, others := []operand{}, []capsule.Unpinned{}
	if p.workspace == nil {
		return files, others, nil
	}
	seen, budget, missing, options := make(map[string]bool), int64(maxHashed), 0, true
	for _, arg := range argv[1:] {
		options = options && arg != "--"
		names := []string{arg}
		if _, v, ok := strings.Cut(arg, "="); ok {
			names = append(names, v)
		}
		for _, name := range names {
			rel, ok := p.beneath(name)
			if !ok || name == "" || len(rel) > 4095 {
				continue
			}
			shown := path.Join(p.view, rel)
			if seen[shown] {
				continue
			}
			kind, f, err := p.operand(ctx, rel, &budget)
			switch {
			case err != nil:
				return nil, nil, err
			case kind == "", kind == capsule.KindAbsent && name == arg && (name == "--" || options && name[0] == '-'):
				continue
			}
			seen[shown] = true
			if kind == capsule.KindAbsent {
				if missing++; missing <= maxAbsent {
					others = append(others, capsule.Unpinned{Path: shown, Kind: kind})
				}
				continue
			}
			if len(seen)-missing > maxOperands {
				return nil, nil, usage("too_many_operands", "look up arguments",
					fmt.Errorf("more than %d arguments name something in the workspace", maxOperands)).
					WithHint("name the folder, or pass the list on standard input")
			}
			if kind == kindFile {
				f.record.Path = shown
				files = append(files, f)
			} else {
				others = append(others, capsule.Unpinned{Path: shown, Kind: kind})
			}
		}
	}
	if missing > maxAbsent {
		others = append(others, capsule.Unpinned{Path: p.view, Kind: capsule.KindAbsent})
	}
	slices.SortFunc(files, func(a, b operand) int { return strings.Compare(a.record.Path, b.record.Path) })
	return files, others, nil
}

const kindFile = "file"

// operand looks one name up. The kind is "" for nothing, kindFile, or one of
// the capsule's kinds.
func (p *place) operand(ctx context.Context, rel string, budget *int64) (string, operand, error) {
	h, err := pin.At(p.workspace, rel, pin.Plain)
	switch {
	case err == nil:
		defer h.Close()
	case errors.Is(err, syscall.ELOOP):
		return capsule.KindSymlink, operand{}, nil
	case errors.Is(err, fs.ErrPermission):
		return capsule.KindUnreadable, operand{}, nil
	case absent(err):
		return capsule.KindAbsent, operand{}, nil
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EXDEV):
		return "", operand{}, nil
	default:
		return "", operand{}, fault.New(fault.Unavailable, "operand_lookup", fmt.Sprintf("look up %q in the workspace", clip(rel)), err)
	}
	switch m := h.Stat.Mode; {
	case m.IsDir():
		return capsule.KindDirectory, operand{}, nil
	case !m.IsRegular():
		return capsule.KindSpecial, operand{}, nil
	case h.Stat.Size > *budget:
		return capsule.KindTooLarge, operand{}, nil
	}
	f, err := h.Open()
	if err != nil {
		return capsule.KindUnreadable, operand{}, nil
	}
	defer f.Close()
	o := operand{rel: rel, mode: h.Stat.Mode.Perm(), record: capsule.File{Pinned: capsule.PinnedOnApproval}}
	o.record.Digest, o.record.Size, err = pin.Digest(ctx, f, *budget)
	switch {
	case errors.Is(err, pin.ErrTooLarge): // it grew
		return capsule.KindTooLarge, operand{}, nil
	case ctx.Err() != nil:
		return "", operand{}, fault.New(fault.Canceled, "canceled", fmt.Sprintf("read %q in the workspace", clip(rel)), context.Cause(ctx))
	case err != nil:
		return capsule.KindUnreadable, operand{}, nil
	}
	*budget -= o.record.Size
	return kindFile, o, nil
}

// sealOperands makes the copies that an approved call reads. What it copies must
// be what the capsule names; it is called before the person is asked.
func (p *place) sealOperands(ctx context.Context, ops []operand, others []capsule.Unpinned) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	refuse := func(reason, name string, err error) error {
		return fault.New(fault.Refused, reason, fmt.Sprintf("seal %q for approval", clip(name)), err)
	}
	for _, o := range others {
		// A folder, a name without a file and a place for libraries cannot be held
		// and the approver is told so. The others could
		// be held if they were plain files, so being asked about them is a trap.
		switch o.Kind {
		case capsule.KindDirectory, capsule.KindAbsent, capsule.KindLibrary:
		default:
			return nil, fault.New(fault.Refused, "operand_unpinnable", fmt.Sprintf("seal %q for approval", clip(o.Path)),
				fmt.Errorf("is %s, which nobody can hold until the answer", o.Kind)).
				WithHint("name a regular file, not larger than 64 MiB, that is readable and not a link")
		}
	}
	if len(ops) > maxMounted {
		return nil, refuse("too_many_operands", p.view, fmt.Errorf("%d files, at most %d", len(ops), maxMounted))
	}
	budget := int64(maxSealed)
	for _, o := range ops {
		if o.record.Size > budget {
			return files, refuse("operands_too_large", o.record.Path, fmt.Errorf("more than %d bytes in all", maxSealed))
		}
		if err := p.hold.Grow(o.record.Size); err != nil {
			return files, err
		}
		h, err := pin.At(p.workspace, o.rel, pin.Plain)
		if err != nil {
			return files, refuse("operand_changed", o.record.Path, err)
		}
		f, err := h.Open()
		h.Close()
		if err != nil {
			return files, refuse("operand_changed", o.record.Path, err)
		}
		s, err := pin.Seal(ctx, "palyra-operand", f, o.record.Size, o.mode&0o555|0o444)
		f.Close()
		if errors.Is(err, pin.ErrTooLarge) {
			return files, refuse("operand_changed", o.record.Path, pin.ErrChanged)
		}
		if err != nil {
			return files, sealFault(fmt.Sprintf("seal %q for approval", clip(o.record.Path)), err)
		}
		files = append(files, s.File)
		if s.Digest != o.record.Digest {
			return files, refuse("operand_changed", o.record.Path, pin.ErrChanged)
		}
		budget -= s.Size
	}
	return files, nil
}
