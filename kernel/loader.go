package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"palyra/internal/fault"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/elf"
	"palyra/kernel/internal/pin"
)

// What the headers of a program make the kernel and the loader run besides it.
//
// A binary that is not static names its loader (PT_INTERP), which the kernel
// starts in its place. The loader must be a file of the system: it is opened by
// its path while the program starts, and no copy can stand in for it. Where it
// then looks for libraries is listed, unless that is the system's own.

// image looks at what the kernel and the loader will make of the pinned binary.
func (p *place) image(ctx context.Context, prog *program) error {
	name := prog.exec.record.Path
	x, err := elf.Read(prog.exec.file, prog.exec.record.Size)
	if err != nil {
		return fault.New(fault.NotExec, "program_format", fmt.Sprintf("read program %q", name), err)
	}
	if x.Loader == "" {
		return nil
	}
	l, err := p.loader(ctx, name, x.Loader)
	if err != nil {
		return err
	}
	prog.held, prog.loader = append(prog.held, l), &l.record
	prog.libraries, err = p.looseLibraries(name, x.Libraries)
	return err
}

// loader opens and hashes the loader that a program names.
func (p *place) loader(ctx context.Context, program, name string) (held, error) {
	no := func(reason string, err error) (held, error) {
		return held{}, fault.New(fault.NotExec, reason, fmt.Sprintf("find loader %q of program %q", clip(name), program), err).
			WithHint("link the program statically or to the loader of the system (PT_INTERP)")
	}
	if err := checkText("name of the program's loader", name); err != nil {
		return held{}, err
	}
	if !path.IsAbs(name) || p.changeable(name) {
		return no("loader_not_system", errors.New("the call or others can put another file there"))
	}
	h, err := pin.At(nil, name, pin.Anywhere)
	switch {
	case fault.KindOf(err) == fault.Unsupported:
		return held{}, err
	case err != nil:
		return no("loader_not_found", err)
	}
	defer h.Close()
	if !h.Stat.Mode.IsRegular() || !p.roots(h) {
		return no("loader_not_system", errors.New("not root's alone, or in the workspace"))
	}
	f, err := p.open(h)
	if err != nil {
		return held{}, err
	}
	head, err := p.head(f, h)
	if err == nil {
		if err = elf.Check(head); err != nil {
			_, err = no("loader_format", err)
		}
	}
	if err != nil {
		f.Close()
		return held{}, err
	}
	l := held{what: "loader", named: name, file: f, stat: h.Stat,
		record: capsule.File{Path: h.Path, Pinned: capsule.PinnedSystem}}
	if h.System() {
		l.digest, err = p.digests.Of(ctx, f, h.Stat, maxExecutable)
	} else { // what is not is read each time
		l.digest.Sum, l.digest.Size, err = pin.Digest(ctx, f, maxExecutable)
	}
	if err == nil {
		err = pin.Changed(f, h.Stat)
	}
	if err != nil {
		f.Close()
		op := fmt.Sprintf("read loader %q", h.Path)
		return held{}, orCanceled(op, err, fault.New(fault.Unavailable, "program_changed", op, err))
	}
	l.record.Digest, l.record.Size = l.digest.Sum, l.digest.Size
	return l, nil
}

// systemFolders are those in which only the host's root puts files.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// roots reports whether a file or folder is root's alone and not in the workspace.
// Where root is not mapped its files cannot be told from those of others by their
// owner; in the folders of the system they are root's.
func (p *place) roots(h *pin.Handle) bool {
	if p.inWorkspace(h) || p.changeable(h.Path) {
		return false
	}
	return h.Settled() || slices.ContainsFunc(systemFolders, func(dir string) bool { _, ok := below(dir, h.Path); return ok }) && h.Unmapped()
}

// writable are the folders of a cell that hold something else than the same
// folders of the host, or that the program itself can write to.
var writable = []string{"/tmp", "/dev", "/proc", view}

// changeable reports whether an absolute path may lead, as the program sees it,
// to what the call can write, by its text alone. With ".." it may.
func (p *place) changeable(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	for _, root := range append(writable[:len(writable):len(writable)], p.view) {
		if _, ok := below(root, path.Clean(name)); ok {
			return true
		}
	}
	return false
}

// settled reports whether neither the call nor another user of the host can
// change what a path leads to: it is root's alone, as every folder above it is.
// A path that leads to nothing is settled where only root can make it.
func (p *place) settled(name string) bool {
	if !path.IsAbs(name) || len(name) > 4095 || p.changeable(name) {
		return false
	}
	name = path.Clean(name)
	h, err := pin.At(nil, name, pin.Anywhere)
	if err == nil {
		defer h.Close()
		return p.roots(h)
	}
	if !absent(err) || name == "/" {
		return false
	}
	// A link to nothing may lead to something where the program is.
	if _, err := os.Lstat(name); err == nil || !absent(err) {
		return false
	}
	return p.settled(path.Dir(name))
}

// straight spells an absolute path without "..", as the kernel follows it: what
// comes before one may be a link, and then the text alone leads elsewhere. It
// is not ok where others than root can change what comes before.
func (p *place) straight(name string) (plain string, ok bool) {
	plain = "/"
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part != "..":
			plain = path.Join(plain, part)
		case plain == "/" || plain == p.view: // neither is a link
			plain = path.Dir(plain)
		case !p.settled(plain):
			return "", false
		default:
			h, err := pin.At(nil, plain, pin.Anywhere)
			if err != nil { // nothing is there, so nothing is behind it
				return plain, absent(err)
			}
			plain = path.Dir(h.Path)
			h.Close()
		}
	}
	return plain, true
}

// maxLibraries is how many places for libraries a program may name that are not
// the system's own.
const maxLibraries = 64

// longerOrigin reports whether a name has "$ORIGIN" as the beginning of a longer word.
func longerOrigin(name string) bool {
	word := func(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }
	for i, rest := range strings.Split(name, "$ORIGIN") {
		if i > 0 && rest != "" && word(rest[0]) {
			return true
		}
	}
	return false
}

// looseLibraries are those of the places named in the headers of a program whose
// content is not the system's, as the program sees them. $ORIGIN is the folder of
// the program, or the root: a sealed copy lies in no folder.
func (p *place) looseLibraries(program string, names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		tries := []string{name}
		if strings.Contains(name, "$ORIGIN") || strings.Contains(name, "${ORIGIN}") {
			tries = nil
			for _, origin := range []string{path.Dir(program), "/"} {
				tries = append(tries, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(name))
			}
			if longerOrigin(name) { // to glibc that is the name of a folder
				tries = append(tries, name)
			}
		}
		for _, t := range tries {
			if !path.IsAbs(t) {
				t = p.cwd + "/" + t
			}
			// $LIB and $PLATFORM may stand for several folders, which ".." then leaves.
			if plain, ok := p.straight(t); ok && !(strings.Contains(t, "$") && strings.Contains(t, "..")) {
				if t = plain; p.settled(t) {
					continue
				}
			}
			if slices.Contains(out, t) {
				continue
			}
			if err := checkText("names of libraries in the program", t); err != nil {
				return nil, err
			}
			if out = append(out, t); len(out) > maxLibraries {
				return nil, fault.New(fault.NotExec, "program_format", fmt.Sprintf("read program %q", program),
					fmt.Errorf("names more than %d places for libraries that are not the system's", maxLibraries))
			}
		}
	}
	return out, nil
}
