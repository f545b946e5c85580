package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

// hintUpdate is for files of the system that change while they are read.
const hintUpdate = "a system update may be running; try again"

// ErrNoProgram marks the error of a call whose program doesn't exist.
var ErrNoProgram = errors.New("no such program")

// How a program is found, opened and pinned.
//
// A bare Argv[0] is looked up in the folders that the operator declared, then in searchPath. With a
// slash it's a path as the program's working directory sees it. If the call has a workspace and the
// path leads there, it's looked up beneath the workspace, following links that stay there; else on
// the host, relative to the caller's directory.
//
// The file is held by descriptor from then on. It's "system" and used in place if only root can
// change it (pin.Handle.System) and it isn't in the workspace. Any other file is copied into
// sealed memory, and the copy runs.
//
// A file that begins with #! is a script. Its first line names an interpreter, which is found,
// opened and pinned in turn, up to maxScripts of them. A file that is neither a script nor an
// ELF binary for this machine is refused: otherwise the host's binfmt_misc could run an
// interpreter that was never checked.
const (
	maxScripts    = 4         // Linux stops at five (fs/exec.c, exec_binprm)
	maxExecutable = 512 << 20 // bytes; a sealed copy is memory
	shebangBytes  = 256       // BINPRM_BUF_SIZE
)

type program struct {
	exec    held
	scripts []capsule.Script
	read    []digests.Digest // how scripts got their digests
	held    []held           // scripts and the loader, if used in place
	loader  *capsule.File    // of exec; nil if that is static

	// libraries are the places with code that isn't the system's where the loader looks.
	libraries []string
	script    *pin.Sealed // the sealed script; at most one
	argv      []string    // the arguments of the binary's execve
}

// held is an open file with its state when it was hashed.
type held struct {
	what   string
	named  string // a loader's path, which the kernel will open, else ""
	file   *os.File
	stat   pin.Stat
	record capsule.File
	digest digests.Digest // how record.Digest was obtained
}

// recheck refuses if a file that is used in place has changed.
func (h *held) recheck() error {
	if h.record.Pinned != capsule.PinnedSystem {
		return nil
	}
	err := pin.Changed(h.file, h.stat)
	if err == nil && h.named != "" {
		// A file that replaced it leaves the old one unchanged.
		var now *pin.Handle
		if now, err = pin.At(nil, h.named, pin.Anywhere); err == nil {
			if !now.Stat.Same(h.stat) {
				err = pin.ErrChanged
			}
			now.Close()
		}
	}
	if err != nil {
		return fault.New(fault.Refused, "changed", fmt.Sprintf("check %s %q", h.what, h.record.Path), err).
			WithHint("a system update may be running; try again")
	}
	return nil
}

func (p *program) close() {
	if p.exec.file != nil {
		p.exec.file.Close()
	}
	for _, h := range p.held {
		h.file.Close()
	}
	if p.script != nil {
		p.script.File.Close()
	}
}

type place struct {
	dir       *pin.Handle   // the caller's directory, nil if not given
	workspace *pin.Handle   // nil: private
	staged    bool          // the program sees it through a layer
	inPlace   bool          // at tier B, whose program sees the host's own paths
	view      string        // where the program sees the workspace
	cwd       string        // where the program starts, beneath view
	mounts    []*pin.Handle // sorted by path
	programs  []string      // folders that are searched before searchPath
	folder    *pin.Handle   // cwd, held so that no other folder gets its inode; nil if it is view
	// found maps the operands' names to the places that they lead to, as the capsule lists
	// them.
	found   map[string]string
	steps   int // elements of names looked at so far
	digests *digests.Cache
	hold    *budget.Hold // pays for sealed copies
}

func below(root, name string) (rel string, ok bool) {
	if name == root {
		return ".", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(root, "/")+"/")
}

// beneath maps a path as the program spells it to one relative to the workspace. That is exact
// without "..", or if no link of the workspace comes before it. If ".." leads out of the
// workspace and back, the text decides. It's for programs alone, because the file that it finds
// is the one that runs. See reach for operands.
func (p *place) beneath(name string) (string, bool) {
	if p.workspace == nil {
		return "", false
	}
	if !path.IsAbs(name) {
		name = p.cwd + "/" + name
	}
	if strings.Contains(name, "..") {
		if plain, ok := p.straight(name); ok {
			name = plain
		}
	}
	rel, ok := below(p.view, name)
	if clean, inside := below(p.view, path.Clean(name)); !inside {
		return "", false
	} else if !ok || strings.HasPrefix(path.Clean(rel), "../") {
		rel = clean
	}
	if rel = strings.TrimLeft(rel, "/"); rel == "" {
		rel = "."
	}
	return rel, true
}

func (p *place) shown(h *pin.Handle) string {
	if p.workspace != nil {
		if rel, ok := below(p.workspace.Path, h.Path); ok {
			return path.Join(p.view, rel)
		}
	}
	return h.Path
}

func (p *place) inWorkspace(h *pin.Handle) bool {
	_, ok := p.ofWorkspace(h)
	return ok
}

func (p *place) ofWorkspace(h *pin.Handle) (rel string, ok bool) {
	if p.workspace == nil {
		return "", false
	}
	return below(p.workspace.Path, h.Path)
}

func (p *place) find(name string) (*pin.Handle, error) {
	if rel, ok := p.beneath(name); ok {
		return pin.At(p.workspace, rel, pin.Beneath)
	}
	switch {
	case path.IsAbs(name):
		return pin.At(nil, name, pin.Anywhere)
	case p.workspace == nil && p.dir != nil:
		return pin.At(p.dir, name, pin.Anywhere)
	}
	return nil, fs.ErrNotExist
}

// search looks a bare name up as execvp does: it returns the first executable file, or the
// first obstacle that isn't absence.
func (p *place) search(name string) (*pin.Handle, error) {
	obstacle := fs.ErrNotExist
	for _, dir := range slices.Concat(p.programs, strings.Split(searchPath, ":")) {
		h, err := pin.At(nil, dir+"/"+name, pin.Anywhere)
		if err == nil {
			if h.Stat.Mode.IsRegular() {
				if err = h.Executable(); err == nil {
					return h, nil
				}
			}
			h.Close()
		}
		if err != nil && obstacle == fs.ErrNotExist && !absent(err) {
			obstacle = err
		}
	}
	return nil, obstacle
}

func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (p *place) lookup(name string) (*pin.Handle, error) {
	var h *pin.Handle
	var err error
	if strings.Contains(name, "/") {
		h, err = p.find(name)
	} else {
		h, err = p.search(name)
	}
	if err == nil {
		return h, nil
	}
	op := fmt.Sprintf("find program %q", clip(name))
	switch {
	case fault.KindOf(err) == fault.Unsupported:
		return nil, err
	case absent(err), errors.Is(err, syscall.ENAMETOOLONG):
		f := fault.New(fault.NotFound, "program_not_found", op, fault.Mark(err, ErrNoProgram))
		if !strings.Contains(name, "/") {
			f = f.WithHint("bare names are looked up in " + strings.Join(append(slices.Clone(p.programs), searchPath), ":") + " only; name other programs by path")
		}
		return nil, f
	case errors.Is(err, syscall.EXDEV):
		return nil, fault.New(fault.NotExec, "outside_workspace", op, errors.New("a link leads out of the workspace"))
	case errors.Is(err, syscall.ELOOP):
		return nil, fault.New(fault.NotExec, "program_not_executable", op, errors.New("too many links, or one of /proc")).
			WithHint("name the file that the link means, not a link that leads to itself or through /proc")
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.New(fault.NotExec, "program_not_executable", op, err).
			WithHint("look at the owner and mode of the file and of each folder above it: namei -l PATH")
	}
	return nil, fault.New(fault.NotExec, "program_not_executable", op, err).
		WithHint("look at the path: namei -l PATH")
}

// open checks that a found file can be run and opens it.
func (p *place) open(h *pin.Handle) (*os.File, error) {
	no := func(reason string, err error) error {
		return fault.New(fault.NotExec, reason, fmt.Sprintf("open program %q", p.shown(h)), err)
	}
	switch m := h.Stat.Mode; {
	case m.IsDir():
		return nil, no("program_not_executable", errors.New("is a directory"))
	case !m.IsRegular():
		return nil, no("program_not_executable", errors.New("is a FIFO, socket or device"))
	case h.Stat.Size == 0:
		return nil, no("program_not_executable", errors.New("is empty"))
	case h.Stat.Size > maxExecutable:
		return nil, no("too_large", fmt.Errorf("%d bytes, limit %d", h.Stat.Size, maxExecutable))
	}
	if err := h.Executable(); err != nil {
		return nil, no("program_not_executable", err)
	}
	if rel, ok := p.ofWorkspace(h); ok && os.Geteuid() == 0 {
		again, err := p.at(rel)
		if err == nil {
			defer again.Close()
		}
		switch {
		case err != nil || !again.Stat.SameFile(h.Stat):
			return nil, no("program_not_executable", errors.Join(errors.New("the workspace's owner may not read it"), err))
		case !p.owners(h.Stat, 0o1):
			return nil, no("program_not_executable", errors.New("the workspace's owner may not execute it"))
		}
	}
	f, err := h.Open()
	if err != nil {
		// A file that can't be read can't be hashed, and a file that isn't hashed doesn't run.
		return nil, no("program_not_executable", err)
	}
	return f, nil
}

// pin hashes an open file and decides how to hold it. The returned held has the file to use. If
// that is a sealed copy, pin closes f.
func (p *place) pin(ctx context.Context, h *pin.Handle, f *os.File, what string, perm fs.FileMode) (held, *pin.Sealed, error) {
	r := capsule.File{Path: p.shown(h)}
	op := func() string { return fmt.Sprintf("read %s %q", what, r.Path) }
	if h.System() && !p.inWorkspace(h) {
		r.Pinned = capsule.PinnedSystem
		d, err := p.digests.Of(ctx, f, h.Stat, maxExecutable)
		if err == nil {
			err = pin.Changed(f, h.Stat)
		}
		if err != nil {
			f.Close()
			return held{}, nil, orCanceled(op(), err, fault.New(fault.Unavailable, "changed", op(), err).WithHint(hintUpdate))
		}
		r.Digest, r.Size = d.Sum, d.Size
		return held{what: what, file: f, stat: h.Stat, record: r, digest: d}, nil, nil
	}
	defer f.Close()
	if err := p.hold.Grow(pin.Memory(h.Stat.Size)); err != nil { // at most maxExecutable: see open
		return held{}, nil, err
	}
	known := p.digests
	if perm&0o111 == 0 || p.inWorkspace(h) {
		known = nil // a script, or a file that another call may write
	}
	s, d, err := known.Seal(ctx, "palyra-"+what, f, h.Stat, perm)
	if errors.Is(err, pin.ErrTooLarge) {
		return held{}, nil, fault.New(fault.Unavailable, "changed", op(), pin.ErrChanged).WithHint(hintUpdate)
	}
	if err != nil {
		return held{}, nil, sealFault(op(), err)
	}
	if s.Size == 0 {
		s.File.Close()
		return held{}, nil, fault.New(fault.NotExec, "program_not_executable", op(), errors.New("is empty"))
	}
	r.Pinned, r.Digest, r.Size = capsule.PinnedSealed, s.Digest, s.Size
	return held{what: what, file: s.File, stat: h.Stat, record: r, digest: d}, s, nil
}

func (p *place) program(ctx context.Context, argv []string) (_ *program, err error) {
	prog := &program{argv: argv}
	defer func() {
		if err != nil {
			prog.close()
		}
	}()
	h, err := p.lookup(argv[0])
	if err != nil {
		return nil, err
	}
	defer func() { h.Close() }()
	for depth := 0; ; depth++ {
		f, err := p.open(h)
		if err != nil {
			return nil, err
		}
		head, err := p.head(f, h)
		if err != nil {
			f.Close()
			return nil, err
		}
		if !isScript(head) {
			// The file may have changed since; only the pinned bytes count.
			if prog.exec, _, err = p.pin(ctx, h, f, "program", 0o555); err == nil {
				err = p.image(ctx, prog)
			}
			return prog, err
		}
		if depth == maxScripts {
			f.Close()
			return nil, fault.New(fault.NotExec, "program_not_executable", fmt.Sprintf("read script %q", p.shown(h)),
				fmt.Errorf("more than %d scripts, or a loop", maxScripts)).
				WithHint("let the first line of the script name a binary")
		}
		next, err := p.addScript(ctx, prog, h, f)
		if err != nil {
			return nil, err
		}
		h.Close()
		h = next
	}
}

// holdProgram makes a program of the workspace an operand: some programs, such as
// self-extracting archives, open the file that they were called by, and must read the bytes
// that run. If no copy can cover the file, or the program was called through a link,
// holdProgram lists the name instead. An interpreted script is read by descriptor and needs
// neither.
func (s *sealed) holdProgram(c *capsule.Capsule) error {
	exec, pl := &s.program.exec, s.place
	rel, ok := below(pl.view, exec.record.Path)
	if !ok || pl.workspace == nil || exec.record.Pinned != capsule.PinnedSealed {
		return nil
	}
	loose := func(name string) {
		c.Unpinned = append(c.Unpinned, capsule.Unpinned{Path: name, Kind: capsule.KindProgram})
	}
	called := s.program.argv[0]
	if r, kind, ok := pl.reach(called); ok && (kind != "" || r != rel) {
		if !path.IsAbs(called) {
			called = pl.cwd + "/" + called
		}
		loose(called)
	}
	size := exec.record.Size
	for _, o := range s.operands {
		if o.rel == rel {
			if o.record.Digest != exec.record.Digest {
				return fault.New(fault.Unavailable, "changed", fmt.Sprintf("read program %q", exec.record.Path), pin.ErrChanged).WithHint(hintUpdate)
			}
			return nil
		}
		size += o.record.Size
	}
	if c.TierFloor == tier.B || pl.staged || size > maxSealed || len(s.operands) >= maxMounted {
		loose(exec.record.Path)
		return nil
	}
	own := operand{rel: rel, mode: exec.stat.Mode.Perm(), record: exec.record, held: exec.file}
	own.record.Pinned = capsule.PinnedOnApproval
	s.operands = append(s.operands, own)
	slices.SortFunc(s.operands, func(a, b operand) int { return strings.Compare(a.record.Path, b.record.Path) })
	return nil
}

// lineArgs returns the arguments in the scripts' #! lines in the order in which the binary gets
// them: the last script's first.
func lineArgs(scripts []capsule.Script) (args []string) {
	for _, s := range slices.Backward(scripts) {
		if s.Argument != nil {
			args = append(args, *s.Argument)
		}
	}
	return args
}

// head returns the bytes that the kernel looks at, the first ones, padded with zeros.
func (p *place) head(f *os.File, h *pin.Handle) ([]byte, error) {
	b := make([]byte, shebangBytes)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, fault.New(fault.NotExec, "program_not_executable", fmt.Sprintf("read program %q", p.shown(h)), err).
			WithHint("what cannot be read cannot be hashed and does not run: chmod +r, or run as a user who may read it")
	}
	return b, nil
}

func isScript(head []byte) bool { return head[0] == '#' && head[1] == '!' }

func (p *place) addScript(ctx context.Context, prog *program, h *pin.Handle, f *os.File) (*pin.Handle, error) {
	got, sealed, err := p.pin(ctx, h, f, "script", 0o444)
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		prog.held = append(prog.held, got)
	} else if prog.script == nil && len(prog.scripts) == 0 {
		prog.script = sealed
	} else {
		// The program gets one descriptor, for the outermost script.
		sealed.File.Close()
		return nil, fault.New(fault.NotExec, "program_not_executable", fmt.Sprintf("read script %q", got.record.Path),
			errors.New("interprets another script and is not a file of the system")).
			WithHint("let the first line of the script name a binary")
	}
	// Parse the pinned bytes, not those that were looked at before.
	head, err := p.head(got.file, h)
	if err != nil {
		return nil, err
	}
	op := fmt.Sprintf("read first line of script %q", got.record.Path)
	interp, arg, err := parseShebang(head)
	if err == nil && !path.IsAbs(interp) {
		err = fmt.Errorf("interpreter %q is not an absolute path", clip(interp))
	}
	if err != nil {
		return nil, fault.New(fault.NotExec, "program_not_executable", op, err).
			WithHint("the first line must be #! and the absolute path of an interpreter")
	}
	if arg != nil {
		if err := checkText("argument in the script's first line", *arg); err != nil {
			return nil, err
		}
	}
	if err := checkText("interpreter in the script's first line", interp); err != nil {
		return nil, err
	}
	prog.scripts = append(prog.scripts, capsule.Script{File: got.record, Interpreter: interp, Argument: arg})
	prog.read = append(prog.read, got.digest)

	// As fs/binfmt_script.c does: the interpreter, its argument and the script's path replace
	// argv[0].
	name := got.record.Path
	if sealed != nil {
		name = fmt.Sprintf("/dev/fd/%d", isolate.ScriptFD)
	}
	argv := []string{interp}
	if arg != nil {
		argv = append(argv, *arg)
	}
	prog.argv = append(append(argv, name), prog.argv[1:]...)

	next, err := p.lookup(interp)
	if err != nil {
		return nil, fault.New(fault.NotExec, "program_not_executable", op, err).
			WithHint("the first line must be #! and the absolute path of a binary that is installed")
	}
	return next, nil
}

// parseShebang parses a script's first line from the first shebangBytes of the file, padded
// with zeros, as load_script in fs/binfmt_script.c does.
func parseShebang(buf []byte) (interp string, arg *string, err error) {
	if len(buf) != shebangBytes || !isScript(buf) {
		return "", nil, errors.New("does not begin with #! as scripts do")
	}
	blank := func(c byte) bool { return c == ' ' || c == '\t' }
	// Both return last+1 for none; last is included, as in the kernel.
	nextText := func(from, last int) int {
		for ; from <= last && blank(buf[from]); from++ {
		}
		return from
	}
	nextEnd := func(from, last int) int {
		for ; from <= last && !blank(buf[from]) && buf[from] != 0; from++ {
		}
		return from
	}
	const last = shebangBytes - 1
	// strnchr stops at a NUL: a newline beyond one doesn't count.
	text := buf
	if i := bytes.IndexByte(buf, 0); i >= 0 {
		text = buf[:i]
	}
	end := bytes.IndexByte(text, '\n')
	if end < 0 {
		start := nextText(2, last)
		if start > last {
			return "", nil, errors.New("no interpreter named")
		}
		// Without a blank or a NUL after it the name may be cut off.
		if nextEnd(start, last) > last {
			return "", nil, fmt.Errorf("line is longer than %d bytes", shebangBytes)
		}
		end = last
	}
	for blank(buf[end-1]) {
		end--
	}
	name := nextText(2, end)
	if name >= end {
		return "", nil, errors.New("no interpreter named")
	}
	sep := nextEnd(name, end)
	stop := min(sep, end)
	interp = cstring(buf[name:stop])
	if interp == "" {
		return "", nil, errors.New("no interpreter named")
	}
	if sep <= end && buf[sep] != 0 {
		if at := nextText(sep, end); at < end {
			a := cstring(buf[at:end])
			arg = &a
		}
	}
	return interp, arg, nil
}

// cstring cuts b at its first NUL.
func cstring(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
