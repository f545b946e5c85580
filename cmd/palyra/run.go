package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	vocabulary "palyra/call"
	"palyra/cmd/internal/agents"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/local"
	"palyra/cmd/internal/programs"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
	"palyra/kernel"
)

// runAgent is palyra run: palyra exec with what an agent needs. The words for exec are made here
// and parsed as a person's are, so there's nothing that run can ask for and exec can't.
func (a *app) runAgent(ctx context.Context, inv *command.Invocation) int {
	words, home, err := a.agentCall(inv)
	var call *command.Invocation
	if err == nil {
		call, err = local.TableFor([]string{local.Exec.Name}).Parse(words)
	}
	switch {
	case err != nil:
		front.Complain(a.stderr, "palyra", err)
		return execExit(err)
	case inv.Has("print"):
		for i, w := range words {
			words[i] = programs.Quote(w)
		}
		return front.Say(a.stdout, a.stderr, "palyra", "palyra "+strings.Join(words, " ")+"\n")
	}
	return a.execute(ctx, call, home, func(out *kernel.Outcome) { io.WriteString(a.stderr, afterRun(out, command.Value(call, "state", ""))) })
}

// presets are the flags of exec that run sets where the person doesn't.
var presets = [][2]string{{"workspace", ".:staged"}, {"timeout", "24h"}, {"cpu", "24h"}, {"memory", "8GiB"}, {"pids", "4096"},
	{"max-output", "1GiB"}, {"max-file", "4GiB"}, {"disk", "16GiB"}, {"files", "1000000"}}

// agentCall returns the words of the palyra exec that a palyra run is, and the files of the agent's
// HOME.
func (a *app) agentCall(inv *command.Invocation) (words []string, home []cache.File, err error) {
	row, program, err := a.agent(inv.Operands[0])
	if err != nil {
		return nil, nil, err
	}
	host := command.Value(inv, "model-host", row.Host)
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", "read the model's host", err)
	}
	url := "https://" + name
	if port != "443" {
		url = "https://" + host
	}
	workspace := command.Value(inv, "workspace", presets[0][1])
	dir, err := seenAt(workspace)
	if err != nil {
		return nil, nil, err
	}
	row = row.Filled(url, isolate.CachePath(isolate.CacheHome), dir, host != row.Host)

	words = []string{local.Exec.Name, "--no-daemon", "--cache", isolate.CacheHome}
	for _, p := range presets {
		if !inv.Has(p[0]) {
			words = append(words, "--"+p[0], p[1])
		}
	}
	if !inv.Has("tty") && !inv.Has("stdin") && !inv.Has("json") && a.atTerminal() {
		words = append(words, "--tty")
	}
	for _, p := range row.Places {
		words = append(words, "--egress-secret", fmt.Sprintf("%s=%s %s %s form:%s", row.Key, command.Value(inv, "api-key", row.Secret), p, host, row.Form))
	}
	for _, e := range row.Env {
		words = append(words, "--env", e)
	}
	words = append(words, given(inv)...)
	words = append(append(words, "--", program), append(row.Args, inv.Operands[1:]...)...)
	for _, f := range row.Files {
		home = append(home, cache.File(f))
	}
	return words, home, nil
}

// given returns the flags of exec that the person gave, as words.
func given(inv *command.Invocation) (words []string) {
	for _, f := range local.Exec.Flags {
		switch {
		case f.Arg == "" && inv.Has(f.Name):
			words = append(words, "--"+f.Name)
		case f.Arg != "":
			for _, v := range command.All[string](inv, f.Name) {
				words = append(words, "--"+f.Name, v)
			}
		}
	}
	return words
}

// seenAt returns where an agent sees its workspace.
func seenAt(workspace string) (string, error) {
	v, err := programs.ParseWorkspace(workspace)
	if err != nil {
		return "", fault.New(fault.Usage, "bad_command", "read flags", err)
	}
	w := v.(programs.Workspace)
	if !w.OwnPath {
		return vocabulary.WorkspaceDir, nil
	}
	dir, err := filepath.Abs(w.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", fault.New(fault.Usage, "workspace_unusable", fmt.Sprintf("workspace %q", w.Dir), err)
	}
	return dir, nil
}

// agent returns the row of an agent, and the path of its program.
func (a *app) agent(name string) (row agents.Agent, program string, err error) {
	row, ok := agents.Find(filepath.Base(name))
	if !ok {
		return row, "", fault.New(fault.Usage, "not_found", fmt.Sprintf("run agent %q", name), errors.New("it's not among those that palyra knows: "+strings.ReplaceAll(agents.Names(), "|", ", "))).
			WithHint("any program runs with palyra exec --tty --workspace .:staged --cache home --egress-secret 'KEY=vault://global/NAME header:authorization HOST' -- CMD, where it finds its key in $KEY")
	}
	op := fmt.Sprintf("find agent %q", name)
	found, err := a.find(name)
	if err == nil {
		found, err = filepath.EvalSymlinks(found)
	}
	if err != nil {
		return row, "", fault.New(fault.NotFound, "program_not_found", op, err).
			WithHint("install it (npm install -g " + row.Package + "), or name it by its path: palyra run -- DIR/" + row.Name)
	}
	if binary(found) {
		return row, found, nil
	}
	for _, n := range row.Natives {
		near, err := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(found)), n))
		if err != nil {
			return row, "", fault.New(fault.Internal, "internal", op, err)
		}
		if i := slices.IndexFunc(near, binary); i >= 0 {
			return row, near[i], nil
		}
	}
	return row, "", fault.New(fault.NotExec, "program_not_executable", op, fmt.Errorf("%q is a script, and the program that it starts isn't where the package %s has it", found, row.Package)).
		WithHint("name the agent's own binary, which has to be called " + row.Name)
}

// escapeGlob makes a pattern that matches one path.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// find looks a program up in the person's PATH, as a shell does.
func (a *app) find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return filepath.Abs(name)
	}
	for _, dir := range filepath.SplitList(a.getenv("PATH")) {
		if p, err := exec.LookPath(filepath.Join(dir, name)); filepath.IsAbs(dir) && err == nil {
			return p, nil
		}
	}
	return "", errors.New("it's in no folder of PATH")
}

// binary reports whether a file says that it's an ELF binary. Whether it can run is the kernel's
// matter.
func binary(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4)
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == "\x7fELF"
}

// atTerminal reports whether a person sits at both ends of this program.
func (a *app) atTerminal() bool {
	in, ok := a.stdin.(*os.File)
	return ok && device(in) && device(os.Stdout)
}

// device reports whether f is a terminal, as far as a mode tells: /dev/null is none.
func device(f *os.File) bool {
	fi, err := f.Stat()
	null, _ := os.Stat(os.DevNull)
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && !os.SameFile(fi, null)
}

// mostDenied is how many denied hosts are named after a run.
const mostDenied = 8

// afterRun says what a run leaves: hosts that it was denied, changes, a receipt. state is the
// directory that was named, "" for the usual one.
func afterRun(out *kernel.Outcome, state string) string {
	var b strings.Builder
	where := ""
	if state != "" {
		where = " --state " + programs.Quote(state)
	}
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, "palyra: %s\n", front.Escape(fmt.Sprintf(format, args...)))
	}
	if r := out.Result; r != nil && r.Evidence != nil {
		denied := r.Evidence.Egress.Denied
		for _, d := range denied[:min(len(denied), mostDenied)] {
			host := d.Host
			if d.Port != 0 {
				host = fmt.Sprintf("%s:%d", host, d.Port)
			}
			line("denied: %s (%s, %d times)", host, d.Why, d.Times)
		}
		if n := len(denied) - mostDenied; n > 0 {
			line("and %d more: the receipt lists them", n)
		}
		if len(denied) > 0 {
			line("--egress HOST lets it reach a host")
		}
	}
	if out.Layer != "" {
		line("palyra changes show%s %s shows what it wrote, palyra changes apply%s %s brings it here", where, out.Layer, where, out.Layer)
	}
	if out.Receipt != nil {
		line("receipt: entry %d of the journal (palyra journal show%s %d)", out.LogIndex, where, out.LogIndex)
	}
	return b.String()
}
