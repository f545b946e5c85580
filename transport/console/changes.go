package console

import (
	"encoding/json"
	"regexp"
	"strings"

	"palyra/hub"
	"palyra/internal/toolproto"
)

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
	var p *hub.LayerPatch
	if l.Layer.State != hub.LayerUnfinished {
		if p, err = may(t, hub.GetPatch, hub.PatchQuery{Layer: t.words[1]}); err != nil {
			return err
		}
	}
	data := struct {
		hub.LayerChanges
		Sum   sum
		Back  sum // of what an undo does
		Patch []line
		Cut   bool
		Left  []hub.LayerSkip
	}{LayerChanges: l, Sum: sumOf(l.Changes, l.Git)}
	if l.Undo != nil {
		data.Back = sumOf(l.Undo.Changes, l.Undo.Git)
	}
	if p != nil {
		data.Left, data.Cut = p.LeftOut, len(p.Patch) > maxPatch
		data.Patch = lines(string(p.Patch[:min(len(p.Patch), maxPatch)]))
	}
	return t.show("layer", "Changes", data)
}

// sum is what applying a list does.
type sum struct {
	Made, Changed, Gone, Refs int
	Marks                     int  // reasons to look
	Stays                     int  // files of git that stay in the layer
	Stale                     bool // the workspace has changed since, so it can't be applied
}

// Any reports whether there is something to apply.
func (s sum) Any() bool { return s.Made+s.Changed+s.Gone+s.Refs > 0 }

func sumOf(changes []hub.LayerChange, git *hub.LayerGit) (s sum) {
	for i := range changes {
		c := &changes[i]
		if toolproto.InGit(c.Path) {
			s.Stays++
			continue
		}
		switch {
		case c.Old == nil:
			s.Made++
		case c.New == nil:
			s.Gone++
		default:
			s.Changed++
		}
		s.Marks += len(c.Marks)
		s.Stale = s.Stale || c.Stale
	}
	if git == nil {
		return s
	}
	s.Refs = len(git.Refs)
	if git.Head != nil || git.Index != nil {
		s.Refs = max(s.Refs, 1)
	}
	s.Marks += len(git.Look)
	for i := range git.Refs {
		s.Marks += len(git.Refs[i].Marks)
		s.Stale = s.Stale || git.Refs[i].Stale
	}
	return s
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

// applyLayer, undoLayer and recoverLayer begin a run, whose page says how it goes on.
func (t *turn) applyLayer() error { return t.began(ask(t, hub.ApplyLayer, t.seen())) }
func (t *turn) undoLayer() error  { return t.began(ask(t, hub.UndoLayer, t.seen())) }

func (t *turn) recoverLayer() error { return t.began(ask(t, hub.RecoverLayer, t.words[1])) }

// seen is the list that the visitor's page had.
func (t *turn) seen() hub.LayerList {
	return hub.LayerList{Layer: t.words[1], LayerListBody: hub.LayerListBody{Digest: t.v.Form.Get("digest")}}
}

func (t *turn) began(r hub.Run, err error) error {
	if err != nil {
		return err
	}
	return t.see("runs/"+r.ID, "began")
}

// layerOf returns the layer that a step is about, "" for none.
func layerOf(s hub.StepResult) string {
	var in struct{ Layer string }
	if s.Layer == "" && strings.HasPrefix(s.Tool, "changes.") && json.Unmarshal(s.Input, &in) == nil && layerName.MatchString(in.Layer) {
		return in.Layer
	}
	return s.Layer
}

var layerName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (t *turn) discard() error {
	if _, err := ask(t, hub.DiscardLayer, t.words[1]); err != nil {
		return err
	}
	return t.see("changes", "discarded")
}
