package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// bundles are the files in folders that the template shows (etcDirs) that programs read all roots
// from: those of Debian, Alpine and Arch, of SUSE, and of Fedora.
var bundles = [...]string{"/etc/ssl/certs/ca-bundle.crt", "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"}

// hostBundles are where hosts have a file with their roots, as Go's crypto/x509 looks for it.
var hostBundles = [...]string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"}

const (
	maxBundle = 4 << 20 // bytes; Debian's has 220 KiB
	rootsMode = 0o444
	rootsOp   = "make the file of roots"
)

// roots are the roots of a call with an authority of its own.
type roots struct {
	text    []byte // those of the host, then the authority; nil once the gate has compared them
	host    int    // bytes of the first
	covered []string
}

// ownRoots makes the tmpfs with the file of roots, and has the tape mount that file over the
// bundles that the cell sees. All of it is read-only before the program is born, and gone with the
// cell's mounts.
func (r *run) ownRoots(c *native.Cell) error {
	if r.spec.Egress == nil || !r.spec.Egress.Roots {
		return nil
	}
	x := new(roots)
	var err error
	elsewhere(func() { err = r.readRoots(x) })
	if err != nil {
		return err
	}
	size := (int64(len(x.text))/int64(os.Getpagesize()) + 2) * int64(os.Getpagesize())
	m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec, "mode", "0555", "size", strconv.FormatInt(size, 10), "nr_inodes", "2")
	if err != nil {
		return refuse("cell_start", rootsOp, err)
	}
	if _, err := r.place(c, "roots", isolate.RootsDir, m, "r"); err != nil { // the rule for the template covers it
		return err
	}
	if err := writeRoots(m, x.text); err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", rootsOp, err)
	}
	if err := sys.SetAttr(m, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec); err != nil {
		return refuse("cell_start", rootsOp, err)
	}
	r.roots, c.Bundles = x, x.covered
	return nil
}

// readRoots reads the host's roots and the call's, and looks which bundles the cell sees.
func (r *run) readRoots(x *roots) error {
	host, err := hostRoots()
	if err != nil {
		return fault.New(fault.Refused, "cell_start", rootsOp, err)
	}
	var own []byte
	if r.files.roots >= 0 { // not in a plan
		if own, err = sys.ReadAll(r.files.roots, isolate.MaxRoots); err == nil {
			err = isolate.CheckRoots(own)
		}
		if err != nil {
			return fault.New(fault.Usage, "invalid_input", rootsOp, err)
		}
	}
	if n := len(host); n > 0 && host[n-1] != '\n' {
		host = append(host, '\n')
	}
	x.text, x.host = append(host, own...), len(host)
	for _, at := range bundles {
		if !slices.ContainsFunc(r.s.shown, func(s shown) bool { return below(s.path, at) }) {
			continue
		}
		// Links lead to a bundle that is covered itself, or out of what the cell shows.
		if fi, err := os.Lstat(at); err == nil && fi.Mode().IsRegular() {
			x.covered = append(x.covered, at)
		}
	}
	return nil
}

// hostRoots returns the host's roots, none if it has no file with them.
func hostRoots() ([]byte, error) {
	for _, at := range hostBundles {
		f, err := os.Open(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
		f.Close()
		if err == nil && len(b) > maxBundle {
			err = fmt.Errorf("roots in %s: more than %d bytes", at, maxBundle)
		}
		return b, err
	}
	return nil, nil
}

func writeRoots(dir *os.File, text []byte) error {
	f, err := sys.CreateAt(dir, path.Base(isolate.RootsFile))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Chmod(rootsMode)
}

// checkRoots requires the program to see the same file of roots at each place where it was ordered,
// and reads it there.
func (p *process) checkRoots() error {
	if p.roots == nil {
		return nil
	}
	files := append([]string{isolate.RootsFile}, p.roots.covered...)
	var first syscall.Stat_t
	for i, at := range files {
		var st syscall.Stat_t
		name := "/proc/" + strconv.Itoa(p.pid) + "/root" + at
		if err := syscall.Stat(name, &st); err != nil {
			return fmt.Errorf("stat %s: %w", at, err)
		}
		if i == 0 {
			first = st
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if !bytes.Equal(text, p.roots.text) || st.Mode != syscall.S_IFREG|rootsMode {
				return fmt.Errorf("%s is another file than was made", at)
			}
		}
		if st.Dev != first.Dev || st.Ino != first.Ino {
			return fmt.Errorf("%s is another file than %s", at, isolate.RootsFile)
		}
	}
	slices.Sort(files)
	p.ev.Roots = evidence.Roots{Basis: evidence.Observed, Authority: canon.Sum(p.roots.text[p.roots.host:]), Files: files}
	p.roots.text = nil
	return nil
}
