package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fileCases are 1 to 10: the host's files, and files left in the workspace.
func fileCases() []attackCase {
	var out []attackCase
	reads := []struct{ how, attack string }{
		{"open", "read a host file by path"},
		{"openat2", "with openat2"},
		{"o-path", "through /proc/self/fd of an O_PATH descriptor"},
		{"symlink", "through a symbolic link"},
		{"proc-root", "through /proc/self/root"},
		{"dotdot", "with enough ../"},
	}
	for _, r := range reads {
		stopped := at(fenced, notThere)
		if r.how == "openat2" { // its flags are in memory, so the filter has it not exist
			stopped = at(join(fenced, []string{"ENOSYS"}), join(notThere, []string{"ENOSYS"}))
		}
		out = append(out, attackCase{number: 1, variant: r.how, name: "read-outside", attack: r.attack,
			stopped: stopped, note: "B: Landlock; C: no such path",
			stage: func(s *stage) (scene, error) {
				path, secret, err := s.secret()
				return scene{probe: "read", args: []string{"how=" + r.how, "path=" + path}, canary: leaked(secret)}, err
			}})
	}
	out = append(out, attackCase{number: 1, variant: "stat", name: "read-outside", attack: "learn its size and owner",
		stopped: onlyC("ENOENT"), absent: map[string]string{"b": "Landlock doesn't cover stat(2)"},
		stage: func(s *stage) (scene, error) {
			path, _, err := s.secret()
			return scene{probe: "read", args: []string{"how=stat", "path=" + path}}, err
		}})
	writes := []struct{ how, attack string }{
		{"create", "create a file in a world-writable host directory"}, {"mkdir", "make a directory there"},
		{"symlink", "make a symbolic link there"}, {"append", "append to a world-writable file"}, {"truncate", "truncate it"},
		{"unlink", "remove it"}, {"rename", "rename it"}, {"chmod", "change its mode"}, {"o-path-chmod", "… through /proc/self/fd of an O_PATH descriptor"},
		{"utimes", "change its times"}, {"xattr", "add an extended attribute"},
	}
	for _, w := range writes {
		stopped := at(unowned, join(notThere, []string{"EROFS"}))
		if w.how == "xattr" { // the filter refuses it by path, there or not
			stopped["c"] = append(stopped["c"], "ENOTSUP", "EOPNOTSUPP")
		}
		out = append(out, attackCase{number: 2, variant: w.how, name: "write-outside", attack: w.attack,
			stopped: stopped,
			note:    "B: Landlock; for mode, times and attributes the filter",
			stage:   func(s *stage) (scene, error) { return writeScene(s, w.how) }})
	}
	out = append(out, shared(3, "tmp-shared", "/tmp"), sharedRead(3, "tmp-shared", "/tmp"),
		shared(4, "devshm-shared", "/dev/shm"), sharedRead(4, "devshm-shared", "/dev/shm"))
	out = append(out, attackCase{number: 5, name: "hardlink-out", attack: "link a host file into the workspace and edit it there",
		stopped: at([]string{"EACCES", "EPERM", "EXDEV", "ENOENT"}, []string{"ENOENT", "EXDEV", "EPERM"}), stage: hardlinkScene})
	return append(append(out, workspaceCases()...), plantedCases()...)
}

// writeScene watches a file and its directory for any change.
func writeScene(s *stage, how string) (scene, error) {
	dir, err := s.folder("shared", 0o777)
	if err != nil {
		return scene{}, err
	}
	return writeAt(s, dir, how)
}

// writeAt is writeScene in a directory.
func writeAt(s *stage, dir, how string) (scene, error) {
	bait := filepath.Join(dir, "bait")
	if err := s.write(bait, "as it was\n", 0o666); err != nil {
		return scene{}, err
	}
	before, err := fingerprint(dir, bait)
	if err != nil {
		return scene{}, err
	}
	return scene{probe: "write", args: []string{"how=" + how, "path=" + bait}, canary: func(*outcome) (bool, string) {
		after, err := fingerprint(dir, bait)
		if err != nil {
			return true, err.Error()
		}
		return after != before, "before " + before + ", after " + after
	}}, nil
}

// fingerprint returns a text that changes with the file or its directory.
func fingerprint(dir, file string) (string, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var list []string
	for _, n := range names {
		list = append(list, n.Name())
	}
	st, err := os.Stat(file)
	if err != nil {
		return fmt.Sprint(list), nil
	}
	attr, err := hasAttribute(file)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(list, st.Mode(), st.Size(), st.ModTime().UnixNano(), attr), nil
}

// shared drops a file into a directory that every process of a host shares.
func shared(number int, name, dir string) attackCase {
	return attackCase{number: number, variant: "write", name: name, attack: "leave a file in " + dir,
		stopped: at([]string{"EACCES", "ENOENT", "EROFS"}, []string{"OPEN", "EACCES", "ENOENT", "EROFS"}),
		note:    "OPEN: in a private tmpfs",
		stage: func(s *stage) (scene, error) {
			path := filepath.Join(dir, s.nonce)
			s.later(func() { os.Remove(path) })
			return scene{probe: "drop", args: []string{"path=" + path}, canary: appeared(path)}, nil
		}}
}

// sharedRead finds a file there that a process of the host left.
func sharedRead(number int, name, dir string) attackCase {
	return attackCase{number: number, variant: "read", name: name, attack: "read what a host process left in " + dir,
		stopped: at(fenced, notThere),
		stage: func(s *stage) (scene, error) {
			path, secret := filepath.Join(dir, s.nonce), nonce()
			s.later(func() { os.Remove(path) })
			return scene{probe: "read", args: []string{"how=open", "path=" + path}, canary: leaked(secret)}, s.write(path, secret, 0o644)
		}}
}

func hardlinkScene(s *stage) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	path, err := s.file("precious", "as it was\n", 0o644)
	if err == nil { // of the workspace's owner, or protected_hardlinks would answer
		err = s.give(path)
	}
	return scene{probe: "hardlink", args: []string{"path=" + path}, opt: options{workspace: ws}, canary: func(*outcome) (bool, string) {
		b, err := os.ReadFile(path)
		return err != nil || string(b) != "as it was\n", "the host's file: " + string(b)
	}}, err
}

// workspaceCases are 6 to 9: hostile files in a granted workspace.
func workspaceCases() []attackCase {
	var out []attackCase
	for _, v := range []struct{ variant, attack, operand string }{
		{"file", "leave a link to a host file as an operand for a later call", "planted"},
		{"directory", "… to a host directory, for a file beneath it", "planted/" + "SECRET"},
	} {
		out = append(out, attackCase{number: 6, variant: v.variant, name: "ws-symlink-plant", attack: v.attack,
			stopped: both("OPEN", "EPERM", "EACCES"), note: "OPEN: later calls don't follow the link, and the receipt lists it",
			stage: func(s *stage) (scene, error) { return symlinkScene(s, v.operand) }})
	}
	for _, how := range []string{"chmod", "chmod-setgid", "fchmod", "fchmodat", "fchmodat2", "open", "openat2", "mknod", "tmpfile", "mkdir-chmod"} {
		out = append(out, attackCase{number: 7, variant: how, name: "ws-setuid-plant", attack: "make a set-id file in the workspace",
			stopped: both("OPEN", "EPERM", "EACCES", "ENOSYS", "EOPNOTSUPP", "ENOTSUP", "SIGSYS"),
			note:    "OPEN: stripped before the call returned",
			stage: func(s *stage) (scene, error) {
				ws, err := s.workspace()
				return scene{probe: "setid", args: []string{"how=" + how}, opt: options{workspace: ws}, canary: setidFile(ws)}, err
			}})
	}
	for _, how := range []string{"mknod", "mknodat"} {
		out = append(out, attackCase{number: 8, variant: how, name: "ws-fifo-plant", attack: "leave a FIFO for a later call to block on",
			stopped: both("OPEN", "EPERM", "EACCES", "ENOSYS", "SIGSYS"), note: "OPEN: the later call didn't block",
			stage: func(s *stage) (scene, error) { return fifoScene(s, how) }})
	}
	for _, how := range []string{"char", "block"} {
		out = append(out, attackCase{number: 9, variant: how, name: "ws-device-plant", attack: "make a device node",
			stopped: both("EPERM", "EACCES", "ENOSYS", "SIGSYS"),
			stage: func(s *stage) (scene, error) {
				ws, err := s.workspace()
				return scene{probe: "device", args: []string{"how=" + how}, opt: options{workspace: ws}, canary: appeared(filepath.Join(ws, "device"))}, err
			}})
	}
	return out
}

// symlinkScene has a later call read through the planted link. Outside, that
// is the host reading it.
func symlinkScene(s *stage, operand string) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	path, secret, err := s.secret()
	if err != nil {
		return scene{}, err
	}
	to := path
	if strings.Contains(operand, "/") {
		to, operand = filepath.Dir(path), "planted/"+filepath.Base(path)
	}
	kept := filepath.Join(s.dir, "receipt.json")
	sc := scene{probe: "symlink", args: []string{"to=" + to, "name=planted"}, opt: options{workspace: ws, receipt: kept}}
	sc.canary = func(*outcome) (bool, string) {
		if !s.inside {
			b, _ := os.ReadFile(filepath.Join(ws, operand))
			return strings.Contains(string(b), secret), "the host follows the link"
		}
		o, err := s.exec(options{workspace: ws}, "/bin/cat", operand)
		if err != nil {
			return true, err.Error()
		}
		if there, _ := appeared(filepath.Join(ws, "planted"))(nil); there {
			if bad, why := unlisted(kept, "planted", false); bad {
				return true, why
			}
		}
		return o.contains(secret) || o.hung, fmt.Sprintf("a later cat %s: exit %d", operand, o.exit)
	}
	return sc, nil
}

// setidFile looks for set-id bits in the workspace.
func setidFile(ws string) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		entries, err := os.ReadDir(ws)
		if err != nil {
			return true, err.Error()
		}
		for _, e := range entries {
			if st, err := e.Info(); err == nil && st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
				return true, e.Name() + " is " + st.Mode().String() + " on the host"
			}
		}
		return false, ""
	}
}

// fifoScene has a later call name the FIFO. Outside, the presence of a FIFO is the harm: a
// host reader would block.
func fifoScene(s *stage, how string) (scene, error) {
	ws, err := s.workspace()
	sc := scene{probe: "fifo", args: []string{"how=" + how}, opt: options{workspace: ws}}
	sc.canary = func(*outcome) (bool, string) {
		there, seen := appeared(filepath.Join(ws, "fifo"))(nil)
		if !there || !s.inside {
			return there, seen
		}
		begin := time.Now()
		o, err := s.exec(options{workspace: ws}, "/bin/true", "fifo")
		if err != nil {
			return true, err.Error()
		}
		return o.hung || o.exit == exitTimedOut, fmt.Sprintf("%s; a later true fifo: exit %d after %v", seen, o.exit, time.Since(begin).Round(time.Millisecond))
	}
	return sc, err
}

// hasAttribute reports whether the file has the attribute that the probe sets.
func hasAttribute(path string) (bool, error) {
	_, err := syscall.Getxattr(path, "user.palyra", nil)
	if err == syscall.ENODATA {
		return false, nil
	}
	return err == nil, err
}
