package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/internal/fault"
)

// ourHook is the command of a hook that setup entered. A hook that dies must not let a call
// pass: Claude Code heeds status 2 alone.
var ourHook = regexp.MustCompile(`^\S.* hook claude( .*)? \|\| exit 2$`)

// hookWords are the flags of the hook's and of the shell's command line. Those that lead to
// palyrad are the server's.
func (a *app) hookWords(inv *command.Invocation, server []string) ([]string, error) {
	policy, folder := command.Value(inv, "policy", ""), slices.Contains(server, "--workspace")
	if policy == "" && !folder {
		return nil, fault.New(fault.Usage, "bad_command", "setup", errors.New("--hook wants --workspace NAME, --policy DIR or both")).
			WithHint("palyrad runs the commands in its workspace NAME; palyra exec does with the policies in DIR")
	}
	var words []string
	if policy != "" {
		abs, err := filepath.Abs(policy)
		if err != nil {
			return nil, fault.New(fault.Usage, "bad_command", "setup", err)
		}
		words = append(words, "--policy", abs)
	}
	if mode := command.Value(inv, "mode", ""); mode != "" {
		words = append(words, "--mode", mode)
	}
	if folder {
		for i, w := range server {
			if slices.Contains([]string{"--workspace", "--socket", "--url", "--token-file"}, w) {
				words = append(words, w, server[i+1])
			}
		}
		words = append(words, "--dir", a.dir())
	}
	return words, nil
}

// hookCommand is the line that Claude Code has a shell run.
func hookCommand(palyra string, words []string, off bool) string {
	line := programs.Quote(palyra) + " hook claude"
	for _, w := range words {
		line += " " + programs.Quote(w)
	}
	if off {
		for _, w := range writers {
			line += " --refuse " + w
		}
	}
	return line + " || exit 2"
}

// hooksOff returns an error if a setting that Claude Code reads here keeps it from asking any hook:
// an entered hook would be asked nothing. Claude Code ignores a file that isn't JSON, and so do we.
func (a *app) hooksOff() error {
	user := a.getenv("CLAUDE_CONFIG_DIR")
	if !filepath.IsAbs(user) {
		user = filepath.Join(a.getenv("HOME"), ".claude")
	}
	for _, dir := range []string{filepath.Join(a.dir(), ".claude"), user, "/etc/claude-code"} {
		for _, name := range []string{"settings.json", "settings.local.json", "managed-settings.json"} {
			path := filepath.Join(dir, name)
			if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxFile {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			var v struct{ DisableAllHooks any }
			if _ = json.Unmarshal(b, &v); v.DisableAllHooks != nil && v.DisableAllHooks != false {
				return fault.New(fault.BadState, "bad_file", fmt.Sprintf("enter a hook beside %q", path), errors.New("its disableAllHooks keeps Claude Code from asking any hook")).
					WithHint("take disableAllHooks out, if you trust who wrote that file, then run this again")
			}
		}
	}
	return nil
}

// withHook appends the hook for all tools.
func withHook(j jsonText, line string) ([]byte, error) {
	entry := map[string]any{"matcher": "*", "hooks": []any{map[string]any{"type": "command", "command": line, "timeout": 60}}}
	j = j.orEmpty()
	_, _, p, err := j.find(hooksPath)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return j.put(hooksPath, []any{entry})
	case j[p.value] != '[':
		return nil, fmt.Errorf("%q is no array", strings.Join(hooksPath, "."))
	}
	return j.insert(p.value, "", entry)
}

// withoutHook takes out the hooks that setup entered, and what is empty then.
func withoutHook(text, backup []byte) ([]byte, error) {
	j, was := jsonText(text), jsonText(backup).orEmpty()
	if err := errors.Join(j.check(), was.check()); err != nil || len(j) == 0 {
		return text, err
	}
	for {
		_, _, p, err := j.orEmpty().find(hooksPath)
		if err != nil {
			return nil, err
		}
		if p == nil || j[p.value] != '[' {
			break
		}
		parts, _, err := j.parts(p.value)
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range parts {
			var h struct{ Hooks []struct{ Command string } }
			if json.Unmarshal(j[e.value:e.end], &h) == nil && len(h.Hooks) == 1 && ourHook.MatchString(h.Hooks[0].Command) {
				if j, err = j.cut(p.value, e.start); err != nil {
					return nil, err
				}
				found = true
				break
			}
		}
		if !found {
			break
		}
	}
	j, err := j.dropEmpty(was, hooksPath)
	if err != nil {
		return nil, err
	}
	return j.dropEmpty(was, hooksPath[:1])
}

// proveLine has palyra run true as the hook will have it run.
func (a *app) proveLine(ctx context.Context, palyra string, words []string, r *front.Report) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, palyra, append(append([]string{"sh"}, words...), "--timeout", time.Minute.String(), "--", "true")...)
	c.WaitDelay = 10 * time.Second
	var errs strings.Builder
	c.Stderr = &errs
	err := c.Run()
	if err == nil {
		r.Text += "proved: true ran in a cell (palyra journal show)\n"
		return
	}
	said := front.OneLine(errs.String())
	if said == "" {
		said = err.Error()
	}
	r.Exit = front.Findings
	r.Fields["call"] = said
	r.Text += "set up, but true was not executed: " + front.Escape(said) + "\n"
}
