package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/hub/place"
	"palyra/internal/fault"
)

// own is a palyrad of this user's: its configuration, and the programs that it takes.
type own struct {
	*app
	base   string // folder of configurations, XDG_CONFIG_HOME or HOME
	name   string // of the configuration, below base
	socket string
	palyra string // program
	dry    bool
	report *front.Report
	show   io.Writer
}

// preset is the policy that a user's own palyrad begins with.
const preset = "coding"

// opening begins a configuration that setup makes.
const opening = "# palyrad of one user. palyra setup made this file, and adds workspaces at its end.\n# palyra config explain KEY says what a key means.\n"

// ownPalyrad sees to it that a palyrad of this user's answers and knows the working directory,
// unless the command line or the environment leads to another. It returns the flags that lead
// there, none if it did nothing.
func (a *app) ownPalyrad(ctx context.Context, inv *command.Invocation, r *front.Report, show io.Writer) ([]string, error) {
	for _, flag := range []string{"socket", "url", "token-file", "workspace", "policy", "undo"} {
		if inv.Has(flag) {
			return nil, nil
		}
	}
	if a.getenv("PALYRA_SOCKET") != "" {
		return nil, nil
	}
	d, err := a.newOwn(inv, r, show)
	if err != nil {
		return nil, err
	}
	f, err := openFile(d.base, d.name, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.root.Close()
	// A palyrad may answer where another shell started it, or the system's.
	mine := d.socket
	answers := d.answers(ctx, mine)
	if s := place.FindSocket(a.getenv); !answers && s != mine && d.answers(ctx, s) {
		d.socket, answers = s, true
	}
	if answers && !f.exists {
		return nil, nil // setup didn't make that one
	}
	policies := filepath.Join(filepath.Dir(f.path()), "policy")
	text, workspace, err := addWorkspace(f.text, policies, kitOf(a.dir(), a.getenv("HOME"), a.getenv), a.dir(), !inv.Has("direct"))
	if err != nil {
		return nil, f.unfit(err)
	}
	changed := !bytes.Equal(text, f.text)
	if changed && (a.dir() == a.getenv("HOME") || a.dir() == "/") {
		return nil, fault.New(fault.Usage, "bad_command", "setup palyrad", fmt.Errorf("%q is no project", a.dir())).
			WithHint("change to the folder of a project, or name a palyrad with --socket")
	}
	// The user's systemd restarts it; another's palyrad is another's to end.
	managed := d.socket == mine && d.managed(ctx)
	if changed && answers && !managed {
		return nil, fault.New(fault.Unavailable, "not_ready", "setup palyrad", fmt.Errorf("the palyrad at %q doesn't know %q as a workspace", d.socket, a.dir())).
			WithHint("end that palyrad (SIGTERM), then run this again")
	}
	if changed {
		err = d.place(f, text)
	}
	if err == nil {
		err = d.policies(ctx, policies)
	}
	leads := []string{"--workspace", workspace, "--socket", d.socket}
	switch {
	case err != nil || d.dry:
	case managed:
		err = d.manage(ctx, changed)
	case !answers:
		err = d.start(ctx, f.path())
	}
	return leads, err
}

// palyradAlone sets up a user's own palyrad for the working directory, without an agent, or
// takes it out of systemd.
func (a *app) palyradAlone(ctx context.Context, inv *command.Invocation, r *front.Report, show io.Writer) error {
	if inv.Has("undo") {
		d, err := a.newOwn(inv, r, show)
		if err != nil {
			return err
		}
		out, err := d.takeOut(a.dir())
		if err != nil {
			return err
		}
		switch err = d.unmanage(ctx); {
		case err == nil:
			r.Text = "palyrad is no service any more; the rest of its configuration and its state stay\n"
		case out && fault.KindOf(err) == fault.NotFound:
			r.Text, err = "this folder is no workspace any more, from palyrad's next start on\n", nil
		}
		if d.dry && err == nil {
			r.Text = "nothing was written\n"
		}
		return err
	}
	leads, err := a.ownPalyrad(ctx, inv, r, show)
	switch {
	case err != nil:
		return err
	case leads == nil:
		return fault.New(fault.Usage, "bad_command", "setup palyrad", errors.New("flags or variables lead to a palyrad, or one that setup didn't make answers")).
			WithHint("palyra status tells of it; its configuration lists its workspaces")
	case inv.Has("dry-run"):
		r.Text += "nothing was written\n"
	default:
		r.Fields["workspace"], r.Fields["socket"] = leads[1], leads[3]
		r.Text += fmt.Sprintf("palyrad answers at %s; this folder is its workspace %s\n", front.Escape(leads[3]), leads[1])
	}
	return nil
}

// newOwn finds the places of a user's own palyrad.
func (a *app) newOwn(inv *command.Invocation, r *front.Report, show io.Writer) (*own, error) {
	d := &own{app: a, name: filepath.Join("palyra", "palyrad.toml"), base: a.getenv("XDG_CONFIG_HOME"), palyra: installed.Palyra(a.executable),
		dry: inv.Has("dry-run"), report: r, show: show}
	if !filepath.IsAbs(d.base) {
		d.base, d.name = a.getenv("HOME"), filepath.Join(".config", d.name)
	}
	sockets := place.Sockets(a.getenv, place.StateDir(a.getenv))
	if !filepath.IsAbs(d.base) || len(sockets) == 0 {
		return nil, fault.New(fault.Usage, "bad_command", "setup palyrad", errors.New("HOME is no absolute path"))
	}
	d.socket = sockets[0]
	return d, nil
}

// answers reports whether a palyrad answers at socket.
func (d *own) answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return exec.CommandContext(ctx, d.palyra, "status", "--socket", socket).Run() == nil
}

// place shows and writes a file of ours.
func (d *own) place(f *file, text []byte) error {
	if _, err := io.WriteString(d.show, f.diff(text)); err != nil || d.dry {
		return err
	}
	if err := f.unchanged(); err != nil {
		return err
	}
	return f.place(f.name, text, 0o600)
}

// policies writes the preset, if there are no policies yet.
func (d *own) policies(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := fmt.Fprintf(d.show, "%s: the policies of the preset %s\n", front.Escape(dir), preset); err != nil || d.dry {
		return err
	}
	return d.run(ctx, d.palyra, "policy", "init", "--preset", preset, dir)
}

// run runs a program to its end; an error has its words.
func (d *own) run(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fault.New(fault.Unavailable, "daemon_unreachable", fmt.Sprintf("run %s %s", filepath.Base(name), strings.Join(args, " ")),
			fmt.Errorf("%w: %s", err, front.OneLine(string(out))))
	}
	return nil
}

// takeOut takes the workspace of a folder out of the configuration, if setup entered it so.
func (d *own) takeOut(dir string) (bool, error) {
	f, err := openFile(d.base, d.name, 0o600)
	if err != nil {
		return false, err
	}
	defer f.root.Close()
	text, err := withoutWorkspace(f.text, dir)
	if err != nil || bytes.Equal(text, f.text) {
		return false, err
	}
	return true, d.place(f, text)
}

// entered begins the lines of a workspace that setup entered; they end with an empty one.
const entered = "# Entered by palyra setup; palyra setup palyrad --undo takes it out.\n"

// withoutWorkspace returns a configuration without the lines that setup entered for dir.
func withoutWorkspace(text []byte, dir string) ([]byte, error) {
	have, err := workspaces(text)
	if err != nil {
		return nil, err
	}
	for name, path := range have {
		head := entered + "[workspaces." + name + "]\n"
		i := bytes.Index(text, []byte(head))
		if filepath.Clean(path) != dir || i < 0 {
			continue
		}
		end := len(text)
		if n := bytes.Index(text[i:], []byte("\n\n")); n >= 0 {
			end = i + n + 1
		}
		out := append(bytes.TrimSuffix(bytes.Clone(text[:i]), []byte("\n")), text[end:]...)
		now, err := workspaces(out)
		if err == nil && len(now) != len(have)-1 {
			err = fmt.Errorf("the workspace %s isn't as setup entered it", name)
		}
		return out, err
	}
	return text, nil
}

// addWorkspace returns a configuration that has dir as a workspace with a kit, and the
// workspace's name.
func addWorkspace(text []byte, policies string, k *kit, dir string, staged bool) ([]byte, string, error) {
	have, err := workspaces(text)
	if err != nil {
		return nil, "", err
	}
	for name, path := range have {
		if filepath.Clean(path) == dir {
			return text, name, nil
		}
	}
	base := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, filepath.Base(dir)), "-")
	if base = strings.Trim(base[:min(len(base), 28)], "-"); base == "" {
		base = "project"
	}
	name := base
	for n := 2; ; n++ {
		if _, taken := have[name]; !taken {
			break
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	var out bytes.Buffer
	out.Write(text)
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		fmt.Fprintf(&out, "%s\n[policy]\ndir = %s\n\n[listen]\nhttp = \"127.0.0.1:0\" # any port: palyra console open\n", opening, tomlString(policies))
	case !bytes.HasSuffix(text, []byte("\n")):
		out.WriteByte('\n')
	}
	how := "staged = true"
	if !staged {
		how = "read_only = false"
	}
	fmt.Fprintf(&out, "\n%s[workspaces.%s]\npath = %s\n%s\n%s", entered, name, tomlString(dir), how, k.lines())
	now, err := workspaces(out.Bytes())
	if err == nil && (now[name] != dir || len(now) != len(have)+1) {
		err = fmt.Errorf("%q can't be entered", dir)
	}
	return out.Bytes(), name, err
}

// workspaces returns the paths of a configuration's workspaces by name.
func workspaces(text []byte) (map[string]string, error) {
	all, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	switch tables := all["workspaces"].(type) {
	case nil:
	case map[string]any:
		for name, t := range tables {
			w, _ := t.(map[string]any)
			out[name], _ = w["path"].(string)
		}
	default:
		return nil, errors.New("workspaces is no table")
	}
	return out, nil
}

// tomlString writes a basic string of TOML, which JSON's strings are.
func tomlString(s string) string {
	b, _ := json.Marshal(s) // a string can be encoded
	return strings.ReplaceAll(string(b), "\x7f", `\u007f`)
}
