package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	vocabulary "palyra/call"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
)

// view is where the program at tier C sees a workspace that isn't at its own path.
const view = vocabulary.WorkspaceDir

// openPlace opens the workspace and the caller's directory and decides where the program
// starts. state is the state directory.
func openPlace(p *Proposal, state string) (_ *place, err error) {
	pl := &place{view: view, staged: p.WorkspaceStaged, inPlace: p.TierFloor == tier.B}
	defer func() {
		if err != nil {
			pl.close()
		}
	}()
	if p.Workspace != "" {
		if pl.workspace, err = openWorkspace(p.Workspace, p.WorkspaceReadOnly, state); err != nil {
			return nil, err
		}
		switch {
		case pl.inPlace:
			pl.view = pl.workspace.Path // no namespace can show it elsewhere
		case p.WorkspaceOwnPath:
			if err := isolate.CheckPlace(pl.workspace.Path); err != nil {
				return nil, usage("workspace_unusable", fmt.Sprintf("show workspace %q at its own path", clip(p.Workspace)), err).
					WithHint("leave out own-path, which shows it at " + view + ", or move it")
			}
			pl.view = pl.workspace.Path
		}
	}
	if err := pl.openMounts(p.Mounts, state); err != nil {
		return nil, err
	}
	if p.Dir != "" {
		if !path.IsAbs(p.Dir) {
			return nil, usage("invalid_input", fmt.Sprintf("open directory %q", p.Dir), errors.New("the path is not absolute"))
		}
		if pl.dir, err = pin.At(nil, p.Dir, pin.Anywhere); err != nil {
			return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("open directory %q", p.Dir), err)
		}
	}
	pl.cwd = p.Cwd
	switch {
	case pl.cwd == "":
		pl.cwd = pl.view
	case !path.IsAbs(pl.cwd) && p.tool != nil:
		pl.cwd = pl.view + "/" + pl.cwd
	}
	if d := p.declaration(); d != nil {
		pl.programs = d.Programs
	}
	return pl, pl.checkCwd()
}

func (p *place) close() {
	p.dir.Close()
	p.workspace.Close()
	p.folder.Close()
	for _, h := range p.mounts {
		h.Close()
	}
}

// checkCwd requires the working directory to be a real folder of the workspace, and holds it:
// the runner starts the program in this folder or refuses.
func (p *place) checkCwd() error {
	if p.cwd == p.view {
		return nil
	}
	op := fmt.Sprintf("enter directory %q", clip(p.cwd))
	rel, ok := below(p.view, p.cwd)
	if !ok || path.Clean(p.cwd) != p.cwd {
		return usage("outside_workspace", op, fmt.Errorf("want %s or a folder in it, spelled plainly", p.view))
	}
	if rel == "." {
		return nil
	}
	if p.workspace == nil {
		return usage("outside_workspace", op, errors.New("the private workspace is empty"))
	}
	h, err := p.at(rel)
	if err != nil {
		return usage("invalid_input", op, err)
	}
	p.folder = h // closed with p
	if !h.Stat.Mode.IsDir() {
		return usage("invalid_input", op, errors.New("not a directory"))
	}
	if os.Geteuid() == 0 && !p.owners(h.Stat, 1) {
		return usage("invalid_input", op, syscall.EACCES)
	}
	return nil
}

func openWorkspace(name string, readOnly bool, state string) (*pin.Handle, error) {
	return openFolder(fmt.Sprintf("open workspace %q", name), name, readOnly, state)
}

// openFolder opens a folder of the host for the program to see.
func openFolder(op, name string, readOnly bool, state string) (*pin.Handle, error) {
	if !filepath.IsAbs(name) {
		return nil, usage("invalid_input", op, errors.New("the path is not absolute"))
	}
	// Cleaned, because "link/" would follow the link.
	h, err := pin.Dir(filepath.Clean(name))
	switch {
	case err == nil:
	case fault.KindOf(err) == fault.Unsupported:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, usage("workspace_unusable", op, err)
	case isLink(name):
		return nil, usage("workspace_unusable", op, errors.New("is a symbolic link")).
			WithHint("name the folder itself")
	case errors.Is(err, syscall.ENOTDIR):
		return nil, usage("workspace_unusable", op, err)
	default:
		return nil, usage("workspace_unusable", op, err).
			WithHint("look at the owner and mode of the folder and of each above it: namei -l DIR")
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
		return usage("workspace_unusable", op, errors.New("is the root directory"))
	}
	if state != "" {
		s, err := pin.At(nil, state, pin.Anywhere)
		if err != nil {
			return usage("state_io", op, err)
		}
		defer s.Close()
		inside, err := within(h, s)
		if err != nil {
			return usage("workspace_unusable", op, err).
				WithHint("look at the owner and mode of the folder and of each above it: namei -l DIR")
		}
		holds, err := within(s, h)
		if err != nil {
			return usage("state_io", op, err)
		}
		switch {
		case inside:
			return usage("workspace_unusable", op, errors.New("lies inside the state directory")).
				WithHint("the program would see Palyra's keys: name an existing folder, with the agent's files and nothing else: --workspace DIR, or DIR:ro for read-only")
		case holds:
			return usage("workspace_unusable", op, errors.New("contains the state directory")).
				WithHint("the program would see Palyra's keys: name a folder without the state directory, or move that: --state DIR")
		}
	}
	if me := os.Geteuid(); !readOnly && me != 0 && h.Stat.UID != uint32(me) {
		return usage("workspace_unusable", op, fmt.Errorf("belongs to user %d, this is user %d", h.Stat.UID, me)).
			WithHint("use a folder of your own, or give it read-only with :ro")
	}
	return nil
}

// spares refuses a workspace in which a program could change the policies that decide the next
// call, or what confines it. palyrad looks once, at its start (hub/config). What a staged program
// writes changes nothing before it's applied, by a call for which the workspace is not staged.
func (k *Kernel) spares(p *Proposal, w *pin.Handle) error {
	if !k.cfg.Once || w == nil || p.WorkspaceReadOnly || p.WorkspaceStaged {
		return nil
	}
	op := fmt.Sprintf("open workspace %q", p.Workspace)
	for _, own := range []struct{ at, is, hint string }{
		{k.cfg.PolicyDir, "the policy directory", "the program could change what it may do: keep the policies elsewhere, or give the workspace with :ro or :staged"},
		{k.cfg.CellPath, "palyra-cell", "the program could change what confines it: install palyra elsewhere, or give the workspace with :ro or :staged"},
	} {
		if own.at == "" {
			continue
		}
		at, err := filepath.Abs(own.at)
		if err != nil {
			return usage("workspace_unusable", op, err)
		}
		h, err := pin.At(nil, at, pin.Anywhere)
		if err != nil {
			return usage("workspace_unusable", op, err)
		}
		holds, err := within(h, w)
		if err == nil && !holds {
			holds, err = within(w, h)
		}
		h.Close()
		switch {
		case err != nil:
			return usage("workspace_unusable", op, err)
		case holds:
			return usage("workspace_unusable", op, fmt.Errorf("contains %s, or lies in it", own.is)).WithHint(own.hint)
		}
	}
	return nil
}

// within reports whether h is root or lies beneath it. It compares inodes on the way up. If the
// way may begin at another mount of the same file system, it compares the places from the file
// system's own root.
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

// File operands: the gate looks up in the workspace every argument after the first, those of a
// script's #! line, and the part after an argument's first "=" ("--file=x", "if=x"). If it
// names a regular file there it's an operand. If it names another thing there, or may lead
// there (reach.go), it's listed as unpinned, so that policy and approver see what can't be
// held. Names glued to a flag ("-fx") or taken apart by the program aren't found.
//
// An argument that names nothing is listed as absent: the program would read a file that is
// made under that name after the yes. Any word may be such a name, and the proposer chooses the
// word, so none is left out for its looks, even if its folder doesn't exist either. Only a word
// that begins with "-", before "--", counts as an option. The list is bounded. For names beyond
// maxAbsent, and for those too long for a file, the workspace itself is listed as absent and
// stands for the rest.
const (
	maxHashed   = 256 << 20 // bytes of all operands together; the rest is unpinned
	maxSealed   = 64 << 20  // bytes of all operands together, if a person is asked
	maxOperands = 1024      // operands and unpinned ones
	maxMounted  = 128       // operands, if a person is asked
	maxAbsent   = 64        // absent names
	maxSteps    = 1 << 14   // elements of all names of a call: each may be looked at before the decision
)

type operand struct {
	rel    string
	mode   fs.FileMode
	record capsule.File
	held   *os.File // for the program itself: the copy that runs
}

// operands looks every argument up; args are without argv[0].
func (p *place) operands(ctx context.Context, args []string) ([]operand, []capsule.Unpinned, error) {
	files, others := []operand{}, []capsule.Unpinned{}
	if p.workspace == nil {
		return files, others, nil
	}
	listed := make(map[string]string) // how the lists spell a place
	budget, missing, more, options := int64(maxHashed), 0, false, true
	for _, arg := range args {
		if err := ctx.Err(); err != nil {
			return nil, nil, fault.New(fault.Canceled, "canceled", "look up arguments", err)
		}
		options = options && arg != "--"
		names := []string{arg}
		if _, v, ok := strings.Cut(arg, "="); ok {
			names = append(names, v)
		}
		for _, name := range names {
			if name == "" {
				continue
			}
			option := name == arg && (name == "--" || options && name[0] == '-')
			if len(name) > maxPath { // no program opens it as it stands
				more = more || !option
				continue
			}
			p.step(strings.Count(name, "/"))
			rel, kind, ok := p.reach(name)
			if err := p.tired("look up arguments"); err != nil {
				return nil, nil, err
			}
			if !ok {
				continue
			}
			if kind != "" && option && p.optionOnly(name) {
				continue
			}
			shown, key := path.Join(p.view, rel), rel
			if kind != "" {
				if shown = name; !path.IsAbs(name) {
					shown = p.cwd + "/" + name
				}
				key = shown
			}
			if at, seen := listed[key]; seen {
				p.leads(name, at)
				continue
			}
			var f operand
			var err error
			if kind == "" {
				kind, f, err = p.operand(ctx, rel, &budget)
			}
			switch {
			case err != nil:
				return nil, nil, err
			case kind == capsule.KindAbsent && option:
				continue
			case kind == kindTooLong:
				more = more || !option
				continue
			case kind == capsule.KindAbsent:
				if missing++; missing > maxAbsent {
					continue
				}
				listed[key] = shown
				p.leads(name, shown)
				if strings.HasSuffix(rel, "/") { // no folder has this name; a file may
					shown += "/"
				}
				others = append(others, capsule.Unpinned{Path: shown, Kind: kind})
				continue
			}
			listed[key] = shown
			p.leads(name, shown)
			if len(listed)-min(missing, maxAbsent) > maxOperands {
				return nil, nil, usage("too_large", "look up arguments",
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
	if more || missing > maxAbsent {
		others = append(others, capsule.Unpinned{Path: p.view, Kind: capsule.KindAbsent})
	}
	slices.SortFunc(files, func(a, b operand) int { return strings.Compare(a.record.Path, b.record.Path) })
	slices.SortFunc(others, capsule.CompareUnpinned)
	return files, slices.Compact(others), nil // "none" and "none/" were looked up as two
}

// leads remembers where a name leads, if a list has the place. It shares the list's text,
// because a name may be much shorter than its place and a waiting call keeps all this.
func (p *place) leads(name, shown string) {
	if p.found == nil {
		p.found = make(map[string]string)
	}
	p.found[name] = shown
}

// step counts n elements of names, and reports whether they may be looked at.
func (p *place) step(n int) bool {
	p.steps += n
	return p.steps <= maxSteps
}

// tired is the error of a call that names too much. Elements that step refused were treated as
// the worst case.
func (p *place) tired(op string) error {
	if p.steps <= maxSteps {
		return nil
	}
	return usage("too_large", op, fmt.Errorf("arguments, environment and program name more than %d elements of paths", maxSteps)).
		WithHint("name the folder, or pass the list on standard input")
}

// optionOnly reports whether a name that looks like an option is one: nothing has its first
// element's name.
func (p *place) optionOnly(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	rel, _, ok := p.reach(first)
	if !ok {
		return false
	}
	h, err := p.at(rel)
	if err == nil {
		h.Close()
	}
	return err != nil && (absent(err) || errors.Is(err, syscall.ENAMETOOLONG))
}

// The results of operand besides the capsule's kinds.
const (
	kindFile    = "file"
	kindTooLong = "too long" // for the name of a file
)

func (p *place) operand(ctx context.Context, rel string, budget *int64) (string, operand, error) {
	h, err := p.at(rel)
	switch {
	case err == nil:
		defer h.Close()
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EXDEV):
		return capsule.KindSymlink, operand{}, nil
	case errors.Is(err, fs.ErrPermission):
		return capsule.KindUnreadable, operand{}, nil
	case absent(err):
		return capsule.KindAbsent, operand{}, nil
	case errors.Is(err, syscall.ENAMETOOLONG) && nameless(rel):
		return kindTooLong, operand{}, nil
	case errors.Is(err, syscall.ENAMETOOLONG): // from its own folder the program may reach it
		return capsule.KindUnreadable, operand{}, nil
	default:
		return "", operand{}, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("look up %q in the workspace", clip(rel)), err)
	}
	switch m := h.Stat.Mode; {
	case m.IsDir():
		return capsule.KindDirectory, operand{}, nil
	case !m.IsRegular():
		return capsule.KindSpecial, operand{}, nil
	case p.staged: // the layer may have a file of its own there
		return capsule.KindStaged, operand{}, nil
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

// sealOperands makes the copies that an approved call reads, before the person is asked. Their
// content must be what the capsule names.
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
		// The cell watches the way to each operand by the argument's text, and finds none here.
		if clean := path.Clean(o.Path); o.Kind == capsule.KindAbsent && slices.Contains(elements(o.Path), "..") &&
			slices.ContainsFunc(ops, func(op operand) bool { return op.record.Path == clean }) {
			return nil, refuse("operand_unpinnable", o.Path, fmt.Errorf(`leads to %q once a folder is made before its ".."`, clip(clean)))
		}
		// A folder, a name without a file, a place for libraries, a program that no copy can
		// cover and a file in a layer can't be held, and the approver is told so. The others could be
		// held if they were plain files, so asking about them would be a trap.
		switch o.Kind {
		case capsule.KindDirectory, capsule.KindAbsent, capsule.KindLibrary, capsule.KindProgram, capsule.KindStaged:
		default:
			why := fmt.Errorf("is %s, which cannot be held until the answer", o.Kind)
			if o.Kind == capsule.KindSymlink && slices.Contains(elements(o.Path), "..") {
				why = errors.New(`has ".." behind a name that may be a link by the answer`)
			}
			return nil, fault.New(fault.Refused, "operand_unpinnable", fmt.Sprintf("seal %q for approval", clip(o.Path)), why).
				WithHint("name a regular file, not larger than 64 MiB, that is readable and not a link, without .. behind a folder")
		}
	}
	if len(ops) > maxMounted {
		return nil, refuse("too_large", p.view, fmt.Errorf("%d files, at most %d", len(ops), maxMounted))
	}
	budget := int64(maxSealed)
	for _, o := range ops {
		if o.record.Size > budget {
			return files, refuse("too_large", o.record.Path, fmt.Errorf("more than %d bytes in all", maxSealed))
		}
		if err := p.hold.Grow(pin.Memory(o.record.Size)); err != nil {
			return files, err
		}
		f, err := p.operandFile(&o)
		if err != nil {
			return files, refuse("changed", o.record.Path, err)
		}
		s, err := pin.Seal(ctx, "palyra-operand", io.NewSectionReader(f, 0, 1<<62), o.record.Size, o.mode&0o555|0o444)
		if f != o.held {
			f.Close()
		}
		if errors.Is(err, pin.ErrTooLarge) {
			return files, refuse("changed", o.record.Path, pin.ErrChanged)
		}
		if err != nil {
			return files, sealFault(fmt.Sprintf("seal %q for approval", clip(o.record.Path)), err)
		}
		files = append(files, s.File)
		if s.Digest != o.record.Digest {
			return files, refuse("changed", o.record.Path, pin.ErrChanged)
		}
		budget -= s.Size
	}
	return files, nil
}

func (p *place) operandFile(o *operand) (*os.File, error) {
	if o.held != nil {
		return o.held, nil
	}
	h, err := p.at(o.rel)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.Open()
}

// at opens a place in the workspace for inspection, through no link. The program has the rights
// of the workspace's owner, so a file that only root could read is neither hashed nor copied
// for it. Access lists (acl(5)) aren't considered.
func (p *place) at(rel string) (h *pin.Handle, err error) {
	way := elements(rel)
	if os.Geteuid() != 0 || len(way) == 0 {
		return pin.At(p.workspace, rel, pin.Plain)
	}
	from := p.workspace
	if p.folder != nil { // whose way checkCwd has walked
		cwd, _ := below(p.view, p.cwd)
		if rest, ok := below(cwd, rel); ok && len(elements(rest)) > 0 {
			from, way = p.folder, elements(rest)
		}
	}
	at := from
	for i, e := range way {
		last := i == len(way)-1
		if last && strings.HasSuffix(rel, "/") {
			e += "/"
		}
		h, err := pin.At(at, e, pin.Plain)
		if at != from {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		mode := h.Stat.Mode
		if at = h; mode.IsDir() && !last && !p.owners(h.Stat, 1) || mode.IsRegular() && last && !p.owners(h.Stat, 4) {
			h.Close()
			return nil, &fs.PathError{Op: "open", Path: rel, Err: syscall.EACCES}
		}
	}
	return at, nil
}

// owners reports whether a file's mode gives the workspace's owner a right: 4 to read, 1 to
// execute or search.
func (p *place) owners(st pin.Stat, right fs.FileMode) bool {
	perm := st.Mode.Perm()
	switch ws := p.workspace.Stat; {
	case st.UID == ws.UID:
		perm >>= 6
	case st.GID == ws.GID:
		perm >>= 3
	}
	return perm&right != 0
}
