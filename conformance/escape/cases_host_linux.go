package main

import (
	"os"
	"path/filepath"
)

// hostCases are 95 and 96, which the attack table names among its further
// classes: programs and devices of the host.
func hostCases() []attackCase {
	return []attackCase{
		{number: 95, variant: "workspace", name: "setid-run", attack: "execute another user's set-id program in the workspace",
			stopped: both("EPERM"), note: "it runs as its caller", stage: setIDScene},
		{number: 95, variant: "usr", name: "setid-run", attack: "execute a set-user-id program of /usr",
			stopped: onlyC("EPERM"), note: "it runs as its caller",
			absent: map[string]string{"b": "no /proc to see whose it is; 95/workspace shows it"},
			stage: func(*stage) (scene, error) {
				return scene{probe: "run-program", args: []string{"path=" + setIDProgram()}}, nil
			}},
		call(96, "list", "dev-contents", "find more in /dev than null, zero, full, random, urandom and the empty places of a terminal", at(fenced, notThere), "dev-list"),
		call(96, "open", "dev-contents", "open a host device: ptmx, kmsg, kvm, fuse, tun, disks and others", at(fenced, notThere), "dev-open"),
	}
}

// setIDScene has the host make a set-id copy of the attack program. It belongs to root, or
// for root, who would gain nothing by that, to another user.
func setIDScene(s *stage) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	b, err := os.ReadFile(s.b.attack)
	if err != nil {
		return scene{}, err
	}
	path := filepath.Join(ws, "program")
	if err := s.write(path, string(b), 0o755); err != nil {
		return scene{}, err
	}
	owner := 0
	if s.user.uid == 0 {
		owner = s.b.uid + 1
	}
	// Without the right to, it stays the user's, and proves nothing.
	_ = os.Chown(path, owner, owner)
	if err := os.Chmod(path, 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		return scene{}, err
	}
	name := path // the workspace has another path inside
	if s.inside {
		name = "./program"
	}
	return scene{probe: "run-setid", args: []string{"path=" + name}, opt: options{workspace: ws}}, nil
}

// setIDProgram returns a set-user-id program that belongs to root, "" if there is
// none.
func setIDProgram() string {
	for _, name := range []string{"su", "passwd", "chsh", "mount", "newgrp", "gpasswd"} {
		path := filepath.Join("/usr/bin", name)
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSetuid != 0 && st.Mode().IsRegular() {
			return path
		}
	}
	return ""
}
