package spelling

import (
	"bytes"
	"fmt"
	"testing"

	"palyra/internal/sample"
)

// TestSteps: whatever values there are, a byte of text takes few steps, since what takes many is
// taken away. The text is one that nearly is each of them.
func TestSteps(t *testing.T) {
	few := sample.Of(8, 1)
	for name, c := range map[string]struct {
		values int
		value  func(i int) []byte
		text   []byte
	}{
		"one that repeats itself": {1, func(int) []byte { return append(bytes.Repeat([]byte("a"), 64<<10/few-1), '!') }, bytes.Repeat([]byte("a"), 64<<10/few-1)},
		"a thousand that begin alike": {1000 / few, func(i int) []byte { return fmt.Appendf(nil, "ghp_the_same_beginning_of_all_%06d", i) },
			bytes.Repeat([]byte("ghp_the_same_beginning_of_all_x"), 2000)},
		"each one longer": {800 / few, func(i int) []byte { return append(bytes.Repeat([]byte("a"), 8+i), '!') }, append(bytes.Repeat([]byte("a"), Sure-1), '?')},
	} {
		table := new(Table)
		for i := range c.values {
			for j, p := range Of(c.value(i)) {
				table.Add(p, []byte("mask"), j == 0)
			}
		}
		steps := 0
		for i := 0; i < len(c.text); {
			n, _, _ := table.At(c.text, i, true)
			if n == 0 {
				for at, deep := &table.root, 0; i+deep < len(c.text); steps++ { // what At does
					j, ok := at.find(c.text[i+deep])
					if !ok {
						break
					}
					at = at.next[j]
					same := common(c.text[i+deep:], at.text)
					if deep += same; same < len(at.text) {
						break
					}
				}
			}
			i += max(n, 1)
		}
		if per := float64(steps) / float64(len(c.text)); per > Sure {
			t.Errorf("%s: %.0f steps a byte", name, per)
		}
	}
}
