package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/model"
	"palyra/internal/budget"
	"palyra/internal/built"
	"palyra/internal/canon"
)

// said reads the answer of a call that asked a model.
func (h *house) said(c hub.Caller, r hub.Run) turn.Answer {
	h.t.Helper()
	if len(r.Steps) != 1 || r.Steps[0].Outcome != "executed" {
		h.t.Fatalf("%+v", r)
	}
	o := r.Steps[0].Stdout
	text := []byte(o.Text)
	if int64(len(text)) < o.Size {
		f, err := hub.GetArtifact.Do(h.t.Context(), h, c, hub.ArtifactQuery{Run: r.ID, Digest: o.Artifact.String()})
		if err != nil {
			h.t.Fatal(err)
		}
		defer f.Close()
		if text, err = io.ReadAll(f); err != nil {
			h.t.Fatal(err)
		}
	}
	a, err := turn.ReadAnswer(bytes.NewReader(text))
	if err != nil {
		h.t.Fatalf("%v: %.400q, %q", err, text, r.Steps[0].Stderr.Text)
	}
	return a
}

// TestModelTurn: a member asks a model in a cell, unasked; what was asked is in the receipt by
// digest, and a question at hand is asked whole while the tape has its digest alone.
func TestModelTurn(t *testing.T) {
	dir := t.TempDir()
	if err := built.Into(dir, "palyra-fetch"); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, withModels(t, filepath.Join(dir, "palyra-fetch")))
	op := h.member(2001, access.Operator)

	inline := hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"tests","request":{"messages":[{"parts":[{"text":"hello"}],"role":"user"}]}}`)}
	r := h.call(op, inline)
	first := h.said(op, r)
	calls := first.Calls()
	if first.End != turn.EndCalls || first.Text() == "" || len(calls) != 1 || calls[0].Name != "fs_list_dir" || !strings.Contains(calls[0].Arguments, `"workspace":"src"`) {
		t.Fatalf("%+v", first)
	}
	p := h.verify(r.Steps[0]).Statement.Predicate
	if p.Tool != turn.Tool || p.Capsule.Stdin.Size == 0 || len(p.Capsule.EgressHosts) != 0 || p.Capsule.Network != "void" {
		t.Errorf("the receipt has %+v", p.Capsule)
	}

	// A question of 2 MiB, as the second turn has it.
	found := `{"entries":["` + strings.Repeat("x", 2<<20) + `"]}`
	request := &turn.Request{Messages: []turn.Message{{Role: turn.User, Parts: []turn.Part{{Text: "hello"}}}, first.Message,
		{Role: turn.User, Parts: []turn.Part{{Result: &turn.Result{ID: calls[0].ID, Text: found[:60<<10]}}}}, {Role: turn.User, Parts: []turn.Part{{Text: found}}}}}
	b, err := request.Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, release, err := h.cfg.Models.Keep(budget.Owner{Name: op.User}, b)
	if err != nil {
		t.Fatal(err)
	}
	input, err := model.Input("tests", d)
	if err != nil {
		t.Fatal(err)
	}
	kept := hub.Step{Tool: turn.Tool, Input: input}
	if r := h.call(h.member(2002, access.Operator), kept); r.Reason != "not_found" {
		t.Errorf("another member asks what isn't theirs: %+v", r)
	}
	r = h.call(op, kept)
	p = h.verify(r.Steps[0]).Statement.Predicate
	if p.Capsule.Stdin.Size < int64(len(b)) {
		t.Errorf("%d bytes were asked of %d", p.Capsule.Stdin.Size, len(b))
	}
	if second := h.said(op, r); len(second.Calls()) != 1 || second.Calls()[0].Name != "palyra_echo" || !strings.Contains(second.Calls()[0].Arguments, "xxx") {
		t.Errorf("%+v", second)
	}
	release()
	if r := h.call(op, kept); r.Reason != "not_found" {
		t.Errorf("what isn't at hand is asked: %+v", r)
	}
	if r := h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(fmt.Sprintf(`{"model":"main","digest":%q}`, canon.Digest{1}))}); r.Reason != "not_found" {
		t.Errorf("%+v", r)
	}
}
