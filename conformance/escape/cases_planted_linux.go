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

// plantedCases are 10: files in a granted workspace that other programs of the
// host run or believe. Writing them is what a writable workspace is for; that it
// was done must be in the receipt, which is what makes the attempt fail.
func plantedCases() []attackCase {
	add := func(out []attackCase, variant, attack, how, path string) []attackCase {
		return append(out, attackCase{number: 10, variant: variant, name: "ws-hook-plant", attack: attack, stopped: both("OPEN", "EPERM", "EACCES"),
			note:  "OPEN: it may be written, and the receipt lists it",
			stage: func(s *stage) (scene, error) { return plantedScene(s, how, path) }})
	}
	var out []attackCase
	for _, v := range []struct{ variant, attack, path string }{
		{"git-hook", "leave a hook for the host's git", ".git/hooks/pre-commit"},
		{"git-config", "leave a configuration for it (core.fsmonitor, core.hooksPath)", ".git/config"},
		{"nested-hook", "leave a hook in a repository further down", "a/b/.git/hooks/post-checkout"},
		{"envrc", "leave what a shell reads that enters the folder", ".envrc"},
		{"editor", "leave tasks for an editor", ".vscode/tasks.json"},
		{"agent", "leave servers and hooks for a coding agent", ".claude/settings.json"},
		{"mcp", "leave servers of tools for one", ".mcp.json"},
		{"ci", "leave a job for a build service", ".github/workflows/build.yml"},
		{"package", "leave settings for a package manager", ".npmrc"},
		{"name", "leave tasks under a name that writes to the terminal", ".vscode/\x1b]0;planted\a\n\xff.json"},
	} {
		out = add(out, v.variant, v.attack, "write", v.path)
	}
	out = add(out, "linked", "put a link in the place of the folder of hooks", "link", ".git/hooks")
	out = add(out, "moved", "move a folder with an older file to the place of the folder of hooks", "move", ".git/hooks/pre-commit")
	return add(out, "flood", "leave a hook among 100,000 files", "flood", ".git/hooks/pre-commit")
}

// floodOf is how many files a flood has.
const floodOf = 100_000

// plantedScene has a file planted in a workspace. The harm is that it is there
// and that nothing says so.
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
		sc.opt.timeout = time.Minute
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

// unlisted reports whether a receipt does not say that something was planted at
// path; and if there was too much to look at, that it was not all looked at.
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

// readPlanted takes what was planted out of a receipt. Whether the receipt is
// genuine is not asked here.
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
