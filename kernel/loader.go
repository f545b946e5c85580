package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/elf"
	"palyra/kernel/internal/pin"
)

// The headers of a program make the kernel and the loader run further code.
//
// A binary that isn't static names its loader (PT_INTERP), which the kernel starts in its
// place. The kernel opens the loader by its path while the program starts, so no sealed copy
// can stand in for it, and it must be a file of the system. The capsule lists the places where
// the loader looks for libraries, unless they are the system's own.

func (p *place) image(ctx context.Context, prog *program) error {
	name := prog.exec.record.Path
	x, err := elf.Read(prog.exec.file, prog.exec.record.Size)
	if err != nil {
		return fault.New(fault.NotExec, "program_not_executable", fmt.Sprintf("read program %q", name), err)
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

func (p *place) loader(ctx context.Context, program, name string) (held, error) {
	no := func(reason string, err error) (held, error) {
		return held{}, fault.New(fault.NotExec, reason, fmt.Sprintf("find loader %q of program %q", clip(name), program), err).
			WithHint("link the program statically or to the loader of the system (PT_INTERP)")
	}
	if err := checkText("name of the program's loader", name); err != nil {
		return held{}, err
	}
	if !path.IsAbs(name) || p.changeable(name) {
		return no("program_not_executable", errors.New("the call or others can put another file there"))
	}
	h, err := pin.At(nil, name, pin.Anywhere)
	switch {
	case fault.KindOf(err) == fault.Unsupported:
		return held{}, err
	case err != nil:
		return no("program_not_executable", err)
	}
	defer h.Close()
	if !h.Stat.Mode.IsRegular() || !p.roots(h) {
		return no("program_not_executable", errors.New("not root's alone, or in the workspace"))
	}
	f, err := p.open(h)
	if err != nil {
		return held{}, err
	}
	head, err := p.head(f, h)
	if err == nil {
		if err = elf.Check(head); err != nil {
			_, err = no("program_not_executable", err)
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
	} else { // other files are read each time
		l.digest.Sum, l.digest.Size, err = pin.Digest(ctx, f, maxExecutable)
	}
	if err == nil {
		err = pin.Changed(f, h.Stat)
	}
	if err != nil {
		f.Close()
		op := fmt.Sprintf("read loader %q", h.Path)
		return held{}, orCanceled(op, err, fault.New(fault.Unavailable, "changed", op, err).WithHint(hintUpdate))
	}
	l.record.Digest, l.record.Size = l.digest.Sum, l.digest.Size
	return l, nil
}

// systemFolders are folders in which only the host's root puts files.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// roots reports whether a file or folder belongs to root alone and isn't in the workspace. If
// root isn't mapped, the owner doesn't tell its files from those of others; in the system's
// folders they are root's.
func (p *place) roots(h *pin.Handle) bool {
	if p.inWorkspace(h) || p.changeable(h.Path) {
		return false
	}
	return rootOwns(h)
}

// rootOwns is roots for a path of the host, whatever the program sees there.
func rootOwns(h *pin.Handle) bool {
	return h.Settled() || slices.ContainsFunc(systemFolders, func(dir string) bool { _, ok := below(dir, h.Path); return ok }) && h.Unmapped()
}

// writable are the folders of a cell whose content differs from the host's, or that the program
// can write to.
var writable = []string{"/tmp", "/dev", "/proc", view, isolate.CacheRoot}

// changeable reports whether an absolute path may lead, as the program sees it, to a place that
// the call can write. It goes by the text alone; with ".." it may.
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

// settled reports whether neither the call nor another user of the host can change where a path
// leads: root alone owns it and every folder above it. A path that leads nowhere is settled if
// only root can create it.
func (p *place) settled(name string) bool {
	if !path.IsAbs(name) || len(name) > maxPath || p.changeable(name) || !p.step(strings.Count(name, "/")) {
		return false
	}
	h, err := nearest(path.Clean(name))
	if err != nil {
		return false
	}
	defer h.Close()
	return p.roots(h)
}

// fixed reports whether only the host's root can change where a path of the host leads.
func (p *place) fixed(name string) bool {
	h, err := nearest(name)
	if err != nil {
		return false
	}
	defer h.Close()
	return rootOwns(h)
}

// nearest opens the file or folder at a clean path, or, if that is missing, the last existing
// folder on the way.
func nearest(name string) (*pin.Handle, error) {
	h, err := pin.At(nil, name, pin.Anywhere)
	if err == nil || !absent(err) {
		return h, err
	}
	// The last existing element may be a dangling link that leads somewhere where the program
	// is. Then it can't be opened.
	way := elements(name)
	there := sort.Search(len(way), func(i int) bool {
		_, err := os.Lstat("/" + path.Join(way[:i+1]...))
		return err != nil
	})
	return pin.At(nil, "/"+path.Join(way[:there]...), pin.Anywhere)
}

// straight spells an absolute path without "..", as the kernel follows it: an element before
// ".." may be a link, and then the text alone leads elsewhere. It isn't ok if users other than
// root can change that element.
func (p *place) straight(name string) (plain string, ok bool) {
	if len(name) > maxPath || !p.step(strings.Count(name, "/")) { // no program opens it, and each element costs
		return "", false
	}
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
			if err != nil { // it doesn't exist, so nothing is beyond it
				return plain, absent(err)
			}
			plain = path.Dir(h.Path)
			h.Close()
		}
	}
	return plain, true
}

// maxLibraries bounds the places for libraries, other than the system's own, that a program may
// name.
const maxLibraries = 64

// longerOrigin reports whether "$ORIGIN" begins a longer word in name.
func longerOrigin(name string) bool {
	word := func(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }
	for i, rest := range strings.Split(name, "$ORIGIN") {
		if i > 0 && rest != "" && word(rest[0]) {
			return true
		}
	}
	return false
}

// looseLibraries returns the places for libraries in a program's headers whose content, as the
// program sees it, isn't the system's. $ORIGIN is the program's folder, or the root, because a
// sealed copy is in no folder.
func (p *place) looseLibraries(program string, names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		no := func(format string, n int) error {
			return fault.New(fault.NotExec, "program_not_executable", fmt.Sprintf("read program %q", program), fmt.Errorf(format, n))
		}
		origins := strings.Count(name, "$ORIGIN") + strings.Count(name, "${ORIGIN}")
		if len(name)+origins*len(program) > maxPath { // before they are expanded
			return nil, no("names a place for libraries of more than %d bytes", maxPath)
		}
		tries := []string{name}
		if origins > 0 {
			tries = nil
			for _, origin := range []string{path.Dir(program), "/"} {
				tries = append(tries, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(name))
			}
			if longerOrigin(name) { // glibc takes that for the name of a folder
				tries = append(tries, name)
			}
		}
		for _, t := range tries {
			if !path.IsAbs(t) {
				t = p.cwd + "/" + t
			}
			if err := p.tired("find the program's libraries"); err != nil {
				return nil, err
			}
			// $LIB and $PLATFORM may stand for several folders, which a later ".." leaves.
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
				return nil, no("names more than %d places for libraries that are not the system's", maxLibraries)
			}
		}
	}
	return out, p.tired("find the program's libraries")
}
