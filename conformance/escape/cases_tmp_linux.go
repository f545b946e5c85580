package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"palyra/isolate"
	"palyra/isolate/cache"
)

// tmpCases are 118: what the /tmp that a session's calls share could carry to calls that don't
// share it, to the host, or to another call beside files.
func tmpCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, set func(s *stage, cell options) (scene, error)) {
		out = append(out, attackCase{number: 118, variant: variant, name: "session-tmp", attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no caches"}, note: note,
			stage: func(s *stage) (scene, error) {
				ws, err := s.workspace()
				if err != nil {
					return scene{}, err
				}
				return set(s, options{workspace: ws, session: "one", caches: []string{isolate.CacheTmp}})
			}})
	}
	read := func(path, secret string, cell options) scene {
		return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}
	}
	// left has an earlier call of the session leave a secret in /tmp, and changes the call that wants
	// it.
	left := func(change func(s *stage, cell *options) error) func(s *stage, cell options) (scene, error) {
		return func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err != nil || !s.inside {
				return read(path, secret, cell), err
			}
			in := filepath.Join(cell.workspace, "secret")
			if err := os.Rename(path, in); err != nil {
				return scene{}, err
			}
			err = errors.Join(s.earlier(cell, "/bin/cp", "/workspace/secret", "/tmp/"+s.nonce), os.Remove(in), change(s, &cell))
			return read("/tmp/"+s.nonce, secret, cell), err
		}
	}
	add("other-session", "read what a call of another session left in the session's /tmp", notThere, "a /tmp is one session's",
		left(func(_ *stage, cell *options) error { cell.session = "two"; return nil }))
	add("other-workspace", "… a call of the same session in another workspace", notThere, "and one workspace's",
		left(func(s *stage, cell *options) (err error) {
			cell.workspace, err = s.folder("other", 0o755)
			return err
		}))
	add("not-asked", "… of the same session, without asking for its /tmp", notThere, "a call sees the caches that its capsule names",
		left(func(_ *stage, cell *options) error { cell.caches = nil; return nil }))
	add("beside", "read what lies beside it in the state directory", notThere, "the folder above is the root of the cell",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err == nil && s.inside {
				path = "/tmp/../cache.json"
			}
			return read(path, secret, cell), err
		})
	add("link", "read a host file through a link that an earlier call left there", notThere, "the link leads from the root of the cell",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err == nil && s.inside {
				err = s.earlier(cell, "/bin/ln", "-s", path, "/tmp/link")
				path = "/tmp/link"
			}
			return read(path, secret, cell), err
		})
	add("folder-link", "write to a host folder through a link that an earlier call left there", notThere, "",
		func(s *stage, cell options) (scene, error) {
			sc, err := writeScene(s, "create")
			if err == nil && s.inside {
				sc.args = []string{"how=create", "path=/tmp/link/bait"}
				err = s.earlier(cell, "/bin/ln", "-s", filepath.Join(s.dir, "shared"), "/tmp/link")
			}
			sc.opt = cell
			return sc, err
		})
	for _, n := range []struct {
		variant, attack, probe, how string
		made                        os.FileMode
	}{
		{"fifo", "leave a FIFO there, for another call to block on", "fifo", "mknod", os.ModeNamedPipe},
		{"device", "make a device node there", "device", "char", os.ModeDevice},
		{"setuid", "make a set-id file there", "setid", "chmod", os.ModeSetuid},
		{"setuid-open", "… by the mode of openat2", "setid", "openat2", os.ModeSetuid},
	} {
		stopped := filtered
		if n.variant == "setuid-open" {
			stopped = join([]string{"OPEN", "EACCES"}, filtered)
		}
		add(n.variant, n.attack, stopped, "", func(s *stage, cell options) (scene, error) {
			sc := scene{probe: n.probe, args: []string{"how=" + n.how, "chdir=/tmp"}, opt: cell}
			dir := func() (string, error) { return tmpOf(s, cell.workspace) }
			if !s.inside {
				own, err := s.folder("tmp", 0o777)
				if err != nil {
					return scene{}, err
				}
				sc.args[1] = "chdir=" + own
				dir = func() (string, error) { return own, nil }
			}
			sc.canary = func(*outcome) (bool, string) { return holds(dir, n.made) }
			return sc, nil
		})
	}
	for i, kind := range []string{"stream", "dgram"} {
		number := strconv.Itoa(i + 1)
		add("unix-"+kind, "reach the unix socket that a running call of the session has there", []string{"ECONNREFUSED", "EPERM", "EACCES", "ENOENT", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"},
			"no rule of Landlock grants it; before ABI 9 neither has unix sockets", func(s *stage, cell options) (scene, error) {
				c := s.sitter()
				if !s.inside {
					if err := c.onHost(false); err != nil {
						return scene{}, err
					}
				}
				cell.beside = c.words
				return scene{probe: "unix", args: []string{"type=" + kind, "path=/tmp/socket-" + c.name + "-" + number, "token=" + s.nonce}, opt: cell, canary: c.heard}, nil
			})
	}
	return out
}

// tmpOf returns the host's folder that the calls of a session have as /tmp.
func tmpOf(s *stage, workspace string) (string, error) {
	folders, err := filepath.Glob(filepath.Join(s.user.state, cache.Folder, "*-"+isolate.CacheTmp+"-*"))
	if err != nil {
		return "", err
	}
	for _, at := range folders {
		b, err := os.ReadFile(filepath.Join(at, "cache.json"))
		if err != nil {
			return "", err
		}
		if bytes.Contains(b, []byte(strconv.Quote(workspace))) {
			return filepath.Join(at, "data"), nil
		}
	}
	return "", fmt.Errorf("no /tmp of a session in %s", workspace)
}

// holds looks for a file of a kind in a folder of the host.
func holds(find func() (string, error), kind os.FileMode) (bool, string) {
	dir, err := find()
	if err != nil {
		return true, err.Error()
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true, err.Error()
	}
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.Mode()&kind != 0 {
			return true, e.Name() + " is " + fi.Mode().String() + " on the host"
		}
	}
	return false, ""
}
