package memory

import (
	"context"
	"math"

	"palyra/agentloop/turn"
)

// Embedded is what a provider's model made of the texts that a call stores, or of its query.
// Without it items are compared by hashes.
type Embedded struct {
	// Model names what made the vectors: those of two models say nothing of each other.
	Model   string
	Vectors []turn.Vector // of each text; nil: it has none
	Why     string        // why one has none: a reason code, or a class of a provider's failures
}

// of returns the vector of a text, nil if it has none.
func (e *Embedded) of(text int) *near {
	if e == nil || text >= len(e.Vectors) {
		return nil
	}
	return newNear(e.Model, e.Vectors[text])
}

type embeddedKey struct{}

// WithEmbedded returns the ctx of a call whose texts, or whose query, were embedded.
func WithEmbedded(ctx context.Context, e *Embedded) context.Context {
	return context.WithValue(ctx, embeddedKey{}, e)
}

func embedded(ctx context.Context) *Embedded {
	e, _ := ctx.Value(embeddedKey{}).(*Embedded)
	return e
}

// near is a provider's vector as an item has it: in 127ths of its largest number, which changes
// cosines by less than a hundredth and takes a quarter of the room.
type near struct {
	model string
	of    []int8
	norm  float64
}

// newNear returns nil for a vector of zeros.
func newNear(model string, v turn.Vector) *near {
	numbers := v.Numbers()
	most := 0.0
	for _, x := range numbers {
		most = math.Max(most, math.Abs(float64(x)))
	}
	if most == 0 {
		return nil
	}
	of := make([]int8, len(numbers))
	for i, x := range numbers {
		of[i] = int8(math.Round(127 * float64(x) / most))
	}
	return (&near{model: model, of: of}).measured()
}

// storedNear is the vector of an item's content, nil if that has none.
func storedNear(c *content) *near {
	if len(c.Vector) == 0 {
		return nil
	}
	of := make([]int8, len(c.Vector))
	for i, x := range c.Vector {
		of[i] = int8(x)
	}
	return (&near{model: c.Model, of: of}).measured()
}

// stored is the vector as an item's content has it.
func (n *near) stored() []byte {
	b := make([]byte, len(n.of))
	for i, x := range n.of {
		b[i] = byte(x)
	}
	return b
}

func (n *near) measured() *near {
	var sum float64
	for _, x := range n.of {
		sum += float64(x) * float64(x)
	}
	n.norm = math.Sqrt(sum)
	return n
}

// cosine returns the cosine of two vectors; false where one is missing, or they're of two models.
func (n *near) cosine(o *near) (float64, bool) {
	if n == nil || o == nil || n.model != o.model || len(n.of) != len(o.of) {
		return 0, false
	}
	var sum int32 // 127² * turn.MaxDimensions is less than 2²⁷
	others := o.of[:len(n.of)]
	for i, x := range n.of {
		sum += int32(x) * int32(others[i])
	}
	return float64(sum) / (n.norm * o.norm), true
}

// few is how many items with a cosine of 0 are thought beside those that are compared, so that one
// alone isn't the middle.
const few = 4

// compare says how alike hits are to a query: by the provider's vectors where both have one, else
// by hashes. Texts that have nothing in common have a cosine above 0 too, of one model more than of
// another: the mean of all that are compared counts as nothing.
func (b *book) compare(a *ask, query vector, lists ...[]hit) {
	var sum, n float64
	for _, hits := range lists {
		for i := range hits {
			h, d := &hits[i], &b.docs[hits[i].doc]
			if h.alike, h.near = a.near.cosine(d.near); !h.near {
				h.alike = query.likeness(&d.vector)
				continue
			}
			sum, n = sum+h.alike, n+1
		}
	}
	if n == 0 {
		return
	}
	mean := math.Max(0, sum/(n+few))
	for _, hits := range lists {
		for i := range hits {
			if h := &hits[i]; h.near {
				h.alike = math.Max(0, (h.alike-mean)/(1-mean))
			}
		}
	}
}

// by names the vectors by which a hit was compared, "" where no provider's are configured.
func (a *ask) by(h *hit) string {
	switch {
	case a.embedded == nil:
		return ""
	case h.near:
		return a.embedded.Model
	case a.near == nil && a.embedded.Why != "":
		return Embedding + ": " + a.embedded.Why
	}
	return Embedding + ": no vector of " + a.embedded.Model
}
