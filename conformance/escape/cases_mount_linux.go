package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Mounts are shown at their own paths, so their folders are not below /tmp, where the stage is.

// mountCases are 110: what a mount shows, and what is beside it.
func mountCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, set func(s *stage, mount, beside string) (scene, error)) {
		out = append(out, attackCase{number: 110, variant: variant, name: "mount", attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no mounts"}, note: note,
			stage: func(s *stage) (sc scene, err error) {
				mount, beside, err := s.away()
				if err == nil {
					sc, err = set(s, mount, beside)
				}
				sc.opt.mounts = []string{mount}
				return sc, err
			}})
	}
	for _, w := range []struct{ how, attack string }{
		{"create", "create a file in a mount that everybody may write to"}, {"mkdir", "make a directory there"}, {"symlink", "make a symbolic link there"},
		{"append", "append to a file that everybody may write to"}, {"truncate", "truncate it"}, {"unlink", "remove it"}, {"rename", "rename it"},
		{"chmod", "change its mode"}, {"o-path-chmod", "… through /proc/self/fd of an O_PATH descriptor"}, {"utimes", "change its times"},
		{"xattr", "add an extended attribute"},
	} {
		add("write-"+w.how, w.attack, []string{"EROFS", "EACCES", "EPERM", "EOPNOTSUPP", "ENOTSUP"}, "the mount is read-only, and Landlock grants no writing there",
			func(s *stage, mount, _ string) (scene, error) { return writeAt(s, mount, w.how) })
	}
	for _, kind := range []string{"stream", "dgram"} {
		add("socket-"+kind, "reach a host's socket in a mount", []string{"ECONNREFUSED", "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"},
			"no unix sockets, or none that Landlock grants", func(s *stage, mount, _ string) (scene, error) {
				return unixScene(s, kind, filepath.Join(mount, "sock"), "")
			})
	}
	for _, r := range []struct{ variant, attack, path string }{
		{"read-dotdot", "read a file beside a mount by ..", "../beside/secret"}, {"read-link", "… through a link in the mount", "file-link"},
		{"read-folder-link", "… through a link to its folder", "folder-link/secret"},
	} {
		add(r.variant, r.attack, notThere, "the folders above a mount are the cell's own", func(s *stage, mount, beside string) (scene, error) {
			path, secret, err := s.secret()
			if err != nil {
				return scene{}, err
			}
			if err := os.Rename(path, beside+"/secret"); err != nil {
				return scene{}, err
			}
			for to, name := range map[string]string{"../beside/secret": "file-link", beside: "folder-link"} {
				if err := os.Symlink(to, filepath.Join(mount, name)); err != nil {
					return scene{}, err
				}
			}
			return scene{probe: "read", args: []string{"how=open", "path=" + mount + "/" + r.path}, canary: leaked(secret)}, nil
		})
	}
	return out
}

// away makes two folders of the user's, beside each other.
func (s *stage) away() (mount, beside string, err error) {
	top, err := os.MkdirTemp("/var/tmp", "palyra-attack-")
	if err != nil {
		return "", "", err
	}
	s.later(func() { os.RemoveAll(top) })
	mount, beside = filepath.Join(top, "mount"), filepath.Join(top, "beside")
	for dir, mode := range map[string]os.FileMode{top: 0o755, mount: 0o777, beside: 0o755} {
		if err := s.mkdir(dir, mode); err != nil {
			return "", "", err
		}
	}
	return mount, beside, nil
}

// earlier makes a call before the attempt. No cell waits for one with a workspace.
func (s *stage) earlier(o options, argv ...string) error {
	cold := *s
	if cold.mode == modeWarm {
		cold.mode = modeCold
	}
	out, err := cold.exec(o, argv...)
	if err == nil && out.exit != 0 {
		err = fmt.Errorf("the earlier call ended with %d: %s", out.exit, out.stderr.kept)
	}
	return err
}

// cacheCases are 111: what a call leaves in a cache for calls that must not find it, and what a
// link there leads to.
func cacheCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, set func(s *stage, cell options) (scene, error)) {
		out = append(out, attackCase{number: 111, variant: variant, name: "cache", attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no caches"}, note: note,
			stage: func(s *stage) (sc scene, err error) {
				ws, err := s.workspace()
				if err != nil {
					return scene{}, err
				}
				return set(s, options{workspace: ws, caches: []string{"attack"}})
			}})
	}
	// left has an earlier call leave a secret in the cache of a workspace. Outside, where there
	// are no caches, the host leaves it where all calls look.
	leftIn := func(s *stage, cell options, name string) (path, secret string, err error) {
		path, secret, err = s.secret()
		if err != nil || !s.inside {
			return path, secret, err
		}
		in := filepath.Join(cell.workspace, "secret")
		if err := os.Rename(path, in); err != nil {
			return "", "", err
		}
		path = "/caches/" + name + "/secret"
		err = s.earlier(cell, "/bin/cp", "/workspace/secret", path)
		return path, secret, errors.Join(err, os.Remove(in))
	}
	left := func(s *stage, cell options) (path, secret string, err error) { return leftIn(s, cell, "attack") }
	add("other-workspace", "read what a call in another workspace left in the cache", notThere, "a cache is one workspace's",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := left(s, cell)
			if err != nil {
				return scene{}, err
			}
			cell.workspace, err = s.folder("other", 0o755)
			return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
		})
	add("not-asked", "… in the same workspace, without naming the cache", notThere, "a call sees the caches that its capsule names",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := left(s, cell)
			cell.caches = nil
			return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
		})
	add("home", "read what a call in another workspace left in its HOME", notThere, "a HOME is one workspace's, and of palyrad's calls one session's",
		func(s *stage, cell options) (scene, error) {
			cell.caches = []string{"home"}
			path, secret, err := leftIn(s, cell, "home")
			if err != nil {
				return scene{}, err
			}
			cell.workspace, err = s.folder("other", 0o755)
			return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
		})
	add("other-name", "read what a call in the same workspace left in a cache of another name", notThere, "each name is a folder of its own",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := left(s, cell)
			cell.caches = []string{"home"}
			if s.inside {
				path = "/caches/home/secret"
			}
			return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
		})
	add("beside", "read what lies beside the cache in the state directory", notThere, "the folder above is the cell's, with the call's caches alone",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err != nil || !s.inside {
				return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
			}
			return scene{probe: "read", args: []string{"how=open", "path=/caches/attack/../cache.json"}, opt: cell, canary: leaked(secret)}, err
		})
	add("link", "read a host file through a link that an earlier call left in the cache", notThere, "the link leads from the root of the cell",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err != nil || !s.inside {
				return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
			}
			err = s.earlier(cell, "/bin/ln", "-s", path, "/caches/attack/link")
			return scene{probe: "read", args: []string{"how=open", "path=/caches/attack/link"}, opt: cell, canary: leaked(secret)}, err
		})
	return out
}
