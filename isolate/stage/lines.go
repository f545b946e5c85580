package stage

import (
	"bytes"
	"fmt"
	"io"
)

// maxEdits bounds the search for the shortest edit, whose memory grows with its square. Texts
// that differ more become one hunk that removes the one and adds the other.
const maxEdits = 1000

// context is the number of equal lines around a change, as git has it.
const contextLines = 3

// hunk says that lines [a, aEnd) of the old text become [b, bEnd) of the new one.
type hunk struct{ a, aEnd, b, bEnd int }

// splitLines returns the lines of a text, each with its end.
func splitLines(text []byte) [][]byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// changesOf returns what turns the lines of one text into those of another, in order.
func changesOf(old, now [][]byte) []hunk {
	head := 0
	for head < len(old) && head < len(now) && bytes.Equal(old[head], now[head]) {
		head++
	}
	tail := 0
	for tail < len(old)-head && tail < len(now)-head && bytes.Equal(old[len(old)-1-tail], now[len(now)-1-tail]) {
		tail++
	}
	a, b := numbered(old[head:len(old)-tail], now[head:len(now)-tail])
	var out []hunk
	for _, h := range edits(a, b) {
		out = append(out, hunk{h.a + head, h.aEnd + head, h.b + head, h.bEnd + head})
	}
	return out
}

// numbered gives equal lines equal numbers, which compare faster.
func numbered(old, now [][]byte) (a, b []int) {
	ids := make(map[string]int)
	number := func(lines [][]byte) []int {
		out := make([]int, len(lines))
		for i, l := range lines {
			id, ok := ids[string(l)]
			if !ok {
				id = len(ids)
				ids[string(l)] = id
			}
			out[i] = id
		}
		return out
	}
	return number(old), number(now)
}

// edits is the greedy algorithm of Myers, "An O(ND) Difference Algorithm and Its Variations"
// (1986), up to maxEdits.
func edits(a, b []int) []hunk {
	whole := []hunk{{0, len(a), 0, len(b)}}
	if len(a) == 0 && len(b) == 0 {
		return nil
	}
	if len(a) == 0 || len(b) == 0 {
		return whole
	}
	var trace [][]int32 // v[-d..d] after each step d
	v := map[int]int{1: 0}
	for d := 0; d <= min(len(a)+len(b), maxEdits); d++ {
		row := make([]int32, 2*d+1)
		for k := -d; k <= d; k += 2 {
			x := v[k-1] + 1
			if k == -d || k != d && v[k-1] < v[k+1] {
				x = v[k+1]
			}
			y := x - k
			for x < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			v[k], row[k+d] = x, int32(x)
			if x >= len(a) && y >= len(b) {
				return walkBack(append(trace, row), len(a), len(b))
			}
		}
		trace = append(trace, row)
	}
	return whole
}

// walkBack follows the furthest points of each step from the end to the beginning.
func walkBack(trace [][]int32, x, y int) []hunk {
	var out []hunk // last first
	for d := len(trace) - 1; d > 0; d-- {
		at := func(k int) int {
			if k < -(d-1) || k > d-1 {
				return -1
			}
			return int(trace[d-1][k+d-1])
		}
		k := x - y
		from := k - 1 // a line of the old text goes
		if k == -d || k != d && at(k-1) < at(k+1) {
			from = k + 1 // a line of the new text comes
		}
		px := at(from)
		py := px - from
		h := hunk{px, px, py, py}
		if from == k-1 {
			h.aEnd++
		} else {
			h.bEnd++
		}
		if n := len(out); n > 0 && out[n-1].a == h.aEnd && out[n-1].b == h.bEnd {
			out[n-1].a, out[n-1].b = h.a, h.b
		} else {
			out = append(out, h)
		}
		x, y = px, py
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// unified writes the hunks of a unified diff, as git apply and patch(1) read them.
func unified(w io.Writer, oldText, newText []byte) error {
	old, now := splitLines(oldText), splitLines(newText)
	all := changesOf(old, now)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].a-all[n-1].aEnd <= 2*contextLines {
			n++
		}
		if err := writeHunk(w, old, now, all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func writeHunk(w io.Writer, old, now [][]byte, group []hunk) error {
	first, last := group[0], group[len(group)-1]
	lead := min(contextLines, first.a)
	trail := min(contextLines, len(old)-last.aEnd)
	a, aEnd, b, bEnd := first.a-lead, last.aEnd+trail, first.b-lead, last.bEnd+trail
	var out bytes.Buffer
	fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(a, aEnd), span(b, bEnd))
	at := a
	for _, h := range group {
		writeLines(&out, ' ', old[at:h.a])
		writeLines(&out, '-', old[h.a:h.aEnd])
		writeLines(&out, '+', now[h.b:h.bEnd])
		at = h.aEnd
	}
	writeLines(&out, ' ', old[at:aEnd])
	_, err := w.Write(out.Bytes())
	return err
}

// span spells lines [from, to): an empty one is named by the line before it.
func span(from, to int) string {
	switch to - from {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

func writeLines(out *bytes.Buffer, sign byte, lines [][]byte) {
	for _, l := range lines {
		out.WriteByte(sign)
		out.Write(l)
		if l[len(l)-1] != '\n' {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
