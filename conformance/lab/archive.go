package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// keyring holds the keys that sign the archive's index; a package whose digest
// is not in an index that one of them signed is not used.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// archive is one release of Debian for one architecture, in a state of apt's of
// its own. The machine that this runs on says where the archive is.
type archive struct {
	dir, arch string
	opts      []string
}

// mirror is the place where this machine's apt finds Debian. An apt that has read no index
// yet doesn't know which of its archives that is: it reads them then, into work.
func mirror(work string) (string, error) {
	lists := filepath.Join(work, "apt/lists")
	own := []string{"-q", "-o", "Dir::State::Lists=" + lists, "-o", "Dir::Cache=" + lists, "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
		"-o", "Acquire::Languages=none", "-o", "APT::Update::Error-Mode=any"}
	var broken error
	for _, opts := range [][]string{nil, own} {
		if opts != nil {
			if err := os.MkdirAll(lists+"/partial", 0o755); err != nil {
				return "", err
			}
			// It may be of an archive that isn't Debian's.
			broken = reach(quiet("apt-get", append(slices.Clone(opts), "update")...))
		}
		out, err := exec.Command("apt-get", append(slices.Clone(opts), "indextargets", "--format", "$(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")...).Output()
		if err != nil {
			return "", fmt.Errorf("apt-get indextargets: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Debian" && f[1] == "main" {
				return f[2], nil
			}
		}
	}
	return "", errors.Join(errors.New("apt knows no archive of Debian"), broken)
}

// keep is how long an index and its downloads are used.
const keep = 7 * 24 * time.Hour

// newArchive is an archive whose state is in dir, which has nothing yet.
func newArchive(dir, arch string) *archive {
	a := &archive{dir: dir, arch: arch}
	a.opts = []string{"-q", "-o", "Dir::Etc::sourcelist=" + a.dir + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State=" + a.dir + "/state", "-o", "Dir::State::Lists=" + a.dir + "/state/lists", "-o", "Dir::State::status=" + a.dir + "/status", "-o", "Dir::Cache=" + a.dir + "/cache",
		"-o", "APT::Architecture=" + arch, "-o", "APT::Architectures::=" + arch, "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false", "-o", "Acquire::Languages=none", "-o", "APT::Install-Recommends=false",
		// A release that is no longer changed has an index whose date has passed.
		"-o", "Acquire::Check-Valid-Until=false"}
	return a
}

// open reads the signed index of a release, if that of an earlier run is too old.
func (l *lab) open(suite, arch string) (*archive, error) {
	a := newArchive(filepath.Join(l.work, "apt", suite+"-"+arch), arch)
	if made, err := os.Stat(filepath.Join(a.dir, "read")); err == nil && time.Since(made.ModTime()) < keep {
		return a, nil
	}
	if l.gone != nil { // apt's patience is long, and there are seven machines
		return nil, l.gone
	}
	// The archive forgets old packages, and the index of a week ago names them.
	if err := os.RemoveAll(a.dir); err != nil {
		return nil, err
	}
	uri, err := mirror(l.work)
	if err == nil {
		err = a.read(suite, uri)
	}
	if err != nil {
		err = fmt.Errorf("index of %s, %s: %w", suite, arch, err)
		if away(err) != "" {
			l.gone = err
		}
		return nil, err
	}
	return a, os.WriteFile(filepath.Join(a.dir, "read"), nil, 0o644)
}

// read reads the signed index of a release from an address.
func (a *archive) read(suite, uri string) (err error) {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(a.dir, d), 0o755))
	}
	err = errors.Join(err, os.WriteFile(a.dir+"/status", nil, 0o644),
		os.WriteFile(a.dir+"/sources.list", fmt.Appendf(nil, "deb [signed-by=%s] %s %s main\n", keyring, uri, suite), 0o644))
	if err != nil {
		return err
	}
	// Any index that could not be read or whose signature is not good is an error.
	return reach(quiet("apt-get", append(slices.Clone(a.opts), "-o", "APT::Update::Error-Mode=any", "update")...))
}

// with downloads packages and their dependencies, as for an empty machine, and returns the
// files.
func (a *archive) with(packages ...string) ([]string, error) {
	args := append(slices.Clone(a.opts), "-y", "--download-only", "install")
	if err := reach(quiet("apt-get", append(args, packages...)...)); err != nil {
		return nil, err
	}
	out, err := exec.Command("apt-get", append(append(slices.Clone(a.opts), "-q", "--print-uris", "-y", "-o", "Dir::Cache::archives="+a.dir+"/none", "install"), packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get --print-uris: %w", err)
	}
	after, err := a.files()
	if err != nil {
		return nil, err
	}
	var debs []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[0], "'") {
			debs = append(debs, filepath.Join(a.dir, "cache/archives", f[1]))
		}
	}
	for _, d := range debs {
		if !slices.Contains(after, d) {
			return nil, fmt.Errorf("download %s: it is not there", filepath.Base(d))
		}
	}
	if len(debs) == 0 {
		return nil, fmt.Errorf("download %v: no packages", packages)
	}
	return debs, nil
}

func (a *archive) files() ([]string, error) {
	return filepath.Glob(filepath.Join(a.dir, "cache/archives/*.deb"))
}

// kernel unpacks the newest kernel of a flavour, such as "cloud-amd64", and
// returns the directory.
func (a *archive) kernel(flavour string) (string, error) {
	dir := filepath.Join(a.dir, "kernel")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	out, err := exec.Command("apt-cache", append(slices.Clone(a.opts), "depends", "linux-image-"+flavour)...).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends: %w", err)
	}
	name := ""
	for line := range strings.Lines(string(out)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			name = "linux-image-" + n
		}
	}
	if name == "" {
		return "", fmt.Errorf("linux-image-%s names no kernel", flavour)
	}
	cmd := exec.Command("apt-get", append(slices.Clone(a.opts), "download", name)...)
	cmd.Dir = a.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", reach(fmt.Errorf("apt-get download %s: %w: %s", name, err, out))
	}
	debs, err := filepath.Glob(filepath.Join(a.dir, name+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download %s: %d packages, %v", name, len(debs), err)
	}
	tmp := dir + ".part"
	if err := errors.Join(os.RemoveAll(tmp), quiet("dpkg-deb", "-x", debs[0], tmp)); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

// kernelPackage names what kernel has unpacked: "linux-image-6.1.0-9-amd64_6.1.27-1_amd64".
func (a *archive) kernelPackage() string {
	debs, err := filepath.Glob(filepath.Join(a.dir, "linux-image-*.deb"))
	if err != nil || len(debs) != 1 {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(debs[0]), ".deb")
}

// image finds the kernel and the modules to load, in their order, in what
// kernel has unpacked. A module that is not there is built in.
func image(dir string, names []string) (vmlinuz string, modules []string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "boot/vmlinu*-*"))
	if err != nil || len(found) != 1 {
		return "", nil, fmt.Errorf("%s has %d kernels, %v", dir, len(found), err)
	}
	at := make(map[string]string)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name, rest, ok := strings.Cut(filepath.Base(path), ".ko"); err == nil && ok && !d.IsDir() && (rest == "" || rest == ".xz") {
			at[name] = path
		}
		return err
	})
	for _, n := range names {
		if p := at[n]; p != "" {
			modules = append(modules, p)
		}
	}
	return found[0], modules, err
}

// unpack lays the content of packages out in root, without their scripts and without the
// files that the lab doesn't use.
func unpack(root string, debs []string) error {
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr", d), 0o755), os.Symlink("usr/"+d, filepath.Join(root, d))); err != nil {
			return err
		}
	}
	for _, deb := range debs {
		from := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
		to := exec.Command("tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-p", "-C", root, "--exclude=./usr/share/doc", "--exclude=./usr/share/man",
			"--exclude=./usr/share/locale", "--exclude=./usr/share/info", "--exclude=./usr/lib/*/gconv", "--exclude=./usr/share/perl5", "--exclude=./usr/lib/udev/hwdb.d")
		pipe, err := from.StdoutPipe()
		if err != nil {
			return err
		}
		to.Stdin, to.Stderr, from.Stderr = pipe, os.Stderr, os.Stderr
		if err := errors.Join(to.Start(), from.Start()); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
		if err := errors.Join(to.Wait(), from.Wait()); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return nil
}

// quiet runs a command and shows its output only if it failed.
func quiet(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
