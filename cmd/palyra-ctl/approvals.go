package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) approvalsLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	state := command.Value(inv, "state", hub.ApprovalPending)
	if state == "all" {
		state = ""
	}
	p, err := hub.ListApprovals.Do(ctx, h, hub.Caller{}, hub.ApprovalQuery{PageQuery: page(inv), State: state})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("APPROVAL", "STATE", "CREATED", "REQUESTER", "TOOL", "ARGUMENTS").Keep(0)
	short := a.ids(inv, len(p.Items), func(i int) string { return p.Items[i].ID })
	for i := range p.Items {
		cells := approvalCells(&p.Items[i])
		cells[0] = short(p.Items[i].ID)
		t.Row(cells...)
	}
	return text(front.Document{"approvals": p.Items, "next": p.Next}, "%s%s", a.table(inv, t), more(p.Next)), nil
}

func approvalCells(ap *hub.Approval) []any {
	if ap.Reduced {
		return []any{ap.ID, ap.State, stamp(ap.Created), "another's", "", ""}
	}
	argv := ap.Card.Argv
	if ap.Card.Tool != "process.run" && len(argv) > 2 {
		// The program of a tool is palyra-tool, and its first argument the tool.
		argv = argv[2:]
	}
	return []any{ap.ID, ap.State, stamp(ap.Created), front.Principal(ap.Requester), ap.Card.Tool, strings.Join(argv, " ")}
}

func (a *app) approvalsShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	ap, err := hub.GetApproval.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	in, err := toolInput(ctx, h, &ap)
	return text(front.Document{"approval": ap, "input": in}, "%s", cardText(&ap, in, err)), nil
}

// cardText returns a request with the tool's input, or why that can't be read: whatever shows one
// to a person shows this.
func cardText(ap *hub.Approval, in json.RawMessage, err error) string {
	return approvalText(ap) + inputText(in, err)
}

// maxShown bounds how much of a tool's input a terminal gets, in bytes.
const maxShown = 64 << 10

// toolInput returns the tool's input, from the run: the card has only the digest of a
// sealed input, and a person must see the content to be written.
func toolInput(ctx context.Context, h hub.Hub, ap *hub.Approval) (json.RawMessage, error) {
	if ap.Reduced {
		return nil, nil
	}
	r, err := hub.GetRun.Do(ctx, h, hub.Caller{}, ap.Run)
	if err == nil && (ap.Step < 0 || ap.Step >= len(r.Steps) || len(r.Steps[ap.Step].Input) == 0) {
		err = fault.New(fault.Unavailable, "bad_answer", "read run", fmt.Errorf("it has no input of step %d", ap.Step))
	}
	if err != nil {
		return nil, err
	}
	return r.Steps[ap.Step].Input, nil
}

// inputText is the input for a person. A requester can make a run that can't be read at once: a
// card without the input must not look like one of a call that has none.
func inputText(in json.RawMessage, err error) string {
	var b bytes.Buffer
	if err == nil && len(in) > 0 {
		err = json.Indent(&b, in, "    ", "  ")
	}
	if err != nil {
		return "  the tool is given\n    NOT SHOWN: " + front.Escape(front.OneLine(err.Error())) + "\n" +
			"    of what it writes, no more than stands above is known here\n"
	}
	if b.Len() == 0 {
		return ""
	}
	s, cut := b.String(), ""
	if len(s) > maxShown {
		s, cut = s[:maxShown], fmt.Sprintf("\n    and %d bytes more; --json has all", b.Len()-maxShown)
	}
	return "  the tool is given\n    " + front.Escape(s) + cut + "\n"
}

// approvalText returns a request for a person. The daemon wrote it in printable ASCII, but
// escaping is this program's duty, so it escapes the text again.
func approvalText(ap *hub.Approval) string {
	l := newLines()
	if ap.Reduced {
		l.row(ap.ID, ap.State, "version", ap.Version, "another's", "until "+stamp(ap.Expires))
		return l.String()
	}
	l.row(ap.ID, ap.State, "version", ap.Version, "by "+ap.Requester, "until "+stamp(ap.Expires))
	if ap.Approver != "" {
		l.row("answered", stampOf(ap.Answered), ap.Approver, ap.Surface)
	}
	if len(ap.Yes) > 0 {
		l.row("yes", "of "+strings.Join(ap.Yes, ", "), "another person must, too")
	}
	if ap.Passkey {
		l.row("passkey", "a yes takes yours, in the console:", "palyra console open")
	}
	return l.String() + front.Escape(strings.TrimRight(ap.Text, "\n")) + "\n"
}

func (a *app) approve(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	ap, err := hub.GetApproval.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	if err := answerable(&ap); err != nil {
		return nil, err
	}
	ans, err := reach(inv)
	if err != nil {
		return nil, err
	}
	reaches, v, err := reachText(ctx, h, ap.ID, &ans, inv.Has("preview"))
	if err != nil {
		return nil, err
	}
	if inv.Has("preview") {
		return text(front.Document{"preview": v}, "%s", reaches), nil
	}
	if digest := command.Value(inv, "capsule", ""); digest != "" {
		fmt.Fprint(a.stderr, reaches) // who answers without a terminal is shown it all the same
		if digest != ap.Capsule.Hex() {
			return nil, fault.New(fault.NotApproved, "not_approved", "approve "+ap.ID, errors.New("the digest is not that of this request")).
				WithHint("palyra approvals show " + ap.ID)
		}
	} else if err := a.ask(ctx, h, &ap, reaches); err != nil {
		return nil, err
	}
	return resolved(answer(ctx, h, &ap, ans))
}

// answerable says why no yes to a request can count.
func answerable(ap *hub.Approval) error {
	op := "approve " + ap.ID
	switch {
	case ap.State != hub.ApprovalPending:
		return fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("it is %s", ap.State))
	case ap.Reduced: // there is nothing to say yes to
		return fault.New(fault.Denied, "not_permitted", op, errors.New("it is another's, and policy does not let this caller answer it")).
			WithHint("an approver whom the policies permit must answer")
	}
	return nil
}

// reachText returns what a yes for more than one call would let through; of a yes for one
// only if always.
func reachText(ctx context.Context, h hub.Hub, id string, ans *hub.Answer, always bool) (string, *hub.Preview, error) {
	if ans.Scope == "" && !always {
		return "", nil, nil
	}
	v, err := hub.PreviewApproval.Do(ctx, h, hub.Caller{}, hub.PreviewQuery{ID: id, Answer: *ans})
	if err != nil {
		return "", nil, err
	}
	return previewText(ans, &v), &v, nil
}

// answer answers exactly the version and capsule that the person was shown.
func answer(ctx context.Context, h hub.Hub, ap *hub.Approval, ans hub.Answer) (hub.Approval, error) {
	ans.Capsule = ap.Capsule.String()
	return hub.ResolveApproval.Do(ctx, h, hub.Caller{}, hub.Resolution{ID: ap.ID, Version: ap.Version, Answer: ans})
}

// reach reads the flags for the reach of a yes.
func reach(inv *command.Invocation) (hub.Answer, error) {
	ans := hub.Answer{Approve: true, Comment: command.Value(inv, "comment", ""), For: command.Value(inv, "for", time.Duration(0)),
		Uses: command.Value(inv, "uses", int64(0))}
	if s := command.Value(inv, "scope", "once"); s != "once" {
		ans.Scope = s
	}
	if ans.For != 0 {
		if inv.Has("scope") {
			return ans, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("--scope and --for say the same"))
		}
		ans.Scope = "timed"
	}
	for _, p := range command.All[programs.Pattern](inv, "pattern") {
		if ans.Pattern == nil {
			ans.Pattern = &hub.Pattern{}
		}
		ans.Pattern.Within = append(ans.Pattern.Within, p.Within...)
		ans.Pattern.Content = ans.Pattern.Content || p.Content
	}
	if ans.Scope == "" && (ans.Pattern != nil || ans.Uses != 0) {
		return ans, need(inv, "scope")
	}
	return ans, nil
}

// previewText returns the calls that a yes would let through, for a person.
func previewText(ans *hub.Answer, v *hub.Preview) string {
	var b strings.Builder
	until := "until its session ends"
	if ans.For != 0 {
		until = "for " + ans.For.String()
	}
	if ans.Uses != 0 {
		until += fmt.Sprintf(", at most %d calls", ans.Uses)
	}
	fmt.Fprintf(&b, "\nWithout being asked again, %s:\n%s\n", until, front.Escape(strings.TrimRight(v.Text, "\n")))
	fmt.Fprintf(&b, "It would also have let through %d of the last %d other requests of this principal", len(v.Refused), v.Looked)
	if len(v.Refused) == 0 {
		b.WriteString(".\n")
		return b.String()
	}
	b.WriteString(" that got no yes:\n")
	l := newLines()
	for i := range v.Refused {
		r := &v.Refused[i]
		l.row(" ", r.Approval, r.State, stamp(r.Created), r.Tool, strings.Join(r.Argv, " "))
	}
	return b.String() + l.String()
}

func (a *app) grants(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListGrants.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("GRANT", "SCOPE", "REQUESTER", "BY", "UNTIL", "USED", "TOOL", "BOUND").Keep(0)
	short := a.ids(inv, len(p.Items), func(i int) string { return p.Items[i].ID })
	for i := range p.Items {
		cells := grantCells(&p.Items[i])
		cells[0] = short(p.Items[i].ID)
		t.Row(cells...)
	}
	return text(front.Document{"grants": p.Items}, "%s", a.table(inv, t)), nil
}

func grantCells(g *hub.StandingGrant) []any {
	if g.Reduced {
		return []any{g.ID, g.Scope, "another's", "", "until " + stamp(g.Expires)}
	}
	bound := "capsule " + g.Capsule.String()
	if !g.Pattern.IsZero() {
		bound = "pattern " + g.Pattern.String()
	}
	uses := fmt.Sprint(g.Uses)
	if g.MaxUses > 0 {
		uses += fmt.Sprintf(" of %d", g.MaxUses)
	}
	return []any{g.ID, g.Scope, front.Principal(g.Requester), strings.Join(g.Approvers, ","), stamp(g.Expires), uses, g.Tool, bound}
}

func (a *app) grantRevoke(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	g, err := hub.RevokeGrant.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"grant": g}, "%s revoked\n", cell(g.ID)), nil
}

func (a *app) deny(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	return resolved(hub.ResolveApproval.Do(ctx, h, hub.Caller{}, hub.Resolution{ID: inv.Operands[0], Answer: hub.Answer{Comment: command.Value(inv, "comment", "")}}))
}

// resolved prints what became of a request.
func resolved(ap hub.Approval, err error) (*result, error) {
	if err != nil {
		return nil, err
	}
	return text(front.Document{"approval": ap}, "%s\n", resolvedText(&ap)), nil
}

func resolvedText(ap *hub.Approval) string {
	more := ""
	if ap.State == hub.ApprovalPending {
		more = fmt.Sprintf(": %s said yes, and another person must", strings.Join(ap.Yes, ", "))
	}
	return cell(ap.ID) + " " + cell(ap.State) + front.Escape(more)
}

// ask shows the request on the controlling terminal and reads the answer there, never from
// standard input, which may come from the requester of the call.
func (a *app) ask(ctx context.Context, h hub.Hub, ap *hub.Approval, reaches string) error {
	dev, err := terminal.Open(ctx, a.terminal)
	if err != nil {
		return fault.New(fault.Usage, "bad_command", "approve "+ap.ID, err).
			WithHint("name the capsule: --capsule DIGEST, all of it, from palyra approvals show " + ap.ID)
	}
	defer dev.Close()
	in, err := toolInput(ctx, h, ap)
	return confirm(ctx, dev.Person(""), ap, cardText(ap, in, err)+reaches)
}

// confirm is nil for a person's yes to what is shown.
func confirm(ctx context.Context, person *approval.Terminal, ap *hub.Approval, shown string) error {
	op := "approve " + ap.ID
	yes, _, err := person.Confirm(ctx, shown, "approve; anything else leaves it waiting: ")
	switch {
	case ctx.Err() != nil:
		return fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case fault.ReasonOf(err) != "": // the screen is too small
		return err
	case err != nil:
		return fault.New(fault.Unavailable, "io_error", op, err)
	case !yes:
		return fault.New(fault.NotApproved, "not_approved", op, errors.New("the digits are not those that were shown")).
			WithHint("it still waits: palyra approvals approve " + ap.ID + ", or deny")
	}
	return nil
}

// watchEvery is how often watch asks. A person does not notice a second.
const watchEvery = time.Second

// waiting finds out what waits and what became of the rest, by asking again and again.
type waiting struct {
	hub   hub.Hub
	known map[string]bool // waited when it was last asked
}

// glance is an answer to waiting.
type glance struct {
	all   []hub.Approval // that wait, newest first
	more  bool           // wait than a page holds
	fresh []hub.Approval // of all, those that are new
	ended []hub.Approval // waited before
	err   error          // nothing else is known, and the next look tells it all
}

func (w *waiting) look(ctx context.Context) (g glance) {
	p, err := hub.ListApprovals.Do(ctx, w.hub, hub.Caller{}, hub.ApprovalQuery{State: hub.ApprovalPending, PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		return glance{err: err}
	}
	g.all, g.more = p.Items, p.Next != ""
	pending := map[string]bool{}
	for i := range g.all {
		id := g.all[i].ID
		if pending[id] = true; !w.known[id] {
			g.fresh = append(g.fresh, g.all[i])
		}
	}
	for id := range w.known {
		if pending[id] {
			continue
		}
		ap, err := hub.GetApproval.Do(ctx, w.hub, hub.Caller{}, id)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			g.ended = append(g.ended, hub.Approval{ID: id, State: "gone"})
		case err != nil:
			return glance{err: err}
		case ap.State == hub.ApprovalPending: // on a further page
			pending[id] = true
		default:
			g.ended = append(g.ended, ap)
		}
	}
	w.known = pending
	return g
}

// watch prints waiting requests and their answers, until ctx ends.
func (a *app) watch(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if inv.Has("answer") {
		return a.watchScreen(ctx, inv, h)
	}
	done := &result{streamed: true}
	w := waiting{hub: h}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		g := w.look(ctx)
		if ctx.Err() != nil {
			return done, nil
		}
		if g.err != nil {
			return done, g.err
		}
		for _, ap := range append(g.fresh, g.ended...) {
			if err := a.watched(inv, &ap); err != nil {
				return done, err
			}
		}
		select {
		case <-ctx.Done():
			return done, nil
		case <-tick.C:
		}
	}
}

func (a *app) watched(inv *command.Invocation, ap *hub.Approval) error {
	out := front.Stdout(a.stdout)
	if inv.Has("json") {
		return front.WriteJSON(out, ap, "")
	}
	l := newLines()
	l.row(approvalCells(ap)...)
	_, err := out.Write([]byte(l.String()))
	return err
}
