package memory

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"palyra/agentloop/turn"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// made is the ctx of a call whose texts have these vectors by a model.
func made(t *testing.T, model string, vectors ...[]float32) context.Context {
	e := &Embedded{Model: model}
	for _, v := range vectors {
		e.Vectors = append(e.Vectors, turn.NewVector(v))
	}
	return WithEmbedded(t.Context(), e)
}

// keepIn stores texts by a call with another ctx.
func (h *home) keepIn(ctx context.Context, who string, texts ...string) {
	h.t.Helper()
	var items []tool.NewMemory
	for _, text := range texts {
		items = append(items, tool.NewMemory{Text: text, Source: toolproto.SourcePerson, Scope: "principal", Origins: []string{"person"}, Confidence: 100})
	}
	d, err := h.Draft(ctx, who, items)
	if err == nil {
		err = h.Keep(ctx, who, d)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// foundIn are the texts that a search finds, each with what its vector part is of, if that says it.
func (h *home) foundIn(ctx context.Context, who, query string, recall bool) string {
	h.t.Helper()
	items, err := h.Search(ctx, who, "", query, &toolproto.MemorySearchInput{Limit: 64, Recall: recall})
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, it := range items {
		text, by := it.Text, it.Score.Embedding
		if by != "" {
			text += " [" + by + "]"
		}
		if s := it.Score; s.Total != s.Lexical+s.Vector+s.Recency+s.Quality || s.Vector > vectorPart {
			h.t.Errorf("%s: %+v", text, s)
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// TestNear: an item without a word of the query is found by a provider's vectors, after a restart
// too; those of another model, or none, leave it to the hashes, and the result says so.
func TestNear(t *testing.T) {
	h := newHome(t, Config{})
	dog, car := []float32{0.9, 0.1, 0}, []float32{0.1, 0.9, 0}
	h.keepIn(made(t, "p/m", dog, car), "uid:1", "Hounds sleep a lot", "My automobile is red")
	h.keep("uid:1", tool.NewMemory{Text: "A dog barks"}) // before a model was configured
	h.keepIn(made(t, "p/m", dog), "uid:2", "Another one's hound")
	const query = "dog"
	for range 2 {
		if got := h.foundIn(made(t, "p/m", []float32{1, 0, 0}), "uid:1", query, false); got != "A dog barks [hash-embedding-v1: no vector of p/m]; Hounds sleep a lot [p/m]" {
			t.Errorf("found %q", got)
		}
		if got := h.foundIn(made(t, "p/other", []float32{1, 0, 0}), "uid:1", query, false); got != "A dog barks [hash-embedding-v1: no vector of p/other]" {
			t.Errorf("by another model: %q", got)
		}
		if got := h.foundIn(made(t, "p/m", []float32{1, 0}), "uid:1", query, false); got != "A dog barks [hash-embedding-v1: no vector of p/m]" {
			t.Errorf("of other dimensions: %q", got)
		}
		for _, v := range [][]float32{nil, {0, 0, 0}} {
			ctx := WithEmbedded(t.Context(), &Embedded{Model: "p/m", Vectors: []turn.Vector{turn.NewVector(v)}, Why: turn.TimedOut})
			if got := h.foundIn(ctx, "uid:1", query, false); got != "A dog barks [hash-embedding-v1: provider_timeout]" {
				t.Errorf("a provider that doesn't answer: %q", got)
			}
		}
		if got := h.foundIn(t.Context(), "uid:1", query, false); got != "A dog barks" {
			t.Errorf("without a model: %q", got)
		}
		if err := h.st.Close(); err != nil {
			t.Fatal(err)
		}
		h.open(Config{}) // with an index that is made again
	}
}

// TestNearRecall: a model whose vectors are all alike has unlike items told as little as another.
func TestNearRecall(t *testing.T) {
	h := newHome(t, Config{})
	about := func(topic int) []float32 { // cosines of 0.8, or 1
		v := make([]float32, 40)
		v[0], v[topic] = 2, 1
		return v
	}
	var texts []string
	var vectors [][]float32
	for i := range 30 {
		texts, vectors = append(texts, fmt.Sprintf("Item %c", 'a'+i)), append(vectors, about(i+1))
	}
	texts[0] = "Hounds sleep"
	h.keepIn(made(t, "p/m", vectors...), "uid:1", texts...)
	if got := h.foundIn(made(t, "p/m", about(1)), "uid:1", "where is the dog", true); got != "Hounds sleep [p/m]" {
		t.Errorf("recalled %q", got)
	}
	if got := h.foundIn(made(t, "p/m", about(39)), "uid:1", "where is the dog", true); got != "" {
		t.Errorf("recalled %q", got)
	}
}

// TestQuantized: a vector as it's stored has the cosines of the one that came, but for a hundredth.
func TestQuantized(t *testing.T) {
	of := func(seed float64) (v []float32) {
		for i := range 1536 {
			v = append(v, float32(math.Sin(seed*float64(i*i+1)))/40)
		}
		return v
	}
	exact := func(a, b []float32) float64 {
		var ab, aa, bb float64
		for i := range a {
			x, y := float64(a[i]), float64(b[i])
			ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
		}
		return ab / math.Sqrt(aa*bb)
	}
	a := of(1)
	for _, mix := range []float32{0, 0.3, 0.7, 1} {
		b := of(2)
		for i := range b {
			b[i] = mix*a[i] + (1-mix)*b[i]
		}
		x, y := newNear("m", turn.NewVector(a)), newNear("m", turn.NewVector(b))
		back := storedNear(&content{Model: "m", Vector: y.stored()})
		if got, ok := x.cosine(back); !ok || math.Abs(got-exact(a, b)) > 0.01 {
			t.Errorf("%v of it: %v, %v", mix, got, exact(a, b))
		}
	}
	for _, c := range []content{{Version: 2}, {Version: 1, Model: "m", Vector: []byte{1}}, {Version: 2, Vector: []byte{1}}, {Version: 2, Model: "m"}, {Version: 3}, {}} {
		if c.whole() {
			t.Errorf("%+v is a content", c)
		}
	}
}
