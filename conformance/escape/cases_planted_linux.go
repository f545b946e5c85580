package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"palyra/crypt/receipt"
	"palyra/internal/toolproto"
)

// plantedCases are 10: files in a granted workspace that other programs of the host run or
// believe. A writable workspace exists to be written; the attempt fails because the receipt
// lists the files.
func plantedCases() []attackCase {
	add := func(out []attackCase, variant, attack, how, path string) []attackCase {
		return append(out, attackCase{number: 10, variant: variant, name: "ws-hook-plant", attack: attack, stopped: at([]string{"OPEN", "EPERM", "EACCES"}, []string{"OPEN", "EPERM", "EACCES", "EXDEV"}),
			note:  "OPEN: the receipt lists it, or it's in a layer; EXDEV: where overlayfs moves no folder",
			stage: func(s *stage) (scene, error) { return plantedScene(s, how, path) }})
	}
	var out []attackCase
	for _, v := range []struct{ variant, attack, path string }{
		{"git-hook", "leave a hook for the host's git", ".git/hooks/pre-commit"},
		{"git-config", "… a configuration (core.fsmonitor, core.hooksPath)", ".git/config"},
		{"nested-hook", "… a hook in a nested repository", "a/b/.git/hooks/post-checkout"},
		{"envrc", "… a file for shells that enter the folder", ".envrc"},
		{"editor", "… tasks for an editor", ".vscode/tasks.json"},
		{"agent", "… servers and hooks for a coding agent", ".claude/settings.json"},
		{"mcp", "… tool servers for one", ".mcp.json"},
		{"ci", "… a job for a build service", ".github/workflows/build.yml"},
		{"package", "… settings for a package manager", ".npmrc"},
		{"name", "… tasks whose name writes to the terminal", ".vscode/\x1b]0;planted\a\n\xff.json"},
	} {
		out = add(out, v.variant, v.attack, "write", v.path)
	}
	out = add(out, "linked", "… a link in place of the folder of hooks", "link", ".git/hooks")
	out = add(out, "moved", "… an older folder moved there", "move", ".git/hooks/pre-commit")
	return add(out, "flood", "… a hook among 100,000 files", "flood", ".git/hooks/pre-commit")
}

// floodOf is how many files a flood has.
const floodOf = 100_000

// plantedScene has a file planted in a workspace. The harm is a file that no receipt names.
func plantedScene(s *stage, how, path string) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	if how == "move" {
		if err := s.oldFolder(ws); err != nil {
			return scene{}, err
		}
	}
	kept := filepath.Join(s.dir, "receipt.json")
	sc := scene{probe: "trust", opt: options{workspace: ws, receipt: kept, timeout: 10 * time.Second},
		args: []string{"how=" + how, "path=" + base64.RawURLEncoding.EncodeToString([]byte(path)), "n=" + strconv.Itoa(floodOf)}}
	if how == "flood" {
		sc.opt.timeout, sc.opt.cpu = 4*time.Minute, "4m" // a disk under load took more than one
	}
	sc.canary = func(o *outcome) (bool, string) {
		if _, err := os.Lstat(filepath.Join(ws, path)); err != nil {
			return false, ""
		}
		if !s.inside {
			return true, "it is on the host, and nothing says so"
		}
		if bytes.ContainsAny(o.stderr.kept, "\x1b\a") {
			return true, "its name came to the terminal"
		}
		return unlisted(kept, path, how == "flood")
	}
	return sc, nil
}

// oldFolder makes a folder with a file in it, of the owner of the workspace.
func (s *stage) oldFolder(ws string) error {
	dir := filepath.Join(ws, "old")
	if err := s.mkdir(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, "pre-commit")
	if err := s.write(file, "#!/bin/sh\n", 0o755); err != nil {
		return err
	}
	for _, p := range []string{file, dir} {
		if err := s.give(p); err != nil {
			return err
		}
	}
	return nil
}

// unlisted reports whether a receipt fails to list the file planted at path or, if there
// was too much to look at, fails to say so.
func unlisted(name, path string, tooMuch bool) (bool, string) {
	p, err := readPlanted(name)
	if err != nil {
		return true, err.Error()
	}
	escaped := toolproto.Escape(path)
	if !slices.ContainsFunc(p.Found, func(f receipt.Finding) bool { return f.Path == escaped }) {
		return true, fmt.Sprintf("the receipt does not list it: %v", p.Kinds)
	}
	if tooMuch && len(p.Incomplete) == 0 {
		return true, fmt.Sprintf("the receipt says that all was looked at: %d entries", p.Looked)
	}
	return false, "the receipt lists it"
}

// readPlanted takes the planted files out of a receipt, without verifying it.
func readPlanted(name string) (*receipt.Planted, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var bundle struct {
		Envelope receipt.Envelope `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(b, &bundle); err != nil {
		return nil, err
	}
	var statement receipt.Statement
	if err := json.Unmarshal(bundle.Envelope.Payload, &statement); err != nil {
		return nil, err
	}
	if statement.Predicate.Planted == nil {
		return nil, fmt.Errorf("receipt %s says nothing of what was planted", filepath.Base(name))
	}
	return statement.Predicate.Planted, nil
}
