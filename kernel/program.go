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
	"strings"
	"syscall"
	"time"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

// How a program is found, opened and pinned.
//
// Argv[0] without a slash is looked up in searchPath. With a slash it is a path
// as the program's working directory sees it: beneath the workspace if the call
// has one and the path leads there, with links followed as long as they stay
// there; else on the host, relative to the caller's directory.
//
// The file is held by descriptor from then on. It is "system" and used as it is
// if nobody but root can change it (pin.Handle.System) and it is not in the
// workspace; everything else is copied into sealed memory and the copy runs.
//
// A file that begins with #! is a script: its first line names an interpreter,
// which is found, opened and pinned in turn, up to maxScripts of them. Anything
// that is neither a script nor an ELF binary for this machine is refused: the
// host's binfmt_misc could otherwise run an interpreter that nobody has seen.
const (
	maxScripts    = 4         // Linux stops at five (fs/exec.c, exec_binprm)
	maxExecutable = 512 << 20 // bytes; a sealed copy is memory
	shebangBytes  = 256       // BINPRM_BUF_SIZE
)

// program is a pinned program.
type program struct {
	exec    held
	scripts []capsule.Script
	read    []digests.Digest // how the digests of scripts were obtained
	held    []held           // scripts and the loader, where they are used as they are
	loader  *capsule.File    // of exec; nil: it is static

	// libraries are the places where the loader looks for code that is not the
	// system's.
	libraries []string
	script    *pin.Sealed // the script that is not; at most one
	argv      []string    // what execve of the binary gets
}

// held is an open file with what it was when it was hashed.
type held struct {
	what   string
	named  string // of a loader: the path that the kernel will open, else ""
	file   *os.File
	stat   pin.Stat
	record capsule.File
	digest digests.Digest // how record.Digest was obtained
}

// recheck refuses if a file that is used as it is has changed.
func (h *held) recheck() error {
	if h.record.Pinned != capsule.PinnedSystem {
		return nil
	}
	err := pin.Changed(h.file, h.stat)
	if err == nil && h.named != "" {
		// A file that was put in its place leaves the old one as it was.
		var now *pin.Handle
		if now, err = pin.At(nil, h.named, pin.Anywhere); err == nil {
			if !now.Stat.Same(h.stat) {
				err = pin.ErrChanged
			}
			now.Close()
		}
	}
	if err != nil {
		return fault.New(fault.Refused, "executable_changed", fmt.Sprintf("check %s %q", h.what, h.record.Path), err).
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

// place is where paths of a call are looked up.
type place struct {
	dir       *pin.Handle // the caller's directory, nil if not given
	workspace *pin.Handle // nil: private
	view      string      // where the program sees the workspace
	cwd       string      // where the program starts, beneath view
	digests   *digests.Cache
	hold      *budget.Hold // pays for sealed copies
}

// below returns the part of name beneath root.
func below(root, name string) (rel string, ok bool) {
	if name == root {
		return ".", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(root, "/")+"/")
}

// beneath maps a path as the program spells it to one relative to the
// workspace. Without ".." or where nothing before it is a link of the workspace,
// that is exact; where ".." leads out of the workspace and back, the text decides.
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

// shown is the path of a held file for capsule and policy.
func (p *place) shown(h *pin.Handle) string {
	if p.workspace != nil {
		if rel, ok := below(p.workspace.Path, h.Path); ok {
			return path.Join(p.view, rel)
		}
	}
	return h.Path
}

// inWorkspace reports whether the held file lies beneath the workspace.
func (p *place) inWorkspace(h *pin.Handle) bool {
	if p.workspace == nil {
		return false
	}
	_, ok := below(p.workspace.Path, h.Path)
	return ok
}

// find opens the file that a path with a slash names.
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

// search looks a bare name up as execvp does: the first file that can be
// executed, and if there is none the first obstacle that is not absence.
func (p *place) search(name string) (*pin.Handle, error) {
	obstacle := fs.ErrNotExist
	for dir := range strings.SplitSeq(searchPath, ":") {
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

// lookup finds the program that argv[0] names.
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
		f := fault.New(fault.NotFound, "program_not_found", op, err)
		if !strings.Contains(name, "/") {
			f = f.WithHint("bare names are looked up in " + searchPath + " only; name other programs by path")
		}
		return nil, f
	case errors.Is(err, syscall.EXDEV):
		return nil, fault.New(fault.NotExec, "program_outside_workspace", op, errors.New("a link leads out of the workspace"))
	case errors.Is(err, syscall.ELOOP):
		return nil, fault.New(fault.NotExec, "program_link", op, errors.New("too many links, or one of /proc"))
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.New(fault.NotExec, "program_unreachable", op, err)
	}
	return nil, fault.New(fault.NotExec, "program_lookup", op, err)
}

// open checks that a found file is one to run and opens it.
func (p *place) open(h *pin.Handle) (*os.File, error) {
	no := func(reason string, err error) error {
		return fault.New(fault.NotExec, reason, fmt.Sprintf("open program %q", p.shown(h)), err)
	}
	switch m := h.Stat.Mode; {
	case m.IsDir():
		return nil, no("program_is_directory", errors.New("is a directory"))
	case !m.IsRegular():
		return nil, no("program_not_regular", errors.New("is a FIFO, socket or device"))
	case h.Stat.Size == 0:
		return nil, no("program_empty", errors.New("is empty"))
	case h.Stat.Size > maxExecutable:
		return nil, no("program_too_large", fmt.Errorf("%d bytes, limit %d", h.Stat.Size, maxExecutable))
	}
	if err := h.Executable(); err != nil {
		return nil, no("program_not_executable", err)
	}
	f, err := h.Open()
	if err != nil {
		// What cannot be read cannot be hashed, and what is not hashed does not run.
		return nil, no("program_unreadable", err)
	}
	return f, nil
}

// pin hashes an open file and decides how it is held. The returned held has the
// file to use; if that is a sealed copy, f is closed.
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
			return held{}, nil, orCanceled(op(), err, fault.New(fault.Unavailable, "program_changed", op(), err))
		}
		r.Digest, r.Size = d.Sum, d.Size
		return held{what: what, file: f, stat: h.Stat, record: r, digest: d}, nil, nil
	}
	defer f.Close()
	now, size := time.Now(), h.Stat.Size // at most maxExecutable: see open
	if err := p.hold.Grow(size); err != nil {
		return held{}, nil, err
	}
	s, err := pin.Seal(ctx, "palyra-"+what, io.NewSectionReader(f, 0, 1<<62), size, perm)
	if errors.Is(err, pin.ErrTooLarge) {
		return held{}, nil, fault.New(fault.Unavailable, "program_changed", op(), pin.ErrChanged)
	}
	if err != nil {
		return held{}, nil, sealFault(op(), err)
	}
	if s.Size == 0 {
		s.File.Close()
		return held{}, nil, fault.New(fault.NotExec, "program_empty", op(), errors.New("is empty"))
	}
	r.Pinned, r.Digest, r.Size = capsule.PinnedSealed, s.Digest, s.Size
	d := digests.Digest{Sum: s.Digest, Size: s.Size, Hashed: now}
	return held{what: what, file: s.File, stat: h.Stat, record: r, digest: d}, s, nil
}

// program finds, opens and pins what argv names.
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
			// The file may have become another meanwhile: what counts is what was pinned.
			if prog.exec, _, err = p.pin(ctx, h, f, "program", 0o555); err == nil {
				err = p.image(ctx, prog)
			}
			return prog, err
		}
		if depth == maxScripts {
			f.Close()
			return nil, fault.New(fault.NotExec, "script_too_deep", fmt.Sprintf("read script %q", p.shown(h)),
				fmt.Errorf("more than %d scripts, or a loop", maxScripts))
		}
		next, err := p.addScript(ctx, prog, h, f)
		if err != nil {
			return nil, err
		}
		h.Close()
		h = next
	}
}

// head reads what the kernel looks at: the first bytes, padded with zeros.
func (p *place) head(f *os.File, h *pin.Handle) ([]byte, error) {
	b := make([]byte, shebangBytes)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, fault.New(fault.NotExec, "program_unreadable", fmt.Sprintf("read program %q", p.shown(h)), err)
	}
	return b, nil
}

func isScript(head []byte) bool { return head[0] == '#' && head[1] == '!' }

// addScript pins the script f and finds its interpreter.
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
		// One descriptor is handed to the program: that of the outermost script.
		sealed.File.Close()
		return nil, fault.New(fault.NotExec, "script_interpreter_is_script", fmt.Sprintf("read script %q", got.record.Path),
			errors.New("interprets another script and is not a file of the system"))
	}
	// Parse what was pinned, not what was looked at before.
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
		return nil, fault.New(fault.NotExec, "script_line", op, err)
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

	// As fs/binfmt_script.c does: argv[0] goes, and in its place come the
	// interpreter, its argument and the path of the script.
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
		return nil, fault.New(fault.NotExec, "script_interpreter", op, err)
	}
	return next, nil
}

// parseShebang reads a script's first line from the first shebangBytes of the
// file, padded with zeros, as load_script in fs/binfmt_script.c does it.
func parseShebang(buf []byte) (interp string, arg *string, err error) {
	if len(buf) != shebangBytes || !isScript(buf) {
		return "", nil, errors.New("does not begin with #! as scripts do")
	}
	blank := func(c byte) bool { return c == ' ' || c == '\t' }
	// Both return last+1 if there is none; last is included, as in the kernel.
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
	// strnchr stops at a NUL: a newline beyond one does not count.
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
		// Without a blank or a NUL behind it the name may be cut off.
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
