package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/hub/place"
)

// kit is what a project's commands need of this host beside the project. Only folders of the
// user's or root's count, and none that may hold credentials as a whole (~/.cargo, ~/.npm).
type kit struct {
	home                          string
	getenv                        func(string) string
	dir                           string // of the project
	mounts, caches, programs, env []string
}

// kitOf looks at what the project is made with and what there is for it.
func kitOf(dir, home string, getenv func(string) string) *kit {
	k := &kit{home: home, getenv: getenv, dir: dir}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		k.dir = real
	}
	for _, tool := range []struct {
		files []string
		find  func()
	}{
		{[]string{"go.mod", "go.work"}, k.golang},
		{[]string{"package.json"}, k.node},
		{[]string{"Cargo.toml"}, k.rust},
		{[]string{"pyproject.toml", "requirements.txt", "setup.py"}, k.python},
		{[]string{".git"}, k.git},
	} {
		if slices.ContainsFunc(tool.files, func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }) {
			tool.find()
		}
	}
	k.caches = append(k.caches, "home")
	slices.Sort(k.mounts)
	k.mounts = slices.Compact(k.mounts)
	all := slices.Clone(k.mounts)
	k.mounts = slices.DeleteFunc(k.mounts, func(m string) bool { // none may lie in another
		return slices.ContainsFunc(all, func(o string) bool { return o != m && inside(m, o) })
	})
	return k
}

func (k *kit) golang() {
	k.caches = append(k.caches, "go")
	root := k.program("go", "/usr/local/go/bin")
	if root != "" && !inside(root, "/usr") { // a copy runs, which doesn't find its own place
		k.env = append(k.env, "GOROOT="+root)
	}
	set := k.goEnv()
	path, _, _ := strings.Cut(set("GOPATH"), ":")
	if path == "" {
		path = filepath.Join(k.home, "go")
	}
	if at := k.mount(firstOf(set("GOMODCACHE"), filepath.Join(path, "pkg", "mod"))); at != "" {
		k.env = append(k.env, "GOMODCACHE="+at)
	}
	k.env = append(k.env, "GOPROXY=off") // says what is missing, where the network would time out
}

// goEnv returns what go env -w and the environment set.
func (k *kit) goEnv() func(string) string {
	base := k.getenv("XDG_CONFIG_HOME")
	if base == "" {
		base = filepath.Join(k.home, ".config")
	}
	written := map[string]string{}
	if b, err := os.ReadFile(firstOf(k.getenv("GOENV"), filepath.Join(base, "go", "env"))); err == nil {
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			name, value, _ := strings.Cut(s.Text(), "=")
			written[name] = value
		}
	}
	return func(name string) string { return firstOf(k.getenv(name), written[name]) }
}

func (k *kit) node() {
	k.caches = append(k.caches, "npm")
	k.program("node", "")
}

func (k *kit) rust() {
	home := firstOf(k.getenv("CARGO_HOME"), filepath.Join(k.home, ".cargo"))
	found := k.program("cargo", filepath.Join(home, "bin"))
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	mounted := found == home
	for _, part := range []string{"registry", "git"} {
		mounted = k.mount(filepath.Join(home, part)) != "" || mounted
	}
	if mounted {
		k.env = append(k.env, "CARGO_HOME="+home, "CARGO_NET_OFFLINE=true")
	}
	if at := k.mount(firstOf(k.getenv("RUSTUP_HOME"), filepath.Join(k.home, ".rustup"))); at != "" {
		k.env = append(k.env, "RUSTUP_HOME="+at)
	}
}

func (k *kit) python() {
	k.caches = append(k.caches, "pip")
	root := firstOf(k.getenv("PYENV_ROOT"), filepath.Join(k.home, ".pyenv"))
	if at := k.mount(root); at != "" {
		k.programs = append(k.programs, filepath.Join(at, "shims"), filepath.Join(at, "bin"))
		k.env = append(k.env, "PYENV_ROOT="+at)
	}
}

// searched are the folders where palyrad looks for programs anyway.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program finds a program by PATH, or else in a folder, declares its folder if palyrad wouldn't
// look there, and returns the folder above: that of the toolchain. A folder of the home directory
// that isn't a toolchain's own (~/bin, ~/.local/bin) shows itself alone.
func (k *kit) program(name, or string) string {
	for _, dir := range append(filepath.SplitList(k.getenv("PATH")), or) {
		if !filepath.IsAbs(dir) {
			continue
		}
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			continue
		}
		bin, err := filepath.EvalSymlinks(dir)
		if err != nil || slices.Contains(searched, filepath.Clean(dir)) || slices.Contains(searched, bin) {
			return ""
		}
		root := filepath.Dir(bin)
		show := root
		switch {
		case root == k.home || filepath.Base(root) == ".local" || filepath.Base(root) == ".cargo" || inside(k.home, root):
			show = bin
		case filepath.Base(bin) != "bin":
			root, show = bin, bin
		}
		if k.mount(show) == "" {
			return ""
		}
		if !slices.Contains(k.programs, bin) {
			k.programs = append(k.programs, bin)
		}
		return root
	}
	return ""
}

// mount declares a folder, if a cell can show it, and returns it without links, else "".
func (k *kit) mount(at string) string {
	real, err := filepath.EvalSymlinks(at)
	if err != nil || !filepath.IsAbs(real) || strings.ContainsAny(real, ":\n") {
		return ""
	}
	fi, err := os.Stat(real)
	switch {
	case err != nil || !fi.IsDir() || !ours(fi):
		return ""
	case inside(real, "/usr"): // every cell shows it
		return real
	case !showable(real), overlap(real, k.dir), overlap(real, place.StateDir(k.getenv)):
		return ""
	}
	k.mounts = append(k.mounts, real)
	return real
}

// cellsOwn are the top-level names at which a cell has files of its own.
var cellsOwn = []string{"bin", "caches", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr", "workspace"}

// showable reports whether a cell can show a folder at its own path.
func showable(at string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
	return top != "" && !slices.Contains(cellsOwn, top)
}

// inside reports whether a path is dir or lies in it, as text.
func inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func overlap(a, b string) bool { return inside(a, b) || inside(b, a) }

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// lines are the kit's in a workspace's table.
func (k *kit) lines() string {
	var out strings.Builder
	if showable(k.dir) {
		out.WriteString("own_path = true\n")
	}
	// Builds take more than the defaults. The preset coding asks about calls beyond these.
	out.WriteString("network = \"loopback\"\ntimeout = \"10m\"\ncpu = \"20m\"\nmemory = \"4GiB\"\npids = 1024\n")
	for _, l := range []struct {
		key    string
		values []string
	}{{"caches", k.caches}, {"mounts", k.mounts}, {"programs", k.programs}, {"env", k.env}} {
		if len(l.values) == 0 {
			continue
		}
		var list []string
		for _, v := range l.values {
			list = append(list, tomlString(v))
		}
		fmt.Fprintf(&out, "%s = [%s]\n", l.key, strings.Join(list, ", "))
	}
	return out.String()
}
