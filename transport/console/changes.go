package console

import (
	"strings"

	"palyra/hub"
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
