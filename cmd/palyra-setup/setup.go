package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/programs"
	"palyra/hub/place"
	"palyra/internal/fault"
)

// server is the entry of an agent's configuration.
type server struct {
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

// errTaken refuses a file whose entry for palyra isn't ours.
var errTaken = errors.New("it has a server palyra that palyra setup didn't enter")

// target is a file of an agent's and what setup puts into it.
type target struct {
	base, name string
	toml       bool
	server     bool                // the entry, in mcpServers
	lists      map[string][]string // permissions.allow; permissions.deny with --own-tools-off
	hooks      bool                // a hook, in hooks.PreToolUse
}

// wish is what setup is to enter: the server, or with hook that alone.
type wish struct {
	server server
	off    bool   // turn the agent's own tools off
	hook   string // command of the hook, "" for the server
}

// targets returns the files of an agent, for the user or the project. Its hook stands in the
// last of them.
func (a *app) targets(agent string, project, off bool) ([]target, error) {
	base, err := a.dir(), error(nil)
	if !project {
		base = a.getenv("HOME")
		if !filepath.IsAbs(base) {
			err = fault.New(fault.Usage, "bad_command", "setup", errors.New("HOME is no absolute path"))
		}
	}
	own := func(name string) string { // the agent's own folder, if a variable moves it
		if d := a.getenv(name); !project && filepath.IsAbs(d) {
			return d
		}
		return ""
	}
	switch agent {
	case "claude":
		entry, settings := target{base: base, name: ".claude.json", server: true}, target{base: base, name: ".claude/settings.json"}
		if project {
			entry.name = ".mcp.json"
		} else if d := own("CLAUDE_CONFIG_DIR"); d != "" {
			entry.base, settings.base, settings.name = d, d, "settings.json"
		}
		settings.lists, settings.hooks = map[string][]string{"allow": {"mcp__palyra"}, "deny": append([]string{"Bash"}, writers...)}, true
		return []target{entry, settings}, err
	case "codex":
		if project {
			return nil, fault.New(fault.Usage, "bad_command", "setup", errors.New("the servers of Codex are its user's")).WithHint("leave out --project")
		}
		if d := own("CODEX_HOME"); d != "" {
			return []target{{base: d, name: "config.toml", toml: true}}, nil
		}
		return []target{{base: base, name: ".codex/config.toml", toml: true}}, err
	case "cursor":
		if off {
			return nil, fault.New(fault.Usage, "bad_command", "setup", errors.New("no setting of Cursor turns its own tools off")).
				WithHint("leave out --own-tools-off")
		}
		return []target{{base: base, name: ".cursor/mcp.json", server: true}}, err
	}
	return nil, fault.New(fault.Usage, "bad_command", "setup", fmt.Errorf("no agent %q", agent)).
		WithHint("want claude, codex or cursor; palyra setup --print prints the entry for others")
}

// writers are the tools of Claude Code that write files.
var writers = []string{"Edit", "Write", "NotebookEdit"}

var (
	entryPath = []string{"mcpServers", "palyra"}
	hooksPath = []string{"hooks", "PreToolUse"}
)

// without returns the text as it would be had setup not been there: what the backup has
// comes back, the rest of setup's goes.
func (t *target) without(text, backup []byte) ([]byte, error) {
	out, err := t.withoutServer(text, backup)
	if err == nil && t.hooks {
		out, err = withoutHook(out, backup)
	}
	return out, err
}

// withoutServer is without for the server and what comes with it.
func (t *target) withoutServer(text, backup []byte) ([]byte, error) {
	if t.toml {
		return withoutTOML(text)
	}
	j, was := jsonText(text), jsonText(backup).orEmpty()
	if err := cmp.Or(j.check(), was.check()); err != nil || len(bytes.TrimSpace(text)) == 0 {
		return text, err
	}
	var err error
	if t.server {
		if j.value(entryPath) == nil {
			return j, nil
		}
		if v := was.value(entryPath); v != nil {
			return j.put(entryPath, json.RawMessage(v))
		}
		if j, err = j.drop(entryPath); err != nil {
			return nil, err
		}
		return j.dropEmpty(was, entryPath[:1])
	}
	for _, list := range []string{"allow", "deny"} {
		path := []string{"permissions", list}
		var had []string
		if v := was.value(path); v != nil {
			if err := json.Unmarshal(v, &had); err != nil {
				return nil, fmt.Errorf("%q in the backup is no array of strings", "permissions."+list)
			}
		}
		if list == "deny" && !j.hasAll(path, t.lists[list]) {
			continue // setup enters all or none: these are the user's
		}
		for _, item := range t.lists[list] {
			if !slices.Contains(had, item) {
				if j, err = j.dropItem(path, item); err != nil {
					return nil, err
				}
			}
		}
		if j, err = j.dropEmpty(was, path); err != nil {
			return nil, err
		}
	}
	return j.dropEmpty(was, []string{"permissions"})
}

// hasAll reports whether the array at a path has each of the strings.
func (t jsonText) hasAll(path, items []string) bool {
	var have []string
	if json.Unmarshal(t.value(path), &have) != nil {
		return false
	}
	return !slices.ContainsFunc(items, func(s string) bool { return !slices.Contains(have, s) })
}

// dropEmpty removes an empty object or array that was not there before.
func (t jsonText) dropEmpty(was jsonText, path []string) (jsonText, error) {
	v := t.value(path)
	if v == nil || was.value(path) != nil || len(bytes.Trim(v, "{}[] \t\r\n")) > 0 {
		return t, nil
	}
	return t.drop(path)
}

// with returns a text that has what setup enters.
func (t *target) with(text []byte, w *wish) ([]byte, error) {
	s, off := w.server, w.off
	if t.toml {
		return withTOML(text, s, off)
	}
	j := jsonText(text)
	err := j.check()
	if err == nil && w.hook != "" {
		return withHook(j, w.hook)
	}
	if err == nil && t.server {
		if v := j.value(entryPath); v != nil {
			var have server
			if json.Unmarshal(v, &have) != nil || len(have.Args) < 2 || have.Args[0] != "mcp" || have.Args[1] != "serve" {
				return nil, errTaken
			}
		}
		return j.put(entryPath, s)
	}
	for _, list := range []string{"allow", "deny"} {
		for _, item := range t.lists[list] {
			if err == nil && (off || list != "deny") {
				j, err = j.add([]string{"permissions", list}, item)
			}
		}
	}
	return j, err
}

// bare is without for that alone which is about to be entered: server and hook may stand
// beside each other.
func (t *target) bare(text, backup []byte, w *wish) ([]byte, error) {
	if w.hook != "" {
		return withoutHook(text, backup)
	}
	return t.withoutServer(text, backup)
}

// same reports whether two texts say the same.
func (t *target) same(a, b []byte) bool {
	if t.toml {
		return bytes.Equal(bytes.TrimRight(a, "\r\n"), bytes.TrimRight(b, "\r\n"))
	}
	x, y := json.NewDecoder(bytes.NewReader(jsonText(a).orEmpty())), json.NewDecoder(bytes.NewReader(jsonText(b).orEmpty()))
	x.UseNumber()
	y.UseNumber()
	var v, w any
	return x.Decode(&v) == nil && y.Decode(&w) == nil && reflect.DeepEqual(v, w)
}

// change is what setup is about to do to a file.
type change struct {
	*file
	text   []byte
	remove bool // the file is removed
	fresh  bool // the file becomes the backup
	undo   bool
}

// plan reads the files and works out every change before one is made.
func plan(targets []target, w *wish, undo bool) (out []change, err error) {
	defer func() {
		if err != nil {
			done(out)
		}
	}()
	for i := range targets {
		t := &targets[i]
		f, err := openFile(t.base, t.name, 0o600)
		if err != nil {
			return out, err
		}
		c := change{file: f, undo: undo}
		out = append(out, c)
		if undo && !f.kept {
			out = out[:len(out)-1]
			f.root.Close()
			continue
		}
		backup := f.backup
		if !f.kept {
			backup = f.text
		}
		bare, err := t.without(f.text, backup)
		if err != nil {
			return out, f.unfit(err)
		}
		c.fresh = !f.kept || bytes.Equal(bare, f.text)
		switch {
		case undo && t.toml && t.same(bare, backup), undo && !t.toml && sameJSON(bare, backup):
			c.text, c.remove = backup, f.absent
		case undo:
			c.text = bare
		default:
			if c.text, err = t.bare(f.text, backup, w); err == nil {
				c.text, err = t.with(c.text, w)
			}
			if err != nil {
				return out, f.unfit(err)
			}
			if f.exists && t.same(c.text, f.text) {
				c.text = f.text
			}
		}
		out[len(out)-1] = c
	}
	return out, nil
}

func done(changes []change) {
	for _, c := range changes {
		c.root.Close()
	}
}

// ownToolsOff reports whether the agent's own tools are turned off: if they stay beside a
// layer, the agent sees two versions of its project. A setting of Claude Code's user would
// count in every project.
func ownToolsOff(agent string, inv *command.Invocation) bool {
	return inv.Has("own-tools-off") || !inv.Has("own-tools") && !inv.Has("direct") && (agent == "codex" || agent == "claude" && inv.Has("project"))
}

func (a *app) setup(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	if inv.Has("print") {
		return a.print(inv)
	}
	if len(inv.Operands) == 0 {
		return nil, fault.New(fault.Usage, "bad_command", "setup", errors.New("no agent is named")).
			WithHint("want claude, codex or cursor; palyra setup --print prints the entry for others")
	}
	agent, undo, dry := inv.Operands[0], inv.Has("undo"), inv.Has("dry-run")
	r := &front.Report{Fields: front.Document{"agent": agent}}
	show := io.Writer(front.Stdout(a.stdout))
	if inv.Has("json") {
		show = io.Discard
	}
	if agent == "palyrad" {
		return r, a.palyradAlone(ctx, inv, r, show)
	}
	w := &wish{off: ownToolsOff(agent, inv)}
	targets, err := a.targets(agent, inv.Has("project"), w.off)
	if err != nil {
		return nil, err
	}
	leads, err := a.ownPalyrad(ctx, inv, r, show)
	if err != nil {
		return nil, err
	}
	args, err := a.serveArgs(inv, leads)
	if err != nil {
		return nil, err
	}
	w.server = server{installed.Palyra(a.executable), args}
	var shell []string
	if inv.Has("hook") && !undo {
		if !targets[len(targets)-1].hooks {
			return nil, fault.New(fault.Usage, "bad_command", "setup", fmt.Errorf("setup enters no hook of %s", agent)).WithHint("see docs/formats/hook.md")
		}
		if shell, err = a.hookWords(inv, args); err == nil {
			err = a.hooksOff()
		}
		if err != nil {
			return nil, err
		}
		w.hook, targets = hookCommand(w.server.Command, shell, w.off), targets[len(targets)-1:]
	}
	changes, err := plan(targets, w, undo)
	if err != nil {
		return nil, err
	}
	defer done(changes)
	if undo && len(changes) == 0 {
		return nil, fault.New(fault.NotFound, "not_found", "undo setup "+agent, errors.New("no file has a backup beside it")).
			WithHint("setup keeps FILE" + kept + " until it is undone; --project looks in the working directory")
	}
	var files []front.Document
	for _, c := range changes {
		same := c.exists && bytes.Equal(c.text, c.file.text) && !c.remove
		text := "unchanged: " + front.Escape(c.path()) + "\n"
		if !same {
			text = c.diff(c.text)
		}
		files = append(files, front.Document{"file": c.path(), "changed": !same, "removed": c.remove})
		if _, err := io.WriteString(show, text); err != nil { // before it is written
			return nil, err
		}
		switch {
		case dry || same && !undo:
		case undo && c.remove:
			err = c.restore(nil)
		case undo:
			err = c.restore(c.text)
		default:
			err = c.write(c.text, c.fresh)
		}
		if err != nil {
			return nil, err
		}
	}
	r.Fields["files"], r.Fields["written"] = files, !dry
	switch {
	case dry:
		r.Text += "nothing was written\n"
	case undo:
		r.Text += "as it was\n"
	case w.hook != "":
		a.proveLine(ctx, w.server.Command, shell, r)
	default:
		a.prove(ctx, w.server, r)
		if agent == "cursor" {
			r.Text += "Cursor keeps its own shell and file tools; they pass Palyra by\n"
		}
	}
	return r, nil
}

// serveArgs are the arguments of the entry. leads are flags that lead to a palyrad, if setup made
// one.
func (a *app) serveArgs(inv *command.Invocation, leads []string) ([]string, error) {
	args, err := programs.ServeArgs(inv)
	if err != nil {
		return nil, err
	}
	args = append(args, leads...)
	// Codex starts its servers without the variables that lead to a socket.
	if sock := place.ClientSocket(a.getenv); len(leads) == 0 && !inv.Has("socket") && !inv.Has("url") && sock != place.SystemSocket {
		if sock, err = filepath.Abs(sock); err != nil {
			return nil, fault.New(fault.Usage, "bad_command", "setup", err)
		}
		args = append(args, "--socket", sock)
	}
	return args, nil
}

// print prints the entry for an agent whose configuration setup doesn't edit.
func (a *app) print(inv *command.Invocation) (*front.Report, error) {
	if len(inv.Operands) > 0 {
		return nil, fault.New(fault.Usage, "bad_command", "setup", fmt.Errorf("--print is for other agents than %q", inv.Operands[0])).
			WithHint("palyra setup " + inv.Operands[0] + " --dry-run shows what setup would enter")
	}
	for _, name := range []string{"project", "hook", "policy", "mode", "own-tools", "own-tools-off", "undo", "dry-run"} {
		if inv.Has(name) {
			return nil, fault.New(fault.Usage, "bad_command", "setup", fmt.Errorf("--%s is for a named agent, and --print names none", name))
		}
	}
	args, err := a.serveArgs(inv, nil)
	if err != nil {
		return nil, err
	}
	servers, text, err := programs.Servers("palyra", installed.Palyra(a.executable), args)
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: text, Fields: front.Document{"mcpServers": servers}}, nil
}

// dir is the working directory.
func (a *app) dir() string {
	d, err := os.Getwd()
	if err != nil {
		return "."
	}
	return d
}
