package main

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"palyra/authz/policy"
)

// sealCases are 99/elf-interpreter and its like, and 97: code that a call chooses
// without naming it. The canary is that a copy of the attack program, which the host
// was never told of, speaks.
func sealCases() []attackCase {
	var out []attackCase
	for _, v := range []struct{ variant, attack string }{
		{"elf-interpreter", "run a program whose loader (PT_INTERP) is in the workspace"},
		{"elf-interpreter-script", "… as a script's interpreter"},
		{"elf-interpreter-relative", "… with a relative path"},
	} {
		out = append(out, attackCase{number: 99, variant: v.variant, name: "elf-interpreter", attack: v.attack, stopped: both(refused),
			note:  "a loader must be the system's",
			stage: func(s *stage) (scene, error) { return loaderScene(s, v.variant) }})
	}
	for _, v := range []struct{ variant, attack, variable, before, after string }{
		{"path", "run a program through a PATH into the workspace", "PATH", "", "/bin"},
		{"path-list", "… with the workspace last", "PATH", "/usr/bin:", "/bin"},
		{"home", "… through a HOME in the workspace", "HOME", "", ""},
	} {
		out = append(out, attackCase{number: 97, variant: v.variant, name: "built-environment", attack: v.attack, stopped: both(refused),
			note: "denied unless a policy names the variable",
			stage: func(s *stage) (scene, error) {
				ws, dir, err := attackInWorkspace(s, "bin/"+s.nonce)
				if err != nil {
					return scene{}, err
				}
				sc := scene{probe: "by-variable", args: []string{"variable=" + v.variable, "name=" + s.nonce, "token=" + s.nonce}, canary: executed,
					because: strings.ToLower(v.variable) + ": leads",
					opt:     options{workspace: ws, env: []string{v.variable + "=" + v.before + dir + v.after}}}
				sc.opt.policy, err = builtIn(s)
				return sc, err
			}})
	}
	return out
}

// attackInWorkspace makes a workspace with a copy of the attack program, and returns the
// workspace's path for a program in it.
func attackInWorkspace(s *stage, name string) (ws, dir string, err error) {
	if ws, err = s.workspace(); err != nil {
		return "", "", err
	}
	b, err := os.ReadFile(s.b.attack)
	if err != nil {
		return "", "", err
	}
	path := filepath.Join(ws, name)
	if err := s.mkdir(filepath.Dir(path), 0o755); err != nil {
		return "", "", err
	}
	if dir = ws; s.inside && s.tier == "c" {
		dir = "/workspace"
	}
	return ws, dir, s.write(path, string(b), 0o755)
}

// builtIn is a policy directory that permits everything except environments that the
// built-in set forbids.
func builtIn(s *stage) (string, error) {
	dir, err := s.folder("policy", 0o755)
	if err != nil {
		return "", err
	}
	text, err := fs.ReadFile(policy.DefaultFS(), "50-environment.cedar")
	if err != nil {
		return "", err
	}
	all := "@id(\"all\")\npermit (principal, action, resource);\n@untested(\"the battery\")\n"
	return dir, s.write(filepath.Join(dir, "all.cedar"), all+string(text), 0o644)
}

func loaderScene(s *stage, variant string) (scene, error) {
	ws, dir, err := attackInWorkspace(s, "ld.so")
	if err != nil {
		return scene{}, err
	}
	loader := dir + "/ld.so"
	if variant == "elf-interpreter-relative" {
		loader = "ld.so"
	}
	if err := s.write(filepath.Join(ws, "program"), loaded(loader), 0o755); err != nil {
		return scene{}, err
	}
	sc := scene{probe: "executed", args: []string{"token=" + s.nonce}, canary: executed, because: "loader",
		opt: options{workspace: ws, attack: "./program"}}
	if variant == "elf-interpreter-script" {
		sc.opt.attack = "./script"
		err = s.write(filepath.Join(ws, "script"), "#!"+dir+"/program executed\n", 0o755)
	}
	return sc, err
}

// loaded is a program of headers only, which names its loader: the kernel maps both
// and starts the loader.
func loaded(loader string) string {
	const header, each, count, page = 64, 56, 2, 4096
	le, b := binary.LittleEndian, make([]byte, header+count*each)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 3) // ET_DYN
	le.PutUint16(b[18:], map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH])
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[32:], header)
	le.PutUint16(b[52:], header)
	le.PutUint16(b[54:], each)
	le.PutUint16(b[56:], count)
	name := loader + "\x00"
	segment := func(i int, kind, flags uint32, offset, size, align int) {
		h := b[header+i*each:]
		le.PutUint32(h, kind)
		le.PutUint32(h[4:], flags)
		for at, v := range map[int]int{8: offset, 16: offset, 24: offset, 32: size, 40: size, 48: align} {
			le.PutUint64(h[at:], uint64(v))
		}
	}
	segment(0, 3, 4, len(b), len(name), 1)         // PT_INTERP
	segment(1, 1, 5, 0, len(b)+len(name), 16*page) // PT_LOAD
	return fmt.Sprintf("%s%s", b, name)
}
