package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

const secretMode = 0o400

// secrets makes the tmpfs of the call's secrets, and copies each into a file that only the program
// may read. The mount is read-only before the program is born.
func (r *run) secrets(c *native.Cell, grants []landRule) ([]landRule, error) {
	if len(r.spec.Secrets) == 0 {
		return grants, nil
	}
	const op = "make the files of secrets"
	m, err := r.secretFS()
	if err != nil {
		return nil, refuse("cell_start", op, err)
	}
	g, err := r.place(c, "secrets", isolate.SecretsDir, m, "r")
	if err != nil {
		return nil, err
	}
	for i, name := range r.spec.Secrets {
		if err := r.secret(m, name, r.files.secrets[i]); err != nil {
			return nil, fault.New(fault.Unavailable, "resource_exhausted", op, err)
		}
	}
	if err := sys.SetAttr(m, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec); err != nil {
		return nil, refuse("cell_start", op, err)
	}
	r.given = m
	return append(grants, g), nil
}

// secretFS makes the file system: one that the kernel never swaps out, where it lets us. That
// takes the host's CAP_SYS_ADMIN, and 6.4.
func (r *run) secretFS() (*os.File, error) {
	opts := []string{"mode", "0500", "uid", utoa(r.uid), "gid", utoa(r.gid),
		"size", strconv.Itoa(len(r.spec.Secrets) * 2 * isolate.MaxSecretBytes), "nr_inodes", strconv.Itoa(len(r.spec.Secrets) + 1)}
	const attrs = sys.AttrNoSUID | sys.AttrNoDev | sys.AttrNoExec
	m, err := sys.NewFS("tmpfs", attrs, append(slices.Clip(opts), "noswap", "")...)
	if err != nil {
		r.ev.Degraded = append(r.ev.Degraded, "secrets: their files may be swapped out")
		m, err = sys.NewFS("tmpfs", attrs, opts...)
	}
	return m, err
}

func (r *run) secret(dir *os.File, name string, fd int) error {
	from, err := r.borrow(fd, "secret")
	if err != nil {
		return err
	}
	b := make([]byte, isolate.MaxSecretBytes+1)
	defer clear(b)
	n, err := io.NewSectionReader(from, 0, int64(len(b))).Read(b)
	if err != nil && err != io.EOF {
		return err
	}
	if n > isolate.MaxSecretBytes {
		return fmt.Errorf("more than %d bytes", isolate.MaxSecretBytes)
	}
	to, err := sys.CreateAt(dir, name)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := to.Write(b[:n]); err != nil {
		return err
	}
	return errors.Join(to.Chown(int(r.uid), int(r.gid)), to.Chmod(secretMode))
}

// checkSecrets reads back the folder that the program sees, and requires the files that were
// ordered, for the program's user alone.
func (p *process) checkSecrets() error {
	if len(p.spec.Secrets) == 0 {
		return nil
	}
	f, err := sys.FolderBeneath(int(p.given.Fd()), ".")
	if err != nil {
		return err
	}
	defer f.Close()
	dir, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return err
	}
	defer dir.Close()
	files, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for _, x := range files {
		i, err := x.Info()
		if err != nil {
			return err
		}
		st, ok := i.Sys().(*syscall.Stat_t)
		if !ok || i.Mode() != fs.FileMode(secretMode) || st.Uid != p.uid || st.Gid != p.gid {
			return fmt.Errorf("%s is %v", x.Name(), i.Mode())
		}
		names = append(names, x.Name())
	}
	slices.Sort(names)
	if !slices.Equal(names, p.spec.Secrets) {
		return fmt.Errorf("the files are %s", strings.Join(names, ", "))
	}
	p.ev.Secrets = evidence.Secrets{Basis: evidence.Observed, Files: names}
	return nil
}
