package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// TestLayerPage: the page says what applying and undoing would do, and its buttons ask for exactly the
// list that it shows. One that can't be applied has no button for it.
func TestLayerPage(t *testing.T) {
	digest := canon.Sum([]byte("list"))
	v := hub.LayerChanges{Layer: hub.Layer{Layer: "src-1", Workspace: "/srv/<b>", State: hub.LayerChanged}, Digest: digest,
		Changes: []hub.LayerChange{
			{Path: ".envrc", Kind: "create", New: &hub.LayerNode{}, Marks: []hub.LayerMark{{Kind: "shell", Why: "direnv runs it"}}},
			{Path: "a", Kind: "modify", Old: &hub.LayerNode{}, New: &hub.LayerNode{}}, {Path: "b", Kind: "delete", Old: &hub.LayerNode{}},
			{Path: "sub/.git/config", Kind: "create", New: &hub.LayerNode{}}}}
	var patched int
	page := func() string {
		t.Helper()
		h := hub.NewTable(answer(hub.GetLayer, v, nil), hub.GetPatch.By(func(context.Context, hub.Caller, hub.PatchQuery) (hub.LayerPatch, error) {
			patched++
			return hub.LayerPatch{}, nil
		}))
		w, err := visit(t, h, "changes/src-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	const apply, undo, recover = `action="/console/changes/src-1/apply"`, `action="/console/changes/src-1/undo"`, `action="/console/changes/src-1/recover"`
	seen := func(d string) string { return `name="digest" value="` + d + `"` }
	has(t, page(), apply, seen(digest.String()), "1 new, 1 changed and 1 deleted", "1 deserve a look", "1 files of git", "direnv runs it", "-"+undo, "-"+recover)

	v.Changes[1].Stale = true
	has(t, page(), "keeps it from being applied", "-"+seen(digest.String()))

	// After an apply, and one that can't be taken back.
	v.Changes, v.Layer.State = nil, hub.LayerEmpty
	v.Undo = &hub.LayerUndo{Digest: "sha256:back", Changes: []hub.LayerChange{{Path: "<i>x", Kind: "delete", Old: &hub.LayerNode{}}}}
	has(t, page(), "-"+apply, undo, seen("sha256:back"), "0 new, 0 changed and 1 deleted", "&lt;i&gt;x")
	v.Undo = &hub.LayerUndo{Reason: "changed", Error: "undo main: it is not what was applied"}
	has(t, page(), "it is not what was applied", `-name="digest"`)

	patched = 0
	v.Undo, v.Layer.State = nil, hub.LayerUnfinished
	has(t, page(), recover, "was interrupted", "-"+apply, "-/discard")
	if patched != 0 {
		t.Error("a patch of a layer that is half applied was asked for")
	}
}

// TestLayerButtons: each asks for its operation, with the digest that the page had, and leads to the
// run.
func TestLayerButtons(t *testing.T) {
	var asked []string
	began := func(what string) func(context.Context, hub.Caller, hub.LayerList) (hub.Run, error) {
		return func(_ context.Context, _ hub.Caller, in hub.LayerList) (hub.Run, error) {
			asked = append(asked, what+" "+in.Layer+" "+in.Digest)
			if in.Digest == "other" {
				return hub.Run{}, fault.New(fault.Usage, "invalid_input", "apply", errors.New("no digest"))
			}
			return hub.Run{ID: "run_1"}, nil
		}
	}
	h := hub.NewTable(hub.ApplyLayer.By(began("apply")), hub.UndoLayer.By(began("undo")),
		hub.RecoverLayer.By(func(_ context.Context, _ hub.Caller, name string) (hub.Run, error) {
			asked = append(asked, "recover "+name)
			return hub.Run{ID: "run_1"}, nil
		}))
	for _, what := range []string{"apply", "undo", "recover"} {
		w, err := visit(t, h, "changes/src-1/"+what, url.Values{"digest": {"sha256:d"}})
		if err != nil || w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/console/runs/run_1?said=began" {
			t.Errorf("%s: %d %q, %v", what, w.Code, w.Header(), err)
		}
		if _, err := visit(t, h, "changes/src-1/"+what, nil); fault.KindOf(err) != fault.NotFound {
			t.Errorf("a link to %s: %v", what, err)
		}
	}
	if got := strings.Join(asked, ", "); got != "apply src-1 sha256:d, undo src-1 sha256:d, recover src-1" {
		t.Error(got)
	}
	if _, err := visit(t, h, "changes/src-1/apply", url.Values{"digest": {"other"}}); fault.KindOf(err) != fault.Usage {
		t.Error(err)
	}
}

// TestLayerOf: a run's page leads to the layer that a step applied, and to nothing else that its
// input names.
func TestLayerOf(t *testing.T) {
	for _, c := range []struct{ tool, input, layer, want string }{
		{"process.run", `{"layer":"x"}`, "src-1", "src-1"}, {"process.run", `{"layer":"x"}`, "", ""},
		{"changes.apply", `{"layer":"src-2","digest":"d"}`, "", "src-2"}, {"changes.undo", `{"layer":"../x"}`, "", ""}, {"changes.apply", `[]`, "", ""},
	} {
		if got := layerOf(hub.StepResult{Tool: c.tool, Input: json.RawMessage(c.input), Layer: c.layer}); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
