package qr

import (
	"bytes"
	"strings"
	"testing"

	"palyra/internal/sample"
)

// read takes a code apart as a reader does that sees no errors: format, mask, codewords, bytes.
func read(t *testing.T, c *Code) string {
	t.Helper()
	format := 0
	for i := range 15 { // the copy below and beside the finders
		y, x := 8, c.size-1-i
		if i >= 8 {
			y, x = c.size-15+i, 8
		}
		if c.dark[y][x] {
			format |= 1 << i
		}
	}
	if format ^= 0x5412; check(format>>10, 10, 0x537) != format&0x3ff || format>>13 != 0 {
		t.Fatalf("format %015b", format)
	}
	m := masks[format>>10]
	version := (c.size - 17) / 4
	var words []byte
	n, up := 0, true
	for right := c.size - 1; right > 0; right -= 2 {
		if right == 6 {
			right = 5
		}
		for k := range c.size {
			y := k
			if up {
				y = c.size - 1 - k
			}
			for _, x := range []int{right, right - 1} {
				if c.fixed[y][x] {
					continue
				}
				if n%8 == 0 {
					words = append(words, 0)
				}
				if c.dark[y][x] != m(y, x) {
					words[n/8] |= 0x80 >> (n % 8)
				}
				n++
			}
		}
		up = !up
	}
	words = words[:codewords(version)]
	// Blocks: their first words stand together, those of the longer ones' ends after them.
	count, checks := blocks[version], checkLen[version]
	data := len(words) - count*checks
	all := make([][]byte, count)
	for i, w := range words[:data/count*count] {
		all[i%count] = append(all[i%count], w)
	}
	for i, w := range words[data/count*count : data] {
		all[count-data%count+i] = append(all[count-data%count+i], w)
	}
	whole := bytes.Join(all, nil)
	for i, w := range words[data:] {
		all[i%count] = append(all[i%count], w)
	}
	for i, block := range all { // a block is a multiple of the generator, so 2ⁱ is a root of it
		root := byte(1)
		for range checks {
			sum := byte(0)
			for _, w := range block {
				sum = times(sum, root) ^ w
			}
			if sum != 0 {
				t.Fatalf("block %d has errors", i)
			}
			root = times(root, 2)
		}
	}
	bits := func(from, n int) (v int) {
		for i := from; i < from+n; i++ {
			v = v<<1 | int(whole[i/8]>>(7-i%8)&1)
		}
		return v
	}
	if bits(0, 4) != 4 {
		t.Fatalf("mode %d", bits(0, 4))
	}
	at := 12
	if version >= 10 {
		at = 20
	}
	out := make([]byte, bits(4, at-4))
	for i := range out {
		out[i] = byte(bits(at+8*i, 8))
	}
	return string(out)
}

// TestEncode: codes of every length are read again, in the smallest version. zbarimg 0.23 read
// eleven of them, of each version.
func TestEncode(t *testing.T) {
	for n := 0; n <= MaxLen; n += sample.Of(5, 1) {
		text := strings.Repeat("https://x.example/?code=Aé", 9)[:n]
		c, err := Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, c); got != text {
			t.Fatalf("%d bytes: %q, want %q", n, got, text)
		}
	}
	if _, err := Encode(strings.Repeat("x", MaxLen+1)); err == nil {
		t.Error("a text that's too long is encoded")
	}
	// Table 7 of the standard: what level M has room for in byte mode.
	for i, most := range []int{14, 26, 42, 62, 84, 106, 122, 152, 180, 213} {
		for _, n := range []int{most, most + 1} {
			c, err := Encode(strings.Repeat("x", n))
			if n > MaxLen {
				continue
			}
			if want := 17 + 4*(i+1+n-most); err != nil || c.size != want {
				t.Errorf("%d bytes: %v, %d modules wide, want %d", n, err, c.size, want)
			}
		}
	}
}

// TestCheck: format and version are those of the standard's tables C.1 and D.1.
func TestCheck(t *testing.T) {
	if got := (5<<10 | check(5, 10, 0x537)) ^ 0x5412; got != 0b100000011001110 {
		t.Errorf("format of M, mask 5: %015b", got)
	}
	if got := 7<<12 | check(7, 12, 0x1f25); got != 0b000111110010010100 {
		t.Errorf("version 7: %018b", got)
	}
}

// TestString: the margin is light, and a row has the code's width with it.
func TestString(t *testing.T) {
	c, err := Encode("x")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSuffix(c.String(), "\n"), "\n")
	if len(rows) != (c.size+2*margin+1)/2 {
		t.Errorf("%d rows for %d modules", len(rows), c.size)
	}
	const on, off = "\x1b[38;5;16;48;5;231m", "\x1b[0m"
	for i, r := range rows {
		text := strings.TrimSuffix(strings.TrimPrefix(r, on), off)
		if n := len([]rune(text)); len(text) == len(r) || n != c.size+2*margin {
			t.Errorf("row %d: %q", i, r)
		}
		if i < 2 && strings.Trim(text, " ") != "" {
			t.Errorf("row %d of the margin: %q", i, text)
		}
	}
}
