package main

import (
	"errors"
	"os"
	"path/filepath"
)

// layerCases are 117: what a staged workspace could bring to the host before it is applied, and
// what its layer carries to the next call.
func layerCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, set func(s *stage, cell options) (scene, error)) {
		out = append(out, attackCase{number: 117, variant: variant, name: "layer", attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no staged workspaces"}, note: note,
			stage: func(s *stage) (scene, error) {
				ws, err := s.workspace()
				if err != nil {
					return scene{}, err
				}
				return set(s, options{workspace: ws, layer: s.nonce + "-1"})
			}})
	}
	for _, w := range []struct{ how, attack string }{
		{"create", "create a file in the host's folder through a staged workspace"}, {"append", "append to a file there"},
		{"truncate", "truncate it"}, {"unlink", "remove it"}, {"rename", "rename it"}, {"chmod", "change its mode"}, {"utimes", "change its times"},
	} {
		add(w.how, w.attack, []string{"OPEN", "EPERM"}, "OPEN: it went to the layer", func(s *stage, cell options) (scene, error) {
			sc, err := writeAt(s, cell.workspace, w.how)
			if s.inside {
				sc.args = []string{"how=" + w.how, "path=/workspace/bait"}
			}
			sc.opt = cell
			return sc, err
		})
	}
	add("other-layer", "read what a call left in another layer of the workspace", notThere, "a call sees the layer that its capsule names",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err != nil || !s.inside {
				return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
			}
			in := filepath.Join(cell.workspace, "secret")
			if err := os.Rename(path, in); err != nil {
				return scene{}, err
			}
			err = s.earlier(cell, "/bin/cp", "/workspace/secret", "/workspace/left")
			cell.layer = s.nonce + "-2"
			return scene{probe: "read", args: []string{"how=open", "path=/workspace/left"}, opt: cell, canary: leaked(secret)}, errors.Join(err, os.Remove(in))
		})
	add("link", "read a host file through a link that an earlier call left in the layer", notThere, "the link leads from the root of the cell",
		func(s *stage, cell options) (scene, error) {
			path, secret, err := s.secret()
			if err != nil || !s.inside {
				return scene{probe: "read", args: []string{"how=open", "path=" + path}, opt: cell, canary: leaked(secret)}, err
			}
			err = s.earlier(cell, "/bin/ln", "-s", path, "/workspace/link")
			return scene{probe: "read", args: []string{"how=open", "path=/workspace/link"}, opt: cell, canary: leaked(secret)}, err
		})
	add("folder-link", "write to a host folder through a link that an earlier call left in the layer", notThere, "", func(s *stage, cell options) (scene, error) {
		sc, err := writeScene(s, "create")
		if err == nil && s.inside {
			sc.args = []string{"how=create", "path=/workspace/link/bait"}
			err = s.earlier(cell, "/bin/ln", "-s", filepath.Join(s.dir, "shared"), "/workspace/link")
		}
		sc.opt = cell
		return sc, err
	})
	return out
}
