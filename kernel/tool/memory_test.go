package tool

import (
	"context"
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// memories is a Memory of one item that whoever asks has, made of a page.
type memories struct{}

var _ Memory = memories{}

var remembered = toolproto.Memory{ID: "mem_" + strings.Repeat("0a", 16), Scope: "principal", Source: toolproto.SourceAgent, Origins: []string{call.OriginModel, call.OriginWeb}, Tags: []string{}, Text: "a hint"}

func (memories) Search(context.Context, string, string, string, *toolproto.MemorySearchInput) ([]toolproto.Memory, error) {
	return []toolproto.Memory{remembered}, nil
}

func (memories) List(context.Context, string, string, bool, *toolproto.MemoryListInput) ([]toolproto.Memory, int64, error) {
	return []toolproto.Memory{remembered}, 7, nil
}

func (memories) Draft(_ context.Context, _ string, items []NewMemory) (d MemoryDraft, err error) {
	for _, n := range items {
		d.Items = append(d.Items, toolproto.Memory{ID: remembered.ID, Origins: n.Origins, Digest: canon.Sum([]byte(n.Text))})
	}
	return d, nil
}

func (memories) Keep(context.Context, string, MemoryDraft) error { return nil }

func (memories) Choose(_ context.Context, _, _ string, _ bool, in *toolproto.MemoryForgetInput) ([]string, error) {
	return in.IDs, nil
}

func (memories) Forget(context.Context, string, []string) error { return nil }

// TestMemoryWithin: what an agent reads of memory enters its session before the call, what it keeps
// has the session's label, and a session that read more meanwhile keeps nothing.
func TestMemoryWithin(t *testing.T) {
	table := New(Config{Program: "/usr/libexec/palyra/palyra-tool", Memory: memories{}})
	var brought []string
	label := call.Inputs{{Origin: call.OriginPerson}}
	ctx := WithSession(t.Context(), &Within{Session: "ses_1", Label: func() call.Inputs { return label }, Brought: func(o ...string) { brought = append(brought, o...) }})
	x, err := table.Expand(ctx, policy.Entity{ID: "uid:1"}, toolproto.MemorySearch, []byte(`{"query":"what"}`))
	if err != nil || !slices.Equal(brought, []string{call.OriginMemory, call.OriginModel, call.OriginWeb}) || !strings.Contains(string(x.Stdin), "a hint") ||
		!slices.Equal(x.Argv[1:], []string{"memory.search", "found=1", "origins=model,web"}) {
		t.Errorf("brought %v, %+v, %v", brought, x, err)
	}
	// A command's answer comes beside the call: the cell gets none of it, nor does a session.
	brought = nil
	var told toolproto.MemoryResult
	beside := WithMemory(ctx, &BesideMemory{Query: "what", Done: func(r toolproto.MemoryResult) { told = r }})
	x, err = table.Expand(beside, policy.Entity{ID: "uid:1"}, toolproto.MemorySearch, []byte(`{}`))
	if err != nil || brought != nil || strings.Contains(string(x.Stdin), "a hint") || x.Effect.Begin(t.Context()) != nil {
		t.Errorf("brought %v, %s, %v", brought, x.Stdin, err)
	}
	if x.Effect.End(true, 1); told.Items != nil {
		t.Error("told of a program that failed")
	}
	if x.Effect.End(true, 0); len(told.Items) != 1 || told.Items[0].Text != "a hint" || told.Count != 1 {
		t.Errorf("told %+v", told)
	}

	x, err = table.Expand(ctx, policy.Entity{ID: "uid:1"}, toolproto.MemoryRetain, []byte(`{"text":"hold"}`))
	if err != nil || x.Sensitive || !slices.Contains(x.Argv, "origins=model,person") || !slices.Contains(x.Argv, "source=agent") {
		t.Fatalf("%+v, %v", x, err)
	}
	if err := x.Effect.Begin(t.Context()); err != nil {
		t.Error(err)
	}
	label = label.Join(call.Input{Origin: call.OriginWeb})
	if err := x.Effect.Begin(t.Context()); fault.ReasonOf(err) != "changed" {
		t.Errorf("after a page was read: %v", err)
	}
	for _, in := range []string{`{}`, `{"text":"x","source":"person"}`, `{"text":"x","origins":["person"]}`, `{"text":"x","record":"sha256:00"}`, `{"text":"x","tags":["a b"]}`} {
		if x, err := table.Expand(ctx, policy.Entity{ID: "uid:1"}, toolproto.MemoryRetain, []byte(in)); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %+v, %v", in, x, err)
		}
	}
	for _, in := range []string{`{"all":true}`, `{"origin":"web"}`, `{"session":"ses_1"}`} {
		if x, err := table.Expand(ctx, policy.Entity{ID: "uid:1"}, toolproto.MemoryForget, []byte(in)); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %+v, %v", in, x, err)
		}
	}
	forget := []byte(`{"ids":["` + remembered.ID + `"]}`)
	for want, c := range map[bool]context.Context{true: ctx, false: WithMemory(ctx, &BesideMemory{})} {
		if x, err := table.Expand(c, policy.Entity{ID: "uid:1"}, toolproto.MemoryForget, forget); err != nil || x.Sensitive != want {
			t.Errorf("%+v, %v", x, err)
		}
	}
}
