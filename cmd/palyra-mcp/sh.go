package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/programs"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/transport/mcp"
)

// The statuses of a line that didn't end by itself, as palyra exec has them.
const (
	exitTimedOut = 124
	exitRefused  = 125
	exitDenied   = 126
	exitKilled   = 128 + 9
)

const (
	lineTime    = 10 * time.Minute // default limit of a line
	cleanup     = 10 * time.Second // bounds the work after an interrupt
	maxDocument = 64 << 20         // of palyra exec --json: 16 MiB of output, in base64
	runTool     = "process.run"
)

// inCell is the script in the cell: it runs the line in a folder of the workspace, and if
// the line ends well says at the end of its output where the workspace is and where the
// line has ended. A line that says so itself chooses where the next one begins, as it may.
const inCell = `PALYRA_LINE=$1 PALYRA_ROOT=$(pwd -P); cd -- "$2" && shift 2 && eval " $PALYRA_LINE" && printf '\0palyra\0%s\0%s\0' "$PALYRA_ROOT" "$(pwd -P)"`

const mark = "\x00palyra\x00"

// shell says how and where a line runs.
type shell struct {
	dir       string // folder of the host that is the workspace, without links
	sub       string // folder of it to begin in
	workspace string // palyrad's name of dir; "": palyrad isn't asked
	policy    string // for palyra exec; "": it isn't used
	mode      string // of dir with palyra exec, as that takes it behind the colon, or rw
	layer     string
	network   string
	hosts     []string // that the line may reach
	timeout   time.Duration
	target    []string // flags that lead to palyrad
}

// newShell reads the flags for a line that begins in the folder cwd.
func newShell(inv *command.Invocation, dir, cwd string) (*shell, error) {
	s := &shell{workspace: command.Value(inv, "workspace", ""), policy: command.Value(inv, "policy", ""),
		mode: command.Value(inv, "mode", "staged"), layer: command.Value(inv, "layer", ""), network: command.Value(inv, "network", ""),
		hosts: command.All[string](inv, "egress"), timeout: command.Value(inv, "timeout", lineTime)}
	fail := func(format string, a ...any) (*shell, error) {
		return nil, fault.New(fault.Usage, "invalid_input", inv.Command.Name, fmt.Errorf(format, a...))
	}
	if s.workspace == "" && s.policy == "" {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("neither --workspace nor --policy is given")).
			WithHint("--workspace NAME is palyrad's, --policy DIR is for palyra exec")
	}
	var err error
	if s.policy != "" {
		if s.policy, err = filepath.Abs(s.policy); err != nil {
			return fail("%w", err)
		}
	}
	if s.dir, err = real(dir); err != nil {
		return fail("workspace: %w", err)
	}
	if s.policy != "" && strings.Contains(s.dir, ":") {
		return fail("workspace %q: palyra exec takes what follows a colon for its mode", s.dir)
	}
	at, err := real(cwd)
	if err == nil {
		s.sub, err = below(s.dir, at)
	}
	if err != nil {
		return fail("working directory: %w", err)
	}
	for _, name := range []string{"socket", "url", "token-file"} {
		v := command.Value(inv, name, "")
		if v != "" && name != "url" {
			if v, err = filepath.Abs(v); err != nil {
				return fail("%w", err)
			}
		}
		if v != "" {
			s.target = append(s.target, "--"+name, v)
		}
	}
	return s, nil
}

// words are flags with which palyra sh makes the same call.
func (s *shell) words() []string {
	words := []string{"--dir", s.dir, "--mode", s.mode, "--timeout", s.timeout.String()}
	for _, f := range [][2]string{{"--network", s.network}, {"--workspace", s.workspace}, {"--policy", s.policy}, {"--layer", s.layer}} {
		if f[1] != "" {
			words = append(words, f[0], f[1])
		}
	}
	return append(append(words, s.egress()...), s.target...)
}

// egress are the flags that name the hosts of the line.
func (s *shell) egress() (flags []string) {
	for _, h := range s.hosts {
		flags = append(flags, "--egress", h)
	}
	return flags
}

// reach are the flags of its network for palyra exec. One with hosts needs no name.
func (s *shell) reach() []string {
	if s.network == "" && len(s.hosts) > 0 {
		return s.egress()
	}
	return append([]string{"--network", cmp.Or(s.network, "fresh")}, s.egress()...)
}

// real returns the path of a folder without links.
func real(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", err
	}
	if fi, err := os.Stat(abs); err != nil || !fi.IsDir() {
		return "", fmt.Errorf("%q is no folder", path)
	}
	return abs, nil
}

// below returns the way from a folder to one in it.
func below(dir, path string) (string, error) {
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%q isn't in the workspace %q", path, dir)
	}
	return rel, nil
}

// argv is what runs in the cell for a line.
func (s *shell) argv(line string) []string {
	sh := "/bin/sh"
	if _, err := os.Stat("/bin/bash"); err == nil {
		sh = "/bin/bash"
	}
	return []string{sh, "-c", inCell, filepath.Base(sh), line, "./" + s.sub}
}

// input is the line as palyrad's tool takes it.
func (s *shell) input(line string) (json.RawMessage, error) {
	ms := s.timeout.Milliseconds()
	in := map[string]any{"argv": s.argv(line), "workspace": s.workspace, "timeout_ms": ms, "cpu_ms": ms}
	if s.network != "" {
		in["network"] = s.network
	}
	if len(s.hosts) > 0 {
		in["egress_hosts"] = s.hosts
	}
	b, err := json.Marshal(in)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "sh", err)
	}
	return b, nil
}

// staged reports whether what a line writes goes to a layer.
func (s *shell) staged() bool { return slices.Contains(strings.Split(s.mode, ","), "staged") }

// place is the workspace as palyra exec takes it.
func (s *shell) place() string {
	if s.mode == "rw" {
		return s.dir
	}
	return s.dir + ":" + s.mode
}

// preview asks how a line will be decided, so that a no can be told before it runs. The
// decision that counts is made when it does; a caller who may not ask learns it then.
func (a *app) preview(ctx context.Context, inv *command.Invocation, s *shell, line string) error {
	effect, reason, id := "", "", ""
	err := error(errNoDaemon)
	if s.workspace != "" {
		var x hub.Explanation
		if x, err = a.explained(ctx, inv, s, line); err == nil {
			effect, reason, id = x.Effect, x.Reason, x.DecisionID
		} else if d := hub.DenialOf(err); d != nil && d.Layer == hub.LayerAccess {
			return nil
		}
	}
	if unreachable(err) && s.policy != "" {
		var doc struct {
			Decision struct{ ID, Effect, Reason string }
			Error    *struct{ Message, Reason, Hint string }
		}
		args := append([]string{"policy", "explain", "--json", "--policy", s.policy, "--workspace", s.place()}, s.reach()...)
		args = append(append(args, "--"), s.argv(line)...)
		if _, err = a.palyra(ctx, args, &doc); err == nil && doc.Error != nil {
			err = fault.New(fault.Refused, doc.Error.Reason, "palyra policy explain", errors.New(doc.Error.Message)).WithHint(doc.Error.Hint)
		}
		effect, reason, id = doc.Decision.Effect, doc.Decision.Reason, doc.Decision.ID
	}
	switch {
	case err != nil:
		return err
	case effect == "allow", effect == "needs_approval":
		return nil
	case effect == "deny":
		d := &hub.Denial{Layer: hub.LayerPolicy, Reason: reason, DecisionID: id}
		return refusal(mcp.Refusal(d, "denied", "this command"))
	}
	return fault.New(fault.Internal, "internal", "explain the command", fmt.Errorf("effect %q", effect))
}

// errNoDaemon stands for a palyrad that isn't to be asked.
var errNoDaemon = fault.New(fault.Unavailable, "daemon_unreachable", "sh", errors.New("palyrad isn't asked"))

func unreachable(err error) bool { return errors.Is(err, fault.ErrUnreachable) }

func (a *app) explained(ctx context.Context, inv *command.Invocation, s *shell, line string) (x hub.Explanation, err error) {
	input, err := s.input(line)
	if err != nil {
		return x, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return x, err
	}
	return hub.ExplainPolicy.Do(ctx, h, hub.Caller{}, hub.NewCall{Tool: runTool, Input: input})
}

// own is the path of the palyra that is installed with this program.
func (a *app) own() (string, error) {
	exe := installed.Palyra(a.executable)
	if !filepath.IsAbs(exe) { // it would be looked up
		return "", fault.New(fault.Refused, "helper_unusable", "find palyra", errors.New("it isn't beside palyra-mcp")).WithHint("install them together")
	}
	return exe, nil
}

// palyra runs palyra and reads the one document that it prints.
func (a *app) palyra(ctx context.Context, args []string, doc any) (status int, err error) {
	exe, err := a.own()
	if err != nil {
		return 0, err
	}
	c := exec.CommandContext(ctx, exe, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it ends its cell
	c.WaitDelay = cleanup
	endWithUs(c)
	runtime.LockOSThread() // whose end would end the child
	defer runtime.UnlockOSThread()
	var errs strings.Builder
	c.Stderr = &limited{w: &errs, n: 8 << 10}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	op := "run palyra " + args[0]
	if err != nil {
		return 0, fault.New(fault.Refused, "helper_unusable", op, err)
	}
	b, rerr := io.ReadAll(io.LimitReader(out, maxDocument))
	_, _ = io.Copy(io.Discard, out)
	werr := c.Wait()
	if _, ok := errors.AsType[*exec.ExitError](werr); werr != nil && !ok {
		rerr = errors.Join(rerr, werr)
	}
	if rerr == nil {
		rerr = json.Unmarshal(b, doc)
	}
	if rerr != nil {
		return 0, fault.New(fault.Unavailable, "bad_answer", op, fmt.Errorf("%w; %s", rerr, front.OneLine(errs.String())))
	}
	return c.ProcessState.ExitCode(), nil
}

// limited takes the first n bytes of what is written.
type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(l.n, len(b))
	l.n -= n
	if _, err := l.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ending is what became of a line.
type ending struct {
	stdout, stderr []byte
	exit           int
	said           string // to the model, "" if the line ended by itself
}

// sh runs one line in a cell, and ends as it did.
func (a *app) sh(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	inv, err := unpack(inv)
	if err != nil {
		return a.said(exitRefused, forModel(err))
	}
	line, w, words, err := a.line(inv)
	if words != nil {
		var exe string
		if exe, err = a.own(); err == nil {
			err = a.become(exe, append([]string{exe}, words...))
			err = fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("execute %q", exe), err)
		}
	}
	if err != nil {
		return a.said(exitRefused, forModel(err))
	}
	cwd, err := os.Getwd()
	var s *shell
	if err == nil {
		s, err = newShell(inv, command.Value(inv, "dir", cwd), cwd)
	}
	var e *ending
	if err == nil {
		e, err = a.runLine(ctx, inv, s, line)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return a.said(front.Exit(fault.New(fault.Canceled, "canceled", "", nil)), "Cancelled while it ran, or while it waited for a person's approval.")
	case err != nil:
		return a.said(exitRefused, forModel(err))
	}
	rest, root, end, ok := handedBack(e.stdout)
	var lost error
	if ok && e.exit == 0 && e.said == "" {
		lost = s.handBack(command.Value(inv, "cwd-link", ""), w, root, end)
	}
	if _, err := front.Stdout(a.stdout).Write(rest); err != nil {
		return nil, err
	}
	if _, err := (front.Stream{W: a.stderr, Name: "standard error"}).Write(e.stderr); err != nil {
		return nil, err
	}
	if lost != nil {
		e.said = fmt.Sprintf("The next command starts in %q again: %v.", cwd, lost)
	}
	return a.said(e.exit, e.said)
}

// said ends with a status and a sentence for the model.
func (a *app) said(status int, text string) (*front.Report, error) {
	if text != "" {
		if _, err := fmt.Fprintf(a.stderr, "palyra: %s\n", front.Escape(text)); err != nil {
			return nil, fault.New(fault.Unavailable, "io_error", "write standard error", err)
		}
	}
	return &front.Report{Exit: status, Fields: front.Document{"status": status}}, nil
}

// unpack returns the command line that palyra hook packed.
func unpack(inv *command.Invocation) (*command.Invocation, error) {
	if !inv.Has("packed") {
		return inv, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(command.Value(inv, "packed", ""))
	var words []string
	if err == nil {
		err = canon.Decode(b, &words, canon.Limits{})
	}
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "sh", fmt.Errorf("--packed: %w", err))
	}
	return programs.Table(programs.Agents).Parse(append([]string{"sh"}, words...))
}

// line returns the line to run and, where it came in Claude Code's wrapping, the file for
// the folder that it ends in. words is a command of palyra's own that came as a line.
func (a *app) line(inv *command.Invocation) (line, cwdFile string, words []string, err error) {
	ops := inv.Operands
	switch {
	case len(ops) >= 2 && (ops[0] == "-c" || ops[0] == "-lc"):
		if len(ops) > 2 {
			return "", "", nil, fault.New(fault.Usage, "bad_command", "sh", errors.New("a line takes no arguments here"))
		}
		line = ops[1]
	case len(ops) == 1:
		if words := a.ours(ops[0]); words != nil {
			return "", "", words, nil
		}
		line, cwdFile = unwrap(ops[0])
	default:
		return "", "", nil, fault.New(fault.Usage, "bad_command", "sh", errors.New("want one LINE")).WithHint("see palyra help sh")
	}
	return line, cwdFile, nil, checkLine(line)
}

// runLine has palyrad run the line or, if it doesn't answer or isn't to be asked, palyra exec.
func (a *app) runLine(ctx context.Context, inv *command.Invocation, s *shell, line string) (*ending, error) {
	if s.workspace != "" {
		e, err := a.byDaemon(ctx, inv, s, line)
		if !unreachable(err) || s.policy == "" {
			return e, err
		}
	}
	return a.byExec(ctx, s, line)
}

// byDaemon has palyrad run the line; the end of this process ends it, too.
// daemon_unreachable means that palyrad was asked nothing.
func (a *app) byDaemon(ctx context.Context, inv *command.Invocation, s *shell, line string) (*ending, error) {
	input, err := s.input(line)
	if err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	r, err := a.callIn(ctx, s, h, hub.NewCall{Tool: runTool, Input: input})
	if err == nil && len(r.Steps) == 0 { // palyrad had no room for them in its answer
		r, err = hub.GetRun.Do(ctx, h, hub.Caller{}, r.ID)
	}
	if err == nil && len(r.Steps) != 1 {
		err = fault.New(fault.Integrity, "bad_answer", "call", fmt.Errorf("a run of %d steps", len(r.Steps)))
	}
	if d := hub.DenialOf(err); d != nil {
		return &ending{exit: exitDenied, said: mcp.Refusal(d, "denied", "this command")}, nil
	}
	if err != nil {
		return nil, err
	}
	return a.ended(ctx, h, &r)
}

// ended reads what became of the one step of a run.
func (a *app) ended(ctx context.Context, h hub.Hub, r *hub.Run) (e *ending, err error) {
	st := &r.Steps[0]
	if st.Denial != nil {
		outcome := st.Outcome
		if outcome == "" {
			outcome = "denied"
		}
		return &ending{exit: exitDenied, said: mcp.Refusal(st.Denial, outcome, "this command")}, nil
	}
	e = &ending{exit: st.Exit}
	e.becomes(st.Outcome, st.Error)
	if r.State == hub.RunCancelled {
		e.exit, e.said = front.Exit(fault.New(fault.Canceled, "canceled", "", nil)), "Cancelled."
	}
	e.diagnosed(st.Diagnosis)
	e.stdout = e.whole(ctx, h, r.ID, "standard output", st.Stdout)
	e.stderr = e.whole(ctx, h, r.ID, "standard error", st.Stderr)
	return e, nil
}

// becomes says an outcome to the model, and gives the status of one that isn't the line's.
func (e *ending) becomes(outcome, why string) {
	switch outcome {
	case "executed":
		return
	case "timed_out":
		e.exit, e.said = exitTimedOut, "It ran longer than it may."
	case "killed":
		e.exit, e.said = exitKilled, "It was killed."
	case "outcome_unknown":
		e.exit, e.said = exitRefused, "It is not known what became of it. It may have run: look before you repeat it."
	case "":
		e.exit, e.said = exitRefused, "Nothing ran."
	default:
		e.exit, e.said = exitRefused, "It failed."
	}
	if why != "" {
		e.said += " " + why + "."
	}
}

// diagnosed says why a line may have failed, without the setting that changes it, which is
// the operator's.
func (e *ending) diagnosed(d *hub.Diagnosis) {
	if d != nil && e.said == "" {
		e.said = "note: " + d.Text
	}
}

// whole reads an output, from its artifact where the answer has only its beginning. The line
// has run: what can't be had is said, and is no failure of the call.
func (e *ending) whole(ctx context.Context, h hub.Hub, run, name string, o hub.Output) []byte {
	b := []byte(o.Text)
	if o.Base64 != nil {
		b = o.Base64
	}
	why := o.LostWhy
	if !o.Artifact.IsZero() && !o.Lost {
		art, err := hub.GetArtifact.Do(ctx, h, hub.Caller{}, hub.ArtifactQuery{Run: run, Digest: o.Artifact.String()})
		if err == nil {
			var all []byte
			all, err = io.ReadAll(io.LimitReader(art, maxDocument))
			art.Close()
			if len(all) > len(b) {
				b = all
			}
		}
		why = fault.ReasonOf(err)
	}
	if int64(len(b)) < o.Size {
		if why == "" {
			why = "it is too long"
		}
		e.said = strings.TrimSpace(fmt.Sprintf("%s The first %d of %d bytes of its %s are here: %s.", e.said, len(b), o.Size, name, why))
	}
	return b
}

// stream is an output in the document of palyra exec --json.
type stream struct{ Encoding, Data string }

func (o stream) bytes() []byte {
	if o.Encoding == "base64" {
		if b, err := base64.StdEncoding.DecodeString(o.Data); err == nil {
			return b
		}
	}
	return []byte(o.Data)
}

// byExec has palyra exec run the line.
func (a *app) byExec(ctx context.Context, s *shell, line string) (*ending, error) {
	args := append([]string{"exec", "--json", "--policy", s.policy, "--workspace", s.place(),
		"--timeout", s.timeout.String(), "--cpu", s.timeout.String()}, s.reach()...)
	if s.layer != "" && s.staged() {
		args = append(args, "--layer", s.layer)
		done, err := a.turn(ctx, s)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	var doc struct {
		Outcome, Layer string
		Stdout, Stderr stream
		Decision       *struct{ ID, Reason string }
		Denial         *struct{ Reason, Comment string }
		Diagnosis      *hub.Diagnosis
		Error          *struct{ Kind, Message, Reason, Hint string }
	}
	status, err := a.palyra(ctx, append(append(args, "--"), s.argv(line)...), &doc)
	if err != nil {
		return nil, err
	}
	e := &ending{stdout: doc.Stdout.bytes(), stderr: doc.Stderr.bytes(), exit: status}
	d := &hub.Denial{Layer: hub.LayerPolicy}
	if doc.Decision != nil {
		d.DecisionID, d.Reason = doc.Decision.ID, doc.Decision.Reason
	}
	switch doc.Outcome {
	case "denied":
		e.said = mcp.Refusal(d, doc.Outcome, "this command")
	case "not_approved":
		d.Layer, d.Reason = hub.LayerApproval, doc.Outcome
		if doc.Denial != nil {
			d.Reason, d.Comment = doc.Denial.Reason, doc.Denial.Comment
		}
		e.said = mcp.Refusal(d, doc.Outcome, "this command")
	case "refused":
		d.Layer = hub.LayerIsolation
		if doc.Error != nil && doc.Error.Kind != fault.Refused.String() { // such as a layer in use
			return nil, fault.New(fault.Unavailable, doc.Error.Reason, "palyra exec", errors.New(doc.Error.Message)).WithHint(doc.Error.Hint)
		}
		if doc.Error != nil {
			d.Reason = doc.Error.Reason
		}
		e.said = mcp.Refusal(d, doc.Outcome, "this command")
	case "":
		if doc.Error == nil {
			return nil, fault.New(fault.Unavailable, "bad_answer", "run palyra exec", errors.New("no outcome"))
		}
		return nil, fault.New(fault.Refused, doc.Error.Reason, "palyra exec", errors.New(doc.Error.Message)).WithHint(doc.Error.Hint)
	default:
		why := ""
		if doc.Error != nil {
			why = doc.Error.Message
		}
		e.becomes(doc.Outcome, why)
		e.exit = status
		e.diagnosed(doc.Diagnosis)
	}
	return e, nil
}

// handedBack takes from an output what inCell appended to it.
func handedBack(out []byte) (rest []byte, root, cwd string, ok bool) {
	i := bytes.LastIndex(out, []byte(mark))
	if i < 0 {
		return out, "", "", false
	}
	parts := strings.Split(string(out[i+len(mark):]), "\x00")
	if len(parts) != 3 || parts[2] != "" {
		return out, "", "", false
	}
	return out[:i], parts[0], parts[1], true
}

// handBack makes the caller's shell, and so its next command, stand where the line ended:
// link leads there, and file names it, if they are given. cwd is as the cell has it.
func (s *shell) handBack(link, file, root, cwd string) error {
	if link == "" && file == "" {
		return nil
	}
	rel, err := below(root, cwd)
	if err != nil {
		return fmt.Errorf("%q is the cell's own", cwd)
	}
	to, err := real(filepath.Join(s.dir, rel))
	if err != nil {
		return fmt.Errorf("%q isn't there outside the cell", rel)
	}
	if _, err := below(s.dir, to); err != nil {
		return err
	}
	if file != "" {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // and so through no link
		if err != nil {
			return err
		}
		_, err = f.WriteString(to + "\n")
		return errors.Join(err, f.Close())
	}
	// A link can only be replaced whole.
	if err := os.Symlink(to, link+".new"); err != nil {
		return err
	}
	return os.Rename(link+".new", link)
}
