package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

// agentInstructions lists, shows, accepts or revokes what workspaces tell agents.
func (a *app) agentInstructions(ctx context.Context, inv *command.Invocation) (*result, error) {
	verb, workspace := "ls", ""
	if len(inv.Operands) > 0 {
		verb = inv.Operands[0]
	}
	if len(inv.Operands) > 1 {
		workspace = inv.Operands[1]
	}
	do := map[string]func(context.Context, *command.Invocation, hub.Hub, string) (*result, error){
		"ls": a.instructionsLs, "show": a.instructionsShow, "accept": a.instructionsAccept, "revoke": a.instructionsRevoke}[verb]
	misplaced := verb != "accept" && (inv.Has("digest") || inv.Has("anyway"))
	if do == nil || (verb == "ls") != (workspace == "") || misplaced {
		return nil, fault.New(fault.Usage, "bad_command", "agent instructions", errors.New("want ls, show WORKSPACE, accept WORKSPACE [--digest DIGEST] or revoke WORKSPACE")).
			WithHint("palyra help agent instructions")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	return do(ctx, inv, h, workspace)
}

func (a *app) instructionsLs(ctx context.Context, inv *command.Invocation, h hub.Hub, _ string) (*result, error) {
	p, err := hub.ListInstructions.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("WORKSPACE", "FILE", "DIGEST", "ACCEPTED BY", "ACCEPTED").Keep(0)
	for _, i := range p.Items {
		t.Row(i.Workspace, i.Accepted.File, i.Accepted.Digest.String(), front.Principal(i.Accepted.By), stamp(i.Accepted.Time))
	}
	return text(front.Document{"instructions": p.Items}, "%s", a.table(inv, t)), nil
}

// inspected reads the instructions of a workspace.
func (a *app) inspected(ctx context.Context, h hub.Hub, workspace string) (hub.Instructions, error) {
	slow := time.AfterFunc(time.Second, func() {
		fmt.Fprint(a.stderr, "palyra: reads the workspace, which a person may have to approve: palyra approvals watch --answer, in another terminal\n")
	})
	defer slow.Stop()
	return hub.InspectInstructions.Do(ctx, h, hub.Caller{}, workspace)
}

func (a *app) instructionsShow(ctx context.Context, _ *command.Invocation, h hub.Hub, workspace string) (*result, error) {
	i, err := a.inspected(ctx, h, workspace)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"instructions": i}, "%s", shownInstructions(&i)), nil
}

// shownInstructions prints instructions, which are foreign text, and what is to be known of them.
func shownInstructions(i *hub.Instructions) string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, cell(fmt.Sprintf(format, args...)))
	}
	row("workspace", "%s, %s", i.Workspace, i.State)
	if i.File != "" {
		row("file", "%s, %d bytes", i.File, len(i.Text))
		row("digest", "%s", i.Digest)
	}
	if y := i.Accepted; y != nil {
		row("accepted", "%s, %s, %s by %s", y.File, y.Digest, stamp(y.Time), y.By)
	}
	for _, s := range i.Signals {
		row("sign", "%s: bytes %d to %d", s.Code, s.From, s.To)
	}
	for line := range strings.SplitSeq(i.Text, "\n") {
		b.WriteString("    " + cell(line) + "\n")
	}
	return b.String()
}

func (a *app) instructionsAccept(ctx context.Context, inv *command.Invocation, h hub.Hub, workspace string) (*result, error) {
	if d := command.Value(inv, "digest", ""); d != "" {
		i, err := hub.AcceptInstructions.Do(ctx, h, hub.Caller{}, hub.InstructionsAcceptance{Workspace: workspace,
			InstructionsAcceptanceBody: hub.InstructionsAcceptanceBody{Digest: d, Anyway: inv.Has("anyway")}})
		if err != nil {
			return nil, err
		}
		return text(front.Document{"instructions": i}, "accepted %s of %s\n", cell(i.File), cell(i.Workspace)), nil
	}
	i, err := a.inspected(ctx, h, workspace)
	if err != nil {
		return nil, err
	}
	how := ""
	switch i.State {
	case hub.InstructionsNone:
		how = "\nThe workspace has none of: " + strings.Join(hub.InstructionFiles(), ", ") + "\n"
	case hub.InstructionsAccepted:
		how = "\nThese are the instructions that you have accepted.\n"
	default:
		how = fmt.Sprintf("\nTo accept them: palyra agent instructions accept %s --digest %s\n", cell(i.Workspace), i.Digest)
	}
	return text(front.Document{"instructions": i}, "%s%s", shownInstructions(&i), how), nil
}

func (a *app) instructionsRevoke(ctx context.Context, _ *command.Invocation, h hub.Hub, workspace string) (*result, error) {
	if _, err := hub.RevokeInstructions.Do(ctx, h, hub.Caller{}, workspace); err != nil {
		return nil, err
	}
	return text(front.Document{"revoked": workspace}, "the instructions of %s count for your agents no more\n", cell(workspace)), nil
}
