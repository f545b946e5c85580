package local

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// Processes are the hub's runs in the background, for the tools that are about them. The table of
// tools is made before the hub, which makes calls before it's open: they wait for that.
type Processes struct {
	ready chan struct{} // closed by use
	h     *Hub          // immutable after that
}

var _ tool.Processes = (*Processes)(nil)

// NewProcesses returns those of the hub that Open is given them for.
func NewProcesses() *Processes { return &Processes{ready: make(chan struct{})} }

func (p *Processes) use(h *Hub) {
	p.h = h
	close(p.ready)
}

// open waits until the hub is.
func (p *Processes) open(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Canceled, "canceled", "wait for the hub", context.Cause(ctx))
	}
}

// maxCommand bounds the command in a Process, in bytes.
const maxCommand = 256

// List implements tool.Processes.
func (p *Processes) List(ctx context.Context, who policy.Entity, session string) ([]toolproto.Process, error) {
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	out := []toolproto.Process{}
	for _, l := range p.h.runs.InBackground() {
		if l.User != who.ID || session != "" && l.Session != session {
			continue
		}
		v, err := p.Status(ctx, who, l.ID)
		if fault.KindOf(err) == fault.NotFound { // it isn't on record yet
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Status implements tool.Processes.
func (p *Processes) Status(ctx context.Context, who policy.Entity, id string) (toolproto.Process, error) {
	_, v, err := p.read(ctx, who, id)
	return v, err
}

// read reads a principal's run in the background.
func (p *Processes) read(ctx context.Context, who policy.Entity, id string) (r hub.Run, v toolproto.Process, err error) {
	if err := p.open(ctx); err != nil {
		return r, v, err
	}
	if err := ident.Check(ident.Run, id); err != nil {
		return r, v, err
	}
	r, err = p.h.runs.Read(ctx, id)
	if err == nil && (r.Principal != who.ID || !r.Background) {
		err = noSuch("run", id)
	}
	if fault.KindOf(err) == fault.NotFound {
		err = fault.New(fault.NotFound, "not_found", "find process", fmt.Errorf("%q is none of yours in the background", id)).
			WithHint("process.list has those that run")
	}
	if err != nil {
		return r, v, err
	}
	return r, p.describe(&r), nil
}

// describe says how a run in the background is.
func (p *Processes) describe(r *hub.Run) toolproto.Process {
	v := toolproto.Process{ID: r.ID, Session: r.Session, State: toolproto.ProcessRunning, Reason: r.Reason, Started: r.Started, Ended: r.Ended}
	switch r.State {
	case hub.RunWaitingApproval:
		v.State = toolproto.ProcessWaiting
	case hub.RunDone, hub.RunFailed, hub.RunCancelled:
		v.State = toolproto.ProcessEnded
	}
	n := p.h.runs.Written(r)
	v.Stdout, v.Stderr = n[0], n[1]
	if len(r.Steps) != 1 {
		return v
	}
	s := &r.Steps[0]
	v.Outcome, v.Exit, v.Receipt = s.Outcome, s.Exit, s.LogIndex
	if s.Reason != "" && v.Reason == "" {
		v.Reason = s.Reason
	}
	var in toolproto.RunInput
	if toolproto.Decode(s.Input, &in) == nil {
		v.Output = in.Output
		if b, err := json.Marshal(in.Argv); err == nil {
			v.Command = string(b)
		}
		if len(v.Command) > maxCommand {
			v.Command = strings.ToValidUTF8(v.Command[:maxCommand], "") + "…"
		}
	}
	return v
}

// Output implements tool.Processes.
func (p *Processes) Output(ctx context.Context, who policy.Entity, in *toolproto.ProcessOutputInput) (out toolproto.ProcessOutputResult, err error) {
	r, v, err := p.read(ctx, who, in.ID)
	if err != nil {
		return out, err
	}
	from := [2]int64{in.Stdout, in.Stderr}
	for i, n := range [2]int64{v.Stdout, v.Stderr} {
		if from[i] < 0 {
			from[i] = max(0, n+from[i])
		}
		from[i] = min(from[i], n)
	}
	parts, lost, err := p.parts(ctx, &r, from, in.Limit)
	if err != nil {
		return out, err
	}
	// It may have ended meanwhile, and what it wrote last is what is asked for.
	if out.Process, err = p.Status(ctx, who, in.ID); err != nil {
		return out, err
	}
	for i, s := range [2]*toolproto.ProcessStream{&out.Stdout, &out.Stderr} {
		b := parts[i]
		if size := [2]int64{out.Process.Stdout, out.Process.Stderr}[i]; out.Process.State != toolproto.ProcessEnded || from[i]+int64(len(b)) < size {
			b = wholeEnd(b)
		}
		s.Offset, s.Next, s.Lost, s.Content = from[i], from[i]+int64(len(b)), lost[i], contentOf(b)
	}
	return out, nil
}

// parts reads from each stream of a run, from a byte on, at most limit bytes.
func (p *Processes) parts(ctx context.Context, r *hub.Run, from [2]int64, limit int64) (parts [2][]byte, lost [2]string, err error) {
	o, err := p.h.runs.Output(hub.OutputQuery{Run: r.ID, Stdout: uint64(from[0]), Stderr: uint64(from[1]), Until: hub.UntilNow},
		func(ctx context.Context, d canon.Digest) (io.ReadSeekCloser, error) {
			f, _, err := p.h.st.OpenArtifact(ctx, d) // the run is the caller's
			return f, err
		})
	if err != nil {
		return parts, lost, err
	}
	defer o.Close()
	for {
		part, err := o.Next(ctx)
		if errors.Is(err, io.EOF) {
			return parts, lost, nil
		}
		if err != nil {
			return parts, lost, err
		}
		i := 0
		if part.Stream == "stderr" {
			i = 1
		}
		b := part.Bytes()
		parts[i] = append(parts[i], b[:min(int64(len(b)), limit-int64(len(parts[i])))]...)
		lost[i] = part.Lost
		if int64(len(parts[0])) >= limit && int64(len(parts[1])) >= limit {
			return parts, lost, nil
		}
	}
}

// wholeEnd leaves out the beginning of a character at the end, which comes with the next part.
func wholeEnd(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// contentOf spells bytes. A part that begins in the middle of a character loses its beginning, if
// the rest is text.
func contentOf(b []byte) toolproto.Content {
	text := b
	for len(text) > 0 && len(b)-len(text) < utf8.UTFMax && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	if utf8.Valid(text) && !slices.Contains(text, 0) {
		return toolproto.Content{Text: string(text)}
	}
	return toolproto.Content{Binary: true, Base64: base64.StdEncoding.EncodeToString(b)}
}

// Stop implements tool.Processes.
func (p *Processes) Stop(ctx context.Context, who policy.Entity, id string) error {
	if _, _, err := p.read(ctx, who, id); err != nil {
		return err
	}
	return p.h.runs.Cancel(ctx, id, run.Stop{Reason: reasonCancelled, By: who.ID})
}

// Holding implements tool.Processes.
func (p *Processes) Holding(layer string) []string {
	select {
	case <-p.ready:
	default:
		return nil
	}
	p.h.layers.mu.Lock()
	session := p.h.layers.known[layer].session
	p.h.layers.mu.Unlock()
	return p.h.backgroundOf(session)
}

// backgroundOf returns the runs of a session in the background.
func (h *Hub) backgroundOf(session string) (ids []string) {
	for _, l := range h.runs.InBackground() {
		if l.Session == session && session != "" {
			ids = append(ids, l.ID)
		}
	}
	return ids
}

// busyHint says what frees the layers of a session.
func (h *Hub) busyHint(session string) string {
	if ids := h.backgroundOf(session); len(ids) > 0 {
		return "a program in the background has it mounted: palyra runs cancel " + strings.Join(ids, ", ") + " ends it"
	}
	return "wait for the call's end"
}

// inBackground is Tx.Runs for runs in the background, of which there are few.
func (h *Hub) inBackground(tx *store.Tx, f store.RunFilter, p store.Page) (rows []store.Run, err error) {
	behind := p.After == ""
	for _, l := range h.runs.InBackground() {
		switch {
		case l.ID == p.After:
			behind = true
			continue
		case !behind || f.Principal != "" && f.Principal != l.User || f.Session != "" && f.Session != l.Session:
			continue
		}
		r, err := tx.RunHead(l.ID)
		if fault.KindOf(err) == fault.NotFound { // it isn't on record yet
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(f.States) > 0 && !slices.Contains(f.States, r.State) {
			continue
		}
		if rows = append(rows, *r); len(rows) == p.Limit {
			break
		}
	}
	return rows, nil
}
