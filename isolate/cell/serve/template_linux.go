package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/isolate"
	"palyra/isolate/egress/handover"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// The template is the root that every cell is a copy of: a small read-only tmpfs with the
// host's /usr, a few files of /etc, five device nodes and a proc. The launcher thread builds it
// once, in a mount namespace of its own.

// etcFiles are the files of /etc that programs need and that hold nothing private.
var etcFiles = []string{
	"ld.so.cache", "ld.so.conf", "localtime", "timezone", "protocols", "services", "host.conf",
	"gai.conf", "mime.types", "locale.alias", "debian_version", "os-release", "inputrc",
}

// etcDirs are shown read-only; patterns of filepath.Match. The two of pki are where Fedora's roots
// are, to which its /etc/ssl/certs and the bundles in that are links.
var etcDirs = []string{"alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "java-*", "ld.so.conf.d", "fonts"}

// foldersBelow returns those of etcDirs that are below root/etc: folders, and links to a folder
// there or in root/usr.
func foldersBelow(root string) (out []string, err error) {
	etc := filepath.Join(root, "etc")
	for _, pattern := range etcDirs {
		found, err := filepath.Glob(filepath.Join(etc, pattern))
		if err != nil {
			return nil, err
		}
		for _, at := range found {
			to, err := filepath.EvalSymlinks(at)
			if err != nil {
				continue // it leads nowhere
			}
			if fi, err := os.Stat(to); err != nil || !fi.IsDir() || !strings.HasPrefix(to, etc+"/") && !strings.HasPrefix(to, filepath.Join(root, "usr")+"/") {
				continue
			}
			out = append(out, at)
		}
	}
	return out, nil
}

// etcMade are files that we write: the cell has one user, and if it has egress one name server, in
// place of whatever services the host asks. In other cells a question to it fails at once.
var etcMade = map[string]string{
	"passwd":   fmt.Sprintf("root:x:0:0:root:/:/usr/sbin/nologin\npalyra:x:%[1]d:%[1]d:palyra:/workspace:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", native.InnerID),
	"group":    fmt.Sprintf("root:x:0:\npalyra:x:%d:\nnogroup:x:65534:\n", native.InnerID),
	"hosts":    "127.0.0.1 localhost " + native.Hostname + "\n::1 localhost\n",
	"hostname": native.Hostname + "\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
		"services: files\nprotocols: files\nrpc: files\nethers: files\n",
	"resolv.conf": "nameserver " + handover.Resolver + "\n",
}

// linked returns where the link at leads, if that is in /usr or in another of the folders; else "".
func linked(at string, folders []string) string {
	to, err := filepath.EvalSymlinks(at)
	if err != nil || to == at {
		return ""
	}
	if below("/usr", to) || slices.ContainsFunc(folders, func(f string) bool { return f != at && below(f, to) }) {
		return to
	}
	return ""
}

// topLevel are links, or directories, that lead into /usr.
var topLevel = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

var devices = []string{"null", "zero", "full", "random", "urandom"}

// devLinks are links. That of ptmx leads nowhere but in a cell with a terminal (terminal_linux.go).
var devLinks = map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}

type part struct {
	path string   // below the root, "usr", "etc/alternatives"
	tree *os.File // detached mount, or nil
	link string   // symbolic link target, or ""
	dir  bool     // whether tree is a directory
	exec bool     // programs in tree can be executed
	data []byte   // content of a plain file, if tree is nil and link empty
}

// collect clones the host's parts of the template. It runs in the host's mount namespace.
func collect() (parts []part, err error) {
	add := func(path string, dir, exec bool) error {
		tree, err := sys.OpenTree(-100, "/"+path, true)
		if err != nil {
			return err
		}
		attrs := uint64(sys.AttrReadOnly | sys.AttrNoSUID)
		if !strings.HasPrefix(path, "dev/") {
			attrs |= sys.AttrNoDev
		}
		if !exec {
			attrs |= sys.AttrNoExec
		}
		if err := sys.SetAttr(tree, attrs); err != nil {
			tree.Close()
			return fmt.Errorf("%s: %w", path, err)
		}
		parts = append(parts, part{path: path, tree: tree, dir: dir, exec: exec})
		return nil
	}
	defer func() {
		if err != nil {
			closeParts(parts)
		}
	}()
	if err := add("usr", true, true); err != nil {
		return parts, err
	}
	for _, name := range topLevel {
		switch fi, err := os.Lstat("/" + name); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return parts, err
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink("/" + name)
			if err != nil {
				return parts, err
			}
			parts = append(parts, part{path: name, link: target})
		case fi.IsDir():
			if err := add(name, true, true); err != nil {
				return parts, err
			}
		}
	}
	for _, name := range etcFiles {
		// This follows links: their target may not be shown.
		b, err := os.ReadFile("/etc/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return parts, err
		}
		parts = append(parts, part{path: "etc/" + name, data: b})
	}
	folders, err := foldersBelow("/")
	if err != nil {
		return parts, err
	}
	for _, path := range folders {
		// Links in a folder may be relative, so it's shown where it is, if it's shown.
		if to := linked(path, folders); to != "" {
			parts = append(parts, part{path: path[1:], link: to})
			continue
		}
		if err := add(path[1:], true, false); err != nil {
			return parts, err
		}
	}
	for _, name := range devices {
		if err := add("dev/"+name, false, false); err != nil {
			return parts, err
		}
	}
	return parts, nil
}

func closeParts(parts []part) {
	for _, p := range parts {
		if p.tree != nil {
			p.tree.Close()
		}
	}
}

// build makes the template the root of the calling thread's mount namespace; settle does the
// slow rest. It must run on the launcher thread, after UnshareMounts. proc is a detached mount
// of a proc of our PID namespace: a cell in a user namespace may mount its own only while one
// is fully visible. top is the template's root alone, for palyra-cell to add folders to.
func build(parts []part, proc *os.File) (root, top *os.File, err error) {
	root, err = sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev, "mode", "0755", "size", "4m", "nr_inodes", "4096")
	if err != nil {
		return nil, nil, err
	}
	// pivot_root needs a mount point. This directory exists on every host, and we hold a clone
	// of its content already.
	const at = "/usr"
	if err := sys.MoveMount(root, at); err != nil {
		return nil, nil, err
	}
	if err := fill(at, parts, proc); err != nil {
		return nil, nil, err
	}
	if top, err = sys.OpenTree(int(root.Fd()), "", false); err != nil {
		return nil, nil, err
	}
	return root, top, sys.Pivot(root)
}

// settle finishes build: it detaches the host's mounts, which pivot_root left stacked on the
// new root, and makes the root read-only. No thread may clone before it succeeds.
func settle() error {
	if err := sys.DetachOldRoot(); err != nil {
		return err
	}
	return sys.ReadOnlyRoot()
}

func fill(at string, parts []part, proc *os.File) error {
	for _, d := range []string{"etc", "dev", "dev/shm", "dev/pts", "proc", "tmp", "workspace", isolate.RootsDir} {
		if err := os.MkdirAll(filepath.Join(at, d), 0o755); err != nil {
			return err
		}
	}
	for _, p := range parts {
		path := filepath.Join(at, p.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		var err error
		switch {
		case p.link != "":
			err = os.Symlink(p.link, path)
		case p.tree == nil:
			err = os.WriteFile(path, p.data, 0o644)
		case p.dir:
			if err = os.Mkdir(path, 0o755); err == nil {
				err = sys.MoveMount(p.tree, path)
			}
		default:
			if err = os.WriteFile(path, nil, 0o644); err == nil {
				err = sys.MoveMount(p.tree, path)
			}
		}
		if err != nil {
			return fmt.Errorf("template %s: %w", p.path, err)
		}
	}
	for name, text := range etcMade {
		if err := os.WriteFile(filepath.Join(at, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// What a cell's own /dev/tty is mounted on. No other cell's program can open it.
	if err := os.WriteFile(filepath.Join(at, "dev", "tty"), nil, 0); err != nil {
		return err
	}
	for name, target := range devLinks {
		if err := os.Symlink(target, filepath.Join(at, "dev", name)); err != nil {
			return err
		}
	}
	return sys.MoveMount(proc, filepath.Join(at, "proc"))
}
