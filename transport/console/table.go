package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// page is a page, or what one of its buttons does.
type page struct {
	method string
	words  []string // of the path, behind root; "*" is any
	do     func(*turn) error
}

// table has all of them.
var table = []page{
	{http.MethodGet, []string{""}, func(t *turn) error { return see(t.w, t.r, first) }},
	{http.MethodGet, []string{"questions"}, (*turn).questions},
	{http.MethodGet, []string{"questions", "*"}, (*turn).question},
	{http.MethodPost, []string{"questions", "*"}, (*turn).answer},
	{http.MethodPost, []string{"grants", "*", "revoke"}, (*turn).revokeGrant},
	{http.MethodGet, []string{"runs"}, (*turn).runs},
	{http.MethodGet, []string{"runs", "*"}, (*turn).run},
	{http.MethodPost, []string{"runs", "*", "cancel"}, (*turn).cancel},
	{http.MethodGet, []string{"changes"}, (*turn).layers},
	{http.MethodGet, []string{"changes", "*"}, (*turn).layer},
	{http.MethodPost, []string{"changes", "*", "discard"}, (*turn).discard},
	{http.MethodGet, []string{"journal"}, (*turn).journal},
	{http.MethodGet, []string{"journal", "*"}, (*turn).entry},
	{http.MethodGet, []string{"access"}, (*turn).access},
	{http.MethodPost, []string{"access", "*", "revoke"}, (*turn).revokeToken},
	{http.MethodGet, []string{"host"}, (*turn).host},
	{http.MethodPost, []string{"stop"}, (*turn).stop},
	{http.MethodPost, []string{"resume"}, (*turn).resume},
	{http.MethodPost, []string{"leave"}, func(t *turn) error { return t.leave("This browser's token is revoked.") }},
}

// ask has the hub do an operation for the visitor.
func ask[In, Out any](t *turn, op hub.Op[In, Out], in In) (Out, error) {
	return op.Do(t.ctx, t.v.Hub, t.v.Caller, in)
}

// may is ask for a part of a page that the visitor may lack the permission for: then it's left out.
func may[In, Out any](t *turn, op hub.Op[In, Out], in In) (*Out, error) {
	out, err := op.Do(t.ctx, t.v.Hub, t.v.Caller, in)
	if fault.KindOf(err) == fault.Denied {
		return nil, nil
	}
	return &out, err
}

// listed bounds a page's list.
const listed = 100

func (t *turn) after() hub.PageQuery {
	return hub.PageQuery{After: t.r.URL.Query().Get("after"), Limit: listed}
}

func (t *turn) questions() error {
	waiting, err := ask(t, hub.ListApprovals, hub.ApprovalQuery{State: hub.ApprovalPending, PageQuery: hub.PageQuery{Limit: listed}})
	if err != nil {
		return err
	}
	all, err := ask(t, hub.ListApprovals, hub.ApprovalQuery{PageQuery: t.after()})
	if err != nil {
		return err
	}
	var over []hub.Approval
	for _, a := range all.Items {
		if a.State != hub.ApprovalPending {
			over = append(over, a)
		}
	}
	grants, err := may(t, hub.ListGrants, hub.None{})
	if err != nil {
		return err
	}
	title := "Questions"
	if n := len(waiting.Items); n > 0 {
		title = "(" + strconv.Itoa(n) + ") Questions"
	}
	return t.show("questions", title, struct {
		Waiting, Over []hub.Approval
		Next          string
		Grants        *hub.Page[hub.StandingGrant]
	}{waiting.Items, over, all.Next, grants})
}

func (t *turn) question() error {
	a, err := ask(t, hub.GetApproval, t.words[1])
	if err != nil {
		return err
	}
	var p *hub.Preview
	if a.State == hub.ApprovalPending && !a.Reduced {
		if p, err = may(t, hub.PreviewApproval, hub.PreviewQuery{ID: a.ID, Answer: hub.Answer{Approve: true, Scope: "session"}}); err != nil {
			return err
		}
	}
	return t.show("question", "Question", struct {
		hub.Approval
		Preview *hub.Preview
	}{a, p})
}

// answer gives the answer of a form for the version and the capsule that it showed: the hub refuses
// one for another.
func (t *turn) answer() error {
	const op = "answer question"
	f := t.v.Form
	version, err := strconv.ParseInt(f.Get("version"), 10, 64)
	if err != nil || version < 1 || f.Get("capsule") == "" {
		return fault.New(fault.Usage, "invalid_input", op, errors.New("the form lacks what it was for"))
	}
	a := hub.Answer{Comment: f.Get("comment"), Capsule: f.Get("capsule")}
	did := "denied"
	switch f.Get("answer") {
	case "no":
	case "yes":
		a.Approve, a.Scope, did = true, f.Get("scope"), "approved"
		if uses := f.Get("uses"); uses != "" && a.Scope != "once" {
			if a.Uses, err = strconv.ParseInt(uses, 10, 64); err != nil || a.Uses < 1 {
				return fault.New(fault.Usage, "invalid_input", op, errors.New("uses: want a number from 1 on"))
			}
		}
		if a.Scope == "timed" {
			if a.For, err = time.ParseDuration(f.Get("for")); err != nil {
				return fault.New(fault.Usage, "invalid_input", op, errors.New("for: want a time such as 10m"))
			}
		}
	default:
		return fault.New(fault.Usage, "invalid_input", op, errors.New("the form has neither yes nor no"))
	}
	if _, err := ask(t, hub.ResolveApproval, hub.Resolution{ID: t.words[1], Version: version, Answer: a}); err != nil {
		return err
	}
	return t.see("questions", did)
}

func (t *turn) revokeGrant() error {
	if _, err := ask(t, hub.RevokeGrant, t.words[1]); err != nil {
		return err
	}
	return t.see("questions", "ended")
}

func (t *turn) runs() error {
	q := hub.RunQuery{PageQuery: t.after(), Session: t.r.URL.Query().Get("session")}
	runs, err := ask(t, hub.ListRuns, q)
	if err != nil {
		return err
	}
	return t.show("runs", "Runs", struct {
		Session string
		hub.Page[hub.Run]
	}{q.Session, runs})
}

func (t *turn) run() error {
	r, err := ask(t, hub.GetRun, t.words[1])
	if err != nil {
		return err
	}
	asked, err := may(t, hub.ListApprovals, hub.ApprovalQuery{Run: r.ID, PageQuery: hub.PageQuery{Limit: listed}})
	if err != nil {
		return err
	}
	over := r.Ended != nil
	return t.show("run", "Run", struct {
		hub.Run
		Over  bool
		Asked *hub.Page[hub.Approval]
	}{r, over, asked})
}

func (t *turn) cancel() error {
	if _, err := ask(t, hub.CancelRun, t.words[1]); err != nil {
		return err
	}
	return t.see("runs/"+t.words[1], "cancelled")
}

func (t *turn) layers() error {
	l, err := ask(t, hub.ListLayers, hub.LayerQuery{PageQuery: t.after()})
	if err != nil {
		return err
	}
	return t.show("layers", "Changes", l)
}

// maxPatch bounds the patch that a page shows, in bytes; the rest is for palyra changes diff.
const maxPatch = 256 << 10

// line is one of a patch.
type line struct{ Kind, Text string }

func (t *turn) layer() error {
	l, err := ask(t, hub.GetLayer, t.words[1])
	if err != nil {
		return err
	}
	p, err := may(t, hub.GetPatch, hub.PatchQuery{Layer: t.words[1]})
	if err != nil {
		return err
	}
	data := struct {
		hub.LayerChanges
		Patch []line
		Cut   bool
		Left  []hub.LayerSkip
	}{LayerChanges: l}
	if p != nil {
		data.Left, data.Cut = p.LeftOut, len(p.Patch) > maxPatch
		data.Patch = lines(string(p.Patch[:min(len(p.Patch), maxPatch)]))
	}
	return t.show("layer", "Changes", data)
}

func lines(patch string) (out []line) {
	for text := range strings.Lines(patch) {
		l := line{Text: strings.TrimSuffix(text, "\n")}
		switch {
		case strings.HasPrefix(text, "diff "), strings.HasPrefix(text, "+++"), strings.HasPrefix(text, "---"), strings.HasPrefix(text, "index "):
			l.Kind = "file"
		case strings.HasPrefix(text, "@@"):
			l.Kind = "hunk"
		case strings.HasPrefix(text, "+"):
			l.Kind = "add"
		case strings.HasPrefix(text, "-"):
			l.Kind = "del"
		}
		out = append(out, l)
	}
	return out
}

func (t *turn) discard() error {
	if _, err := ask(t, hub.DiscardLayer, t.words[1]); err != nil {
		return err
	}
	return t.see("changes", "discarded")
}

// journal shows the newest entries, or those before an index.
func (t *turn) journal() error {
	j, err := ask(t, hub.GetJournal, hub.None{})
	if err != nil {
		return err
	}
	const many = 50
	end := j.Size
	if n, err := strconv.ParseUint(t.r.URL.Query().Get("before"), 10, 63); err == nil && n < end {
		end = n
	}
	from := end - min(end, many)
	var entries []hub.JournalEntry
	if end > 0 {
		p, err := ask(t, hub.ListJournalEntries, hub.JournalQuery{From: from, Limit: int(end - from)})
		if err != nil {
			return err
		}
		for i := len(p.Items) - 1; i >= 0; i-- {
			entries = append(entries, p.Items[i])
		}
	}
	return t.show("journal", "Journal", struct {
		hub.JournalStatus
		Entries []hub.JournalEntry
		Before  uint64 // 0: these are the oldest
	}{j, entries, from})
}

func (t *turn) entry() error {
	n, err := strconv.ParseUint(t.words[1], 10, 63)
	if err != nil {
		return fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	p, err := ask(t, hub.ListJournalEntries, hub.JournalQuery{From: n, Limit: 1})
	if err != nil {
		return err
	}
	if len(p.Items) == 0 || p.Items[0].Index != n {
		return fault.New(fault.NotFound, "not_found", "find journal entry", nil)
	}
	e := p.Items[0]
	var statement string
	if len(e.Statement) > 0 && string(e.Statement) != "null" {
		var v any
		if err := canon.Decode(e.Statement, &v, canon.Limits{}); err != nil {
			return fault.New(fault.Internal, "internal", "show statement", err)
		}
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fault.New(fault.Internal, "internal", "show statement", err)
		}
		statement = string(b)
	}
	return t.show("entry", "Journal entry", struct {
		hub.JournalEntry
		Text string
	}{e, statement})
}

func (t *turn) access() error {
	tokens, err := may(t, hub.ListTokens, hub.TokenQuery{PageQuery: hub.PageQuery{Limit: listed}})
	if err != nil {
		return err
	}
	members, err := may(t, hub.ListMembers, hub.None{})
	if err != nil {
		return err
	}
	devices, err := may(t, hub.ListDevices, hub.None{})
	if err != nil {
		return err
	}
	return t.show("access", "Access", struct {
		Tokens  *hub.Page[hub.Token]
		Members *hub.Page[hub.Member]
		Devices *hub.Page[hub.Device]
	}{tokens, members, devices})
}

func (t *turn) revokeToken() error {
	version, err := strconv.ParseInt(t.v.Form.Get("version"), 10, 64)
	if err != nil {
		return fault.New(fault.Usage, "invalid_input", "revoke token", errors.New("the form lacks what it was for"))
	}
	if _, err := ask(t, hub.RevokeToken, hub.TokenChange{ID: t.words[1], Version: version}); err != nil {
		return err
	}
	return t.see("access", "revoked")
}

func (t *turn) host() error {
	d, err := may(t, hub.GetDoctor, hub.None{})
	if err != nil {
		return err
	}
	return t.show("host", "Host", d)
}

func (t *turn) stop() error {
	if _, err := ask(t, hub.Stop, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		return err
	}
	return t.see("runs", "stopped")
}

func (t *turn) resume() error {
	if _, err := ask(t, hub.Resume, hub.None{}); err != nil {
		return err
	}
	return t.see("runs", "resumed")
}
