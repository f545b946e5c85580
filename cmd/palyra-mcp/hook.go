package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/hub/place"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Bounds of a hook.
const (
	maxHook  = 4 << 20   // of its input: what a tool writes to a file is in it
	maxLine  = 64 << 10  // of a command: packed, it must fit into one argument, 128 KiB
	maxLinks = 8192      // links that wait for their cd, and locks
	linkTime = time.Hour // of a link: Claude Code ends a command after 10 minutes, by default
	lockTime = 24 * time.Hour
	hookTime = 20 * time.Second // the clients wait for 60 s as setup enters it, and then let the call pass
)

// harmless are the tools of Claude Code 2.1 and Codex 0.169 that start no program of the
// model's choice. A name with * at its end stands for all that begin so.
var harmless = strings.Fields(`Agent AskUserQuestion BashOutput Edit EndConversation EnterPlanMode ExitPlanMode Glob
	Grep KillShell ListAgents ListMcpResourcesTool LS MultiEdit NotebookEdit Read ReadMcpResourceDirTool
	ReadMcpResourceTool ReadNotifications ReportFindings SendMessage SendUserMessage Skill StructuredOutput
	SubagentHandback Task TaskCreate TaskGet TaskList TaskOutput TaskStop TaskUpdate TodoWrite ToolSearch
	WaitForMcpServers WebFetch WebSearch Write apply_patch update_plan view_image mcp__*`)

// harmlessMembers of a shell command's input, besides the command, don't choose what runs. All
// others are left out of the answer: a client may take one for the program that reads the command,
// or for a file to write instead (_simulatedSedEdit of Claude Code).
var harmlessMembers = strings.Fields("description timeout run_in_background dangerouslyDisableSandbox")

// event is what an agent tells its hook of a tool call.
type event struct {
	name, cwd, session string
	input              map[string]json.RawMessage
}

// hook answers an agent's question about one tool call. An error is a no.
func (a *app) hook(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	agent := inv.Operands[0]
	if agent != "claude" && agent != "codex" {
		return nil, fault.New(fault.Usage, "bad_command", "hook", fmt.Errorf("no hook of an agent %q", agent)).WithHint("want claude or codex")
	}
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	type result struct {
		input map[string]json.RawMessage // nil: the call passes as it is
		err   error
	}
	answered := make(chan result, 1)
	go func() {
		input, err := a.consider(ctx, inv, agent)
		answered <- result{input, err}
	}()
	var r result
	select {
	case r = <-answered:
	case <-ctx.Done(): // the reader of standard input can't be stopped, and ends with the process
		r.err = fault.New(fault.Timeout, "timeout", "hook", errors.New("no answer in time"))
	}
	switch {
	case r.err != nil:
		return verdict(front.Document{"permissionDecision": "deny", "permissionDecisionReason": forModel(r.err)})
	case r.input == nil:
		return &front.Report{Fields: front.Document{}}, nil
	}
	return verdict(front.Document{"permissionDecision": "allow", "permissionDecisionReason": "it runs in a cell of Palyra", "updatedInput": r.input})
}

// verdict is the answer in the words that both agents understand.
func verdict(d front.Document) (*front.Report, error) {
	d["hookEventName"] = "PreToolUse"
	fields := front.Document{"hookSpecificOutput": d}
	b, err := json.Marshal(fields)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "hook", err)
	}
	return &front.Report{Text: string(b) + "\n", Fields: fields}, nil
}

// refusal is a no whose words are for the model.
type refusal string

func (r refusal) Error() string { return string(r) }

// forModel says why a call didn't happen.
func forModel(err error) string {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.Error()
	}
	text := "Nothing ran: Palyra couldn't make this call."
	if errors.Is(err, fault.ErrConnectionLost) {
		text = "Palyra lost sight of this call. It may have run: look before you repeat it."
	}
	text += fmt.Sprintf(" Reason: %s: %s.", fault.ReasonOf(err), err)
	if h := fault.HintOf(err); h != "" {
		text += " For the user: " + h + "."
	}
	return text
}

// consider returns the input with which a tool call may go on, nil for its own.
func (a *app) consider(ctx context.Context, inv *command.Invocation, agent string) (map[string]json.RawMessage, error) {
	e, err := readEvent(a.stdin)
	switch {
	case err != nil:
		return nil, err
	case named(command.All[string](inv, "refuse"), e.name):
		return nil, refusal(fmt.Sprintf("Nothing ran: the operator of this machine has turned the tool %q off. Do not repeat it: take another way, or tell the user what you need.", e.name))
	case e.name == "Bash":
		return a.rewrite(ctx, inv, agent, e)
	case named(harmless, e.name), named(command.All[string](inv, "pass"), e.name):
		return nil, nil
	}
	return nil, fault.New(fault.Denied, "not_found", "hook", fmt.Errorf("palyra hook doesn't know the tool %q", e.name)).
		WithHint("palyra hook " + agent + " --pass NAME lets a tool pass, unconfined")
}

// named reports whether a name is one of the patterns.
func named(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		head, open := strings.CutSuffix(p, "*")
		return p == name || open && strings.HasPrefix(name, head)
	})
}

// readEvent reads what an agent writes: one JSON object with one reading.
func readEvent(r io.Reader) (*event, error) {
	const op = "read the tool call"
	b, err := io.ReadAll(io.LimitReader(r, maxHook+1))
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if len(b) > maxHook {
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", maxHook))
	}
	var e event
	var all map[string]json.RawMessage
	if err := canon.Decode(b, &all, canon.Limits{Bytes: maxHook, Depth: 64}); err != nil {
		return nil, err
	}
	var kind string
	for name, to := range map[string]any{"hook_event_name": &kind, "tool_name": &e.name, "cwd": &e.cwd, "session_id": &e.session, "tool_input": &e.input} {
		if err := json.Unmarshal(all[name], to); err != nil {
			return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%s: %w", name, err))
		}
	}
	switch {
	case kind != "PreToolUse":
		err = fmt.Errorf("event %q, want PreToolUse", kind)
	case e.name == "":
		err = errors.New("no tool_name")
	case !filepath.IsAbs(e.cwd):
		err = fmt.Errorf("cwd %q is no absolute path", e.cwd)
	default:
		return &e, nil
	}
	return nil, fault.New(fault.Usage, "invalid_input", op, err)
}

// rewrite returns the input of a shell command's call with a command that runs it in a cell.
func (a *app) rewrite(ctx context.Context, inv *command.Invocation, agent string, e *event) (map[string]json.RawMessage, error) {
	const op = "rewrite the command"
	var line string
	if err := json.Unmarshal(e.input["command"], &line); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("command: %w", err))
	}
	if err := checkLine(line); err != nil {
		return nil, err
	}
	dir := command.Value(inv, "dir", "")
	if dir == "" && agent == "claude" {
		dir = a.getenv("CLAUDE_PROJECT_DIR")
	}
	if dir == "" {
		dir = e.cwd
	}
	s, err := newShell(inv, dir, e.cwd)
	if err != nil {
		return nil, err
	}
	if s.layer == "" && (s.staged() || s.workspace != "") { // the next command of the session sees what this one wrote
		s.layer = agent + "-" + canon.Sum([]byte(e.session + "\x00" + s.dir)).Hex()[:16]
	}
	if err := a.preview(ctx, inv, s, line); err != nil {
		return nil, err
	}
	words := s.words()
	tail := ""
	if agent == "claude" { // whose next command starts where its shell ends
		link, err := a.newLink(e.cwd)
		if err != nil {
			return nil, err
		}
		words = append(words, "--cwd-link", link)
		tail = ` && \builtin cd -P -- ` + programs.Quote(link)
	}
	packed, err := json.Marshal(append(words, "--", line))
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	exe, err := a.own()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(programs.Quote(exe) + " sh --packed " + base64.RawURLEncoding.EncodeToString(packed) + tail)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	input := map[string]json.RawMessage{"command": text}
	for _, name := range harmlessMembers {
		if v, ok := e.input[name]; ok {
			input[name] = v
		}
	}
	return input, nil
}

func checkLine(line string) (err error) {
	switch {
	case strings.TrimSpace(line) == "":
		err = errors.New("it is empty")
	case strings.ContainsRune(line, 0):
		err = errors.New("it holds a NUL character")
	case len(line) > maxLine:
		return fault.New(fault.Usage, "too_large", "read the command", fmt.Errorf("%d bytes, at most %d are taken", len(line), maxLine)).
			WithHint("put it into a script of the workspace, and run that")
	default:
		return nil
	}
	return fault.New(fault.Usage, "invalid_input", "read the command", err)
}

// folder is where hooks and shells keep what one leaves for the next. What is old goes: no shell
// waits for it.
func (a *app) folder() (string, error) {
	const op = "keep what the next command needs"
	fail := func(err error) (string, error) {
		return "", fault.New(fault.Unavailable, "io_error", op, err)
	}
	state := place.StateDir(a.getenv)
	if state == "" {
		return fail(errors.New("neither XDG_STATE_HOME nor HOME is an absolute path"))
	}
	dir := state + "-hook"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fail(err)
	}
	left := 0
	for _, e := range entries {
		fi, err := e.Info()
		most := lockTime
		if e.Type() == os.ModeSymlink {
			most = linkTime
		}
		if err != nil || time.Since(fi.ModTime()) > most && os.Remove(filepath.Join(dir, e.Name())) == nil {
			continue
		}
		left++
	}
	if left >= maxLinks {
		return fail(fmt.Errorf("%q holds %d entries", dir, left))
	}
	return dir, nil
}

// newLink makes a link to a folder that palyra sh turns to another.
func (a *app) newLink(to string) (string, error) {
	dir, err := a.folder()
	if err != nil {
		return "", err
	}
	link := filepath.Join(dir, rand.Text())
	if err := os.Symlink(to, link); err != nil {
		return "", fault.New(fault.Unavailable, "io_error", "keep the working directory", err)
	}
	return link, nil
}

// turn waits for the layer that a session's commands share, and returns what gives it back.
func (a *app) turn(ctx context.Context, s *shell) (func() error, error) {
	dir, err := a.folder()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, s.layer+".lock")
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := durable.Lock(path)
		if err == nil {
			now := time.Now() // it isn't a day old
			return l.Unlock, os.Chtimes(path, now, now)
		}
		if fault.KindOf(err) != fault.Busy {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fault.New(fault.Busy, "locked", fmt.Sprintf("wait for layer %q", s.layer), errors.New("another command of the session goes on"))
		}
	}
}
