package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/settings"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/signal"
)

// memoryDo does an operation of memory as vaultDo does one of the vault.
func memoryDo[In any](ctx context.Context, a *app, inv *command.Invocation, op hub.Op[In, hub.MemoryResult], in func(session string) In) (out hub.MemoryResult, err error) {
	return attendedDo(ctx, a, inv, a.connect, op, func(r *hub.MemoryResult) *hub.Run { return &r.Run }, in)
}

// memoryDocument is a result's receipt and items as a document.
func memoryDocument(r *hub.MemoryResult, d front.Document) front.Document {
	st := &r.Run.Steps[0]
	d["call_id"], d["log_index"] = st.CallID, st.LogIndex
	return d
}

// gist is the beginning of a text, on one line.
func gist(text string) string {
	const most = 100
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most-1]) + "…"
	}
	return text
}

func (a *app) memoryAdd(ctx context.Context, inv *command.Invocation) (*result, error) {
	words, err := a.memoryText(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	it := hub.NewMemoryItem{Text: words, Tags: command.All[string](inv, "tag"), Expires: command.Value(inv, "expires", ""), Of: command.Value(inv, "session", "")}
	if inv.Has("confidence") {
		n := command.Value(inv, "confidence", int64(0))
		it.Confidence = &n
	}
	r, err := memoryDo(ctx, a, inv, hub.AddMemory, func(session string) hub.MemoryAdd {
		return hub.MemoryAdd{Session: session, Items: []hub.NewMemoryItem{it}}
	})
	if err != nil {
		return nil, err
	}
	if len(r.Items) != 1 {
		return nil, fault.New(fault.Internal, "internal", "add memory", fmt.Errorf("palyrad names %d", len(r.Items)))
	}
	return text(memoryDocument(&r, front.Document{"id": r.Items[0].ID, "digest": r.Items[0].Digest}), "%s\n", cell(r.Items[0].ID)), nil
}

// memoryText returns what an operand says, or standard input.
func (a *app) memoryText(operand string) (string, error) {
	if operand != "-" {
		return operand, nil
	}
	b, err := io.ReadAll(io.LimitReader(a.stdin, maxMemoryFile))
	if err != nil {
		return "", fault.New(fault.Unavailable, "io_error", "read standard input", err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

func (a *app) memorySearch(ctx context.Context, inv *command.Invocation) (*result, error) {
	r, err := memoryDo(ctx, a, inv, hub.SearchMemory, func(session string) hub.MemorySearch {
		return hub.MemorySearch{Session: session, Query: inv.Operands[0], Limit: command.Value(inv, "limit", int64(0)), Of: command.Value(inv, "session", "")}
	})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("SCORE", "ITEM", "BY", "TEXT").Keep(1)
	for i := range r.Items {
		it := &r.Items[i]
		score := "-"
		if it.Score != nil {
			score = strconv.FormatInt(it.Score.Total, 10)
		}
		t.Row(score, it.ID, it.Source, gist(it.Text))
	}
	return text(memoryDocument(&r, front.Document{"items": r.Items}), "%s", a.table(inv, t)), nil
}

func (a *app) memoryLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	r, err := memoryDo(ctx, a, inv, hub.ListMemory, func(session string) hub.MemoryQuery {
		return hub.MemoryQuery{Session: session, Limit: command.Value(inv, "limit", int64(0)), Before: command.Value(inv, "before", int64(0))}
	})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("ITEM", "BY", "ORIGINS", "MADE", "EXPIRES", "TEXT").Keep(0)
	for i := range r.Items {
		it := &r.Items[i]
		t.Row(it.ID, it.Source, strings.Join(it.Origins, ","), stamp(it.Created), stampOf(it.Expires), gist(it.Text))
	}
	next := ""
	if r.Next != 0 {
		next = fmt.Sprintf("more: --before %d\n", r.Next)
	}
	return text(memoryDocument(&r, front.Document{"items": r.Items, "next": r.Next}), "%s%s", a.table(inv, t), next), nil
}

func (a *app) memoryShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	r, err := memoryDo(ctx, a, inv, hub.ListMemory, func(session string) hub.MemoryQuery {
		return hub.MemoryQuery{Session: session, IDs: inv.Operands[:1]}
	})
	if err != nil {
		return nil, err
	}
	if len(r.Items) != 1 {
		return nil, fault.New(fault.Internal, "internal", "show memory", fmt.Errorf("palyrad gives %d items", len(r.Items)))
	}
	it := &r.Items[0]
	l := newLines()
	l.row("item", cell(it.ID))
	l.row("by", cell(it.Source))
	l.row("origins", cell(strings.Join(it.Origins, ", ")))
	l.row("tags", dash(cell(strings.Join(it.Tags, ", "))))
	l.row("confidence", fmt.Sprintf("%d %%", it.Confidence))
	of := "each session"
	if it.Scope == "session" {
		of = it.Session
	}
	l.row("for", cell(of))
	l.row("made", stamp(it.Created))
	l.row("expires", stampOf(it.Expires))
	l.row("digest", it.Digest.String())
	return text(memoryDocument(&r, front.Document{"item": it}), "%s\n%s\n", l.String(), front.Escape(it.Text)), nil
}

func (a *app) memoryForget(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.memoryGone(ctx, inv, hub.MemoryForget{IDs: inv.Operands})
}

func (a *app) memoryPurge(ctx context.Context, inv *command.Invocation) (*result, error) {
	f := hub.MemoryForget{Origin: command.Value(inv, "origin", ""), Of: command.Value(inv, "session", ""), All: inv.Has("all")}
	if n := len(f.Origin) + len(f.Of); n == 0 && !f.All {
		return nil, fault.New(fault.Usage, "bad_command", "memory purge", errors.New("it says nothing to forget")).WithHint("--origin, --session or --all")
	}
	return a.memoryGone(ctx, inv, f)
}

func (a *app) memoryGone(ctx context.Context, inv *command.Invocation, f hub.MemoryForget) (*result, error) {
	r, err := memoryDo(ctx, a, inv, hub.ForgetMemory, func(session string) hub.MemoryForget {
		f.Session = session
		return f
	})
	if err != nil {
		return nil, err
	}
	return text(memoryDocument(&r, front.Document{"forgotten": r.Count}), "forgot %d items\n", r.Count), nil
}

// memoryFile is what memory export writes and memory import reads.
type memoryFile struct {
	Version int              `json:"version"` // 1
	Items   []hub.MemoryItem `json:"items"`
}

// maxMemoryFile bounds such a file, in bytes.
const maxMemoryFile = 1 << 30

func (a *app) memoryExport(ctx context.Context, inv *command.Invocation) (*result, error) {
	path := inv.Operands[0]
	f, err := settings.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := memoryFile{Version: 1, Items: []hub.MemoryItem{}}
	for before := int64(0); ; {
		r, err := memoryDo(ctx, a, inv, hub.ListMemory, func(session string) hub.MemoryQuery {
			return hub.MemoryQuery{Session: session, Limit: 256, Before: before}
		})
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, r.Items...)
		if before = r.Next; before == 0 {
			break
		}
	}
	secrets, say := secretsOf(all.Items, inv.Has("redact")), ""
	switch {
	case secrets > 0 && inv.Has("redact"):
		say = fmt.Sprintf("redacted %d secrets\n", secrets)
	case secrets > 0:
		say = fmt.Sprintf("it holds %d secrets: --redact leaves them out\n", secrets)
	}
	b, err := canon.Marshal(all)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "export memory", err)
	}
	defer clear(b)
	if err := f.Keep(b); err != nil {
		return nil, err
	}
	return text(front.Document{"file": path, "items": len(all.Items), "secrets": secrets}, "exported %d items, in plain text\n%s", len(all.Items), say), nil
}

// secretsOf returns how many secrets items hold, and puts pseudonyms in place of them if it's to
// redact: one for each value, in all items.
func secretsOf(items []hub.MemoryItem, redact bool) (n int) {
	names := signal.NewPseudonyms()
	look := func(s *string) {
		plain, found := names.Redact(*s)
		if n += len(found); redact {
			*s = plain
		}
	}
	for i := range items {
		look(&items[i].Text)
		for j := range items[i].Tags {
			look(&items[i].Tags[j])
		}
	}
	return n
}

// importedItem is an item of a file. Its id, source and time are made anew.
type importedItem struct {
	Text       string     `json:"text"`
	Tags       []string   `json:"tags"`
	Confidence *int64     `json:"confidence"`
	Expires    *time.Time `json:"expires"`
	Origins    []string   `json:"origins"`

	ID      string    `json:"id"`
	Scope   string    `json:"scope"`
	Session string    `json:"session"`
	Source  string    `json:"source"`
	Created time.Time `json:"created"`
	Digest  string    `json:"digest"`
}

// The parts of an import: items, and bytes of texts.
const (
	importItems = 64
	importBytes = 1 << 20
)

func (a *app) memoryImport(ctx context.Context, inv *command.Invocation) (*result, error) {
	b, err := a.readMemory(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	defer clear(b)
	var file struct {
		Version int            `json:"version"`
		Items   []importedItem `json:"items"`
	}
	if err := canon.Decode(b, &file, canon.Limits{Bytes: maxMemoryFile}); err != nil {
		return nil, err
	}
	if file.Version != 1 {
		return nil, fault.New(fault.Usage, "invalid_input", "import memory", fmt.Errorf("version %d, want 1", file.Version))
	}
	var part []hub.NewMemoryItem
	done, bytes, left := int64(0), 0, 0
	send := func() error {
		if len(part) == 0 {
			return nil
		}
		r, err := memoryDo(ctx, a, inv, hub.AddMemory, func(session string) hub.MemoryAdd {
			return hub.MemoryAdd{Session: session, Import: true, Items: part}
		})
		done, part, bytes = done+r.Count, nil, 0
		if err != nil && done > 0 {
			err = fmt.Errorf("%d items are remembered: %w", done, err)
		}
		return err
	}
	for _, it := range file.Items {
		if it.Scope == "session" || it.Expires != nil && !time.Now().Before(*it.Expires) {
			left++
			continue
		}
		n := hub.NewMemoryItem{Text: it.Text, Tags: it.Tags, Confidence: it.Confidence, Origins: it.Origins}
		if it.Expires != nil {
			n.Expires = it.Expires.Format(time.RFC3339)
		}
		if part, bytes = append(part, n), bytes+len(it.Text); len(part) == importItems || bytes > importBytes {
			if err := send(); err != nil {
				return nil, err
			}
		}
	}
	if err := send(); err != nil {
		return nil, err
	}
	say := ""
	if left > 0 {
		say = fmt.Sprintf("left out %d that were a session's, or have expired\n", left)
	}
	return text(front.Document{"items": done, "left_out": left}, "imported %d items\n%s", done, say), nil
}

func (a *app) readMemory(path string) ([]byte, error) {
	in, op := a.stdin, "read standard input"
	if path != "-" {
		op = fmt.Sprintf("read %q", path)
		f, err := os.Open(path)
		if err != nil {
			return nil, durable.Fault(op, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxMemoryFile+1))
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	return b, nil
}
