//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// away makes a home below a path that a cell can show; t.TempDir is mostly below /tmp.
func away(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "palyra-kit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestKit: what a project's files ask for and the user has is declared, and nothing else.
func TestKit(t *testing.T) {
	for name, c := range map[string]struct {
		files  string // of the home, in ~; one ending in / is a folder, others are programs
		links  string // from:to
		env    string
		marker string // of the project
		want   string
	}{
		"nothing": {"", "", "", "README", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["home"]
`},
		"go, of the user": {"sdk/go1.26/bin/go go/pkg/mod/", "", "PATH=~/sdk/go1.26/bin", "go.mod", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["go", "home"]
mounts = ["~/go/pkg/mod", "~/sdk/go1.26"]
programs = ["~/sdk/go1.26/bin"]
env = ["GOROOT=~/sdk/go1.26", "GOMODCACHE=~/go/pkg/mod", "GOPROXY=off"]
`},
		"go, moved by variables": {"m/ go/pkg/mod/ x/bin/go", "", "PATH=x:~/x/bin GOMODCACHE=~/m", "go.work", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["go", "home"]
mounts = ["~/m", "~/x"]
programs = ["~/x/bin"]
env = ["GOROOT=~/x", "GOMODCACHE=~/m", "GOPROXY=off"]
`},
		"node": {".nvm/v22/bin/node .npm/", "cur:.nvm/v22", "PATH=~/cur/bin", "package.json", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["npm", "home"]
mounts = ["~/.nvm/v22"]
programs = ["~/.nvm/v22/bin"]
`},
		"node, beside others": {"bin/node", "", "PATH=~/bin", "package.json", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["npm", "home"]
mounts = ["~/bin"]
programs = ["~/bin"]
`},
		"node, of the project": {"p/node_modules/.bin/node", "", "PATH=~/p/node_modules/.bin", "package.json", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["npm", "home"]
`},
		"rust": {".cargo/bin/cargo .cargo/registry/ .rustup/", "", "PATH=~/.cargo/bin", "Cargo.toml", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["home"]
mounts = ["~/.cargo/bin", "~/.cargo/registry", "~/.rustup"]
programs = ["~/.cargo/bin"]
env = ["CARGO_HOME=~/.cargo", "CARGO_NET_OFFLINE=true", "RUSTUP_HOME=~/.rustup"]
`},
		"python": {".pyenv/shims/python .pyenv/bin/pyenv", "", "PATH=~/.pyenv/shims", "pyproject.toml", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["pip", "home"]
mounts = ["~/.pyenv"]
programs = ["~/.pyenv/shims", "~/.pyenv/bin"]
env = ["PYENV_ROOT=~/.pyenv"]
`},
		"the state directory": {"go/pkg/mod/state/palyra/", "", "PATH=/none XDG_STATE_HOME=~/go/pkg/mod/state", "Cargo.toml", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["home"]
`},
		"a link that leads to what every cell has": {"", ".rustup:/etc", "PATH=/none", "Cargo.toml", `own_path = true
network = "loopback"
timeout = "10m"
cpu = "20m"
memory = "4GiB"
pids = 1024
caches = ["home"]
`},
	} {
		home := away(t)
		project := filepath.Join(home, "p")
		write(t, filepath.Join(project, c.marker), "")
		for f := range strings.FieldsSeq(c.files) {
			if at := filepath.Join(home, f); strings.HasSuffix(f, "/") {
				os.MkdirAll(at, 0o755)
			} else {
				write(t, at, "")
				os.Chmod(at, 0o755)
			}
		}
		for l := range strings.FieldsSeq(c.links) {
			from, to, _ := strings.Cut(l, ":")
			if !filepath.IsAbs(to) {
				to = filepath.Join(home, to)
			}
			if err := os.Symlink(to, filepath.Join(home, from)); err != nil {
				t.Fatal(err)
			}
		}
		env := map[string]string{"HOME": home}
		for e := range strings.FieldsSeq(c.env) {
			n, v, _ := strings.Cut(e, "=")
			env[n] = strings.ReplaceAll(v, "~", home)
		}
		k := kitOf(project, home, func(n string) string { return env[n] })
		got := strings.ReplaceAll(k.lines(), home, "~")
		if c.marker == "go.work" && !slices.Contains(k.programs, home+"/x/bin") {
			t.Errorf("%s: a relative folder of PATH counts", name)
		}
		if got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
	if k := kitOf("/tmp", "/nowhere", func(string) string { return "" }); strings.Contains(k.lines(), "own_path") {
		t.Errorf("a project where a cell has files of its own: %s", k.lines())
	}
}
