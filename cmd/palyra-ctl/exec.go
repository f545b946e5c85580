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
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"palyra/authz/approval"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/receiptfile"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// palyra exec where the user has a palyrad: the flags become a call of process.run, with the
// words, statuses and document of palyra exec.

// maxStdin bounds the standard input that is read ahead and sealed, as palyra exec has it.
const maxStdin = 1 << 20

// exitNotFound is the status for a program that isn't there.
const exitNotFound = 127

// served are the flags of palyra exec that a palyrad serves, or that the client sees to.
var served = []string{"tier", "workspace", "secret", "egress", "inspect", "egress-secret", "env", "stdin", "network", "timeout", "cpu", "memory", "pids", "max-output", "receipt", "raw", "json"}

// exec makes the call.
func (a *app) exec(ctx context.Context, inv *command.Invocation) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first atomic.Int32 // signal
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	go func() {
		for {
			select {
			case s := <-signals:
				if sig, ok := s.(syscall.Signal); ok {
					first.CompareAndSwap(0, int32(sig))
				}
				cancel()
			case <-ctx.Done():
				return
			}
		}
	}()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // see call

	var held [2]bytes.Buffer
	p := a.printer(inv)
	if p == nil {
		p = &printer{to: [2]io.Writer{&held[0], &held[1]}, say: a.stderr}
	}
	r, bundle, err := a.execCall(ctx, inv, p)
	status := execExit(r, err)
	if interrupted := ctx.Err() != nil; interrupted && (r == nil || r.State == hub.RunCancelled) {
		status = 128 + int(cmp.Or(syscall.Signal(first.Load()), syscall.SIGINT))
	}
	if err != nil {
		front.Complain(a.stderr, "palyra", err)
	}
	if inv.Has("json") {
		if werr := execDocument(r, bundle, err, status, &held).Write(a.stdout, "exec"); werr != nil {
			front.Complain(a.stderr, "palyra", fault.New(fault.Unavailable, "io_error", "write standard output", werr))
			status = exitRefused
		}
	}
	res := &result{streamed: true}
	res.Exit = status
	return res, nil
}

// execCall has palyrad make the call, and returns it with its receipt.
func (a *app) execCall(ctx context.Context, inv *command.Invocation, p *printer) (*hub.Run, json.RawMessage, error) {
	socket := place.OwnSocket(a.getenv)
	op := "have palyrad make the call"
	if socket == "" {
		return nil, nil, fault.New(fault.NotFound, "daemon_unreachable", op, errors.New("this user has none")).WithHint(byItself)
	}
	if inv.Has("tty") {
		return nil, nil, fault.New(fault.Usage, "bad_command", op, errors.New("palyrad can't lend a call this terminal, and types nothing that comes later")).WithHint(byItself)
	}
	for _, f := range inv.Command.Flags {
		if inv.Has(f.Name) && !slices.Contains(served, f.Name) {
			return nil, nil, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("a call of palyrad's process.run has no --%s", f.Name)).WithHint(byItself)
		}
	}
	if t := command.Value(inv, "tier", "c"); t != "c" {
		return nil, nil, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("process.run has no floor but tier c, and --tier is %s", t)).WithHint(byItself)
	}
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return nil, nil, err
	}
	defer kept.Close()
	h, err := a.dial(connect.Target{Socket: socket, Own: true})
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(a.stderr, "palyra: the palyrad at %s decides and runs this; --no-daemon has palyra do it\n", cell(socket))
	n := hub.NewRun{}
	in, err := a.execInput(ctx, inv, h, &n)
	if err != nil {
		if unanswered(err) {
			err = fault.New(fault.KindOf(err), fault.ReasonOf(err), op, err).WithHint("start it (palyra setup palyrad), or: " + byItself)
		}
		return nil, nil, err
	}
	n.Steps = []hub.Step{{Tool: "process.run", Input: in}}
	r, over, err := a.makes(ctx, h, n, p, func(ctx context.Context, id string) { a.askHere(ctx, h, id, nil) })
	defer over()
	if errors.Is(err, fault.ErrJSONTooLarge) {
		err = fault.New(fault.KindOf(err), "json_too_large", op, err).WithHint("limits.body in palyrad.toml bounds a request; or: " + byItself)
	}
	if err != nil {
		return nil, nil, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	_, err = a.called(end, h, r, p, nil)
	if len(r.Steps) == 1 && r.Steps[0].LogIndex != nil && (kept != nil || inv.Has("json")) {
		index := *r.Steps[0].LogIndex
		b, rerr := hub.GetReceipt.Do(end, h, hub.Caller{}, index)
		if rerr == nil {
			rerr = kept.Keep(b, index, 0o644)
		}
		return r, b, errors.Join(err, rerr)
	}
	return r, nil, err
}

const byItself = "palyra exec --no-daemon has palyra make the call itself, by the policies of --policy"

// execInput makes the input of process.run.
func (a *app) execInput(ctx context.Context, inv *command.Invocation, h hub.Hub, n *hub.NewRun) (json.RawMessage, error) {
	in := map[string]any{"argv": inv.Operands}
	if env := command.All[string](inv, "env"); env != nil {
		in["env"] = env
	}
	if secrets := command.All[string](inv, "secret"); secrets != nil { // of palyrad's vault
		in["secrets"] = secrets
	}
	if hosts := command.All[string](inv, "egress"); hosts != nil {
		in["egress_hosts"] = hosts
	}
	if rules := command.All[string](inv, "inspect"); rules != nil {
		in["egress_inspect"] = rules
	}
	if uses := command.All[string](inv, "egress-secret"); uses != nil { // of palyrad's vault
		in["egress_secrets"] = uses
	}
	if s := command.Value(inv, "network", ""); s != "" {
		in["network"] = s
	}
	for flag, member := range map[string]string{"timeout": "timeout_ms", "cpu": "cpu_ms"} {
		if d := command.Value(inv, flag, time.Duration(0)); d != 0 {
			in[member] = (d + time.Millisecond - 1).Milliseconds()
		}
	}
	for flag, member := range map[string]string{"memory": "memory", "pids": "pids", "max-output": "output"} {
		if v := command.Value(inv, flag, int64(0)); v != 0 {
			in[member] = v
		}
	}
	if inv.Has("stdin") {
		b, err := io.ReadAll(io.LimitReader(a.stdin, maxStdin+1))
		if err != nil {
			return nil, fault.New(fault.Usage, "bad_file", "read standard input", err)
		}
		if len(b) > maxStdin {
			return nil, fault.New(fault.Usage, "too_large", "read standard input", fmt.Errorf("more than %d bytes, and palyrad takes no stream", maxStdin)).WithHint(byItself)
		}
		in["stdin"] = string(b)
		text, err := canon.Marshal(in["stdin"])
		if coded := base64.StdEncoding.EncodeToString(b); err != nil || !utf8.Valid(b) || len(text) > len(coded) { // palyrad bounds a request
			in["stdin"], in["encoding"] = coded, "base64"
		}
	}
	if inv.Has("workspace") {
		if err := a.execWorkspace(ctx, inv, h, n, in); err != nil {
			return nil, err
		}
	}
	return canon.Marshal(in)
}

// execWorkspace finds the workspace of palyrad's that is the folder of --workspace. Its mode is
// the one that was asked for, or it's refused.
func (a *app) execWorkspace(ctx context.Context, inv *command.Invocation, h hub.Hub, n *hub.NewRun, in map[string]any) error {
	w := command.Value(inv, "workspace", programs.Workspace{})
	dir, err := filepath.Abs(w.Dir)
	op := fmt.Sprintf("find workspace %q", w.Dir)
	if err != nil {
		return fault.New(fault.Usage, "workspace_unusable", op, err)
	}
	mine, err := os.Stat(dir)
	if err != nil {
		return fault.New(fault.Usage, "workspace_unusable", op, err)
	}
	settings, err := hub.GetConfig.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return err
	}
	name, has := "", map[string]bool{}
	for _, s := range settings.Items {
		ws, found := strings.CutSuffix(strings.TrimPrefix(s.Key, "workspaces."), ".path")
		if !found || ws == s.Key {
			continue
		}
		if fi, err := os.Stat(fmt.Sprint(s.Value)); err == nil && os.SameFile(fi, mine) {
			name = ws
			break
		}
	}
	for _, s := range settings.Items {
		if key, found := strings.CutPrefix(s.Key, "workspaces."+name+"."); found && name != "" {
			has[key] = fmt.Sprint(s.Value) == "true"
		}
	}
	no := func(why, hint string) error {
		return fault.New(fault.Usage, "workspace_unusable", op, errors.New(why)).WithHint(hint + "; or: " + byItself)
	}
	switch {
	case name == "":
		return fault.New(fault.Usage, "not_found", op, errors.New("palyrad has none at this folder")).
			WithHint("palyra setup palyrad, in that folder, declares it; or: " + byItself)
	case has["staged"] && !w.Staged && !w.ReadOnly:
		return no("palyrad stages it: what is written there goes to a layer", "ask for that: --workspace "+w.Dir+":staged")
	case w.OwnPath && !has["own_path"]:
		return no("palyrad doesn't show it at its own path", "set workspaces."+name+".own_path in palyrad.toml")
	}
	in["workspace"] = name
	if w.ReadOnly {
		in["read_only"] = true
	}
	n.Staged = w.Staged
	// A path of the program is one of this directory's for whoever types it, and of the
	// workspace's for palyrad.
	if argv := slices.Clone(inv.Operands); strings.Contains(argv[0], "/") && !filepath.IsAbs(argv[0]) {
		path, err := filepath.Abs(argv[0])
		if err != nil {
			return fault.New(fault.Usage, "invalid_input", "find current directory", err)
		}
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			path = "./" + rel
		}
		argv[0] = path
		in["argv"] = argv
	}
	return nil
}

// askHere asks the person at this terminal about a request that waits, if they may answer it.
// What isn't the digits is a no, as palyra exec has it. It ends with ctx: another person answered,
// or the call is over. before says what stands before the card; nil: nothing.
func (a *app) askHere(ctx context.Context, h hub.Hub, id string, before func() string) {
	waits := func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "palyra: waits for approval%s: palyra approvals show %s\n", front.Escape(fmt.Sprintf(format, args...)), cell(id))
	}
	if a.getenv("PALYRA_NO_INPUT") != "" {
		waits("")
		return
	}
	v, err := hub.PreviewApproval.Do(ctx, h, hub.Caller{}, hub.PreviewQuery{ID: id, Answer: hub.Answer{Approve: true}})
	var ap hub.Approval
	if err == nil {
		ap, err = hub.GetApproval.Do(ctx, h, hub.Caller{}, id)
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		waits(" (%v)", err)
		return
	case v.Void != "":
		waits(" by another person, since a yes of yours wouldn't count (%s)", v.Void)
		if d := fault.Do(v.Void); d != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", d)
		}
		return
	case v.Passkey:
		waits(" in the console, with a passkey (palyra console open)")
		return
	}
	dev, err := terminal.Open(ctx, a.terminal)
	if err != nil {
		if ctx.Err() == nil {
			waits("")
		}
		return
	}
	input, err := toolInput(ctx, h, &ap)
	shown, person := cardText(&ap, input, err), dev.Person("")
	var yes bool
	var typed string
	if err = nil; before != nil {
		err = person.Show(before())
	}
	if err == nil {
		yes, typed, err = person.Confirm(ctx, shown, "approve this call once; anything else is told to the caller, and denies: ")
	}
	dev.Close()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		waits(" (%v)", err)
		return
	}
	ans := hub.Answer{Approve: yes}
	if !yes {
		ans.Comment = approval.Comment(typed)
	}
	if now, err := answer(ctx, h, &ap, ans); err != nil && ctx.Err() == nil {
		waits(" (%v)", err)
	} else if err == nil && now.State == hub.ApprovalPending {
		waits(": another person must say yes, too")
	}
}

// execExit returns the status of a call, as palyra exec has it.
func execExit(r *hub.Run, err error) int {
	switch {
	case r == nil && fault.KindOf(err) == fault.Timeout:
		return exitTimedOut
	case r == nil && (fault.KindOf(err) == fault.Denied || fault.KindOf(err) == fault.NotApproved):
		return exitDenied
	case r == nil, err != nil, len(r.Steps) != 1:
		return exitRefused
	case r.Steps[0].Outcome == "" && fault.Code(r.Steps[0].Reason) == fault.ErrNoProgram:
		return exitNotFound
	}
	return callExit(r, &r.Steps[0])
}

// execDocument returns the document of palyra exec --json. Of the receipt nothing is verified
// here: it came from palyrad with the rest.
func execDocument(r *hub.Run, bundle json.RawMessage, err error, status int, held *[2]bytes.Buffer) front.Document {
	d := front.Document{"status": status, "stdout": front.OutputFields(held[0].Bytes()), "stderr": front.OutputFields(held[1].Bytes()), "error": nil}
	if r != nil && len(r.Steps) == 1 {
		s := &r.Steps[0]
		var b struct {
			DSSEEnvelope struct{ Payload []byte }
		}
		var statement struct {
			Predicate struct {
				Decision, Approval, Evidence, Planted json.RawMessage
				Error                                 *struct{ Kind string }
			}
		}
		// What can't be read is left out.
		_ = json.Unmarshal(bundle, &b)
		_ = json.Unmarshal(b.DSSEEnvelope.Payload, &statement)
		x := &statement.Predicate
		d["call_id"], d["outcome"], d["capsule"] = s.CallID, s.Outcome, s.Capsule
		d["decision"], d["approval"] = null(x.Decision), null(x.Approval)
		d["receipt"], d["log_index"], d["delivered"] = null(bundle), s.LogIndex, err == nil
		if string(null(x.Evidence)) != "null" {
			d["evidence"] = x.Evidence
		}
		if s.Diagnosis != nil {
			d["diagnosis"] = s.Diagnosis
		}
		if x.Planted != nil {
			d["planted"] = x.Planted
		}
		if s.Layer != "" {
			d["layer"] = s.Layer
		}
		if n := s.Denial; n != nil && n.Layer == hub.LayerApproval {
			d["denial"] = front.Document{"layer": "approval", "reason": n.Reason, "comment": n.Comment}
		}
		if s.Outcome != "executed" {
			e := front.Document{"reason": s.Reason, "message": cmp.Or(s.Error, s.Reason), "hint": cmp.Or(s.Hint, fault.Do(s.Reason))}
			if x.Error != nil { // no result of a step has it
				e["kind"] = x.Error.Kind
			}
			d["error"] = e
		}
	}
	if err != nil {
		d["error"] = front.ErrorFields(err)
	}
	return d
}

func null(b json.RawMessage) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}
