// Package qr draws QR codes on a terminal, so that a phone reads an address and no one types it.
//
//	c, err := qr.Encode("https://palyra.example:7142/console/enter?code=…")
//	io.WriteString(terminal, c.String())
//
// It makes codes of ISO/IEC 18004 in byte mode, with error correction level M, of the versions 1 to
// 10: at most [MaxLen] bytes. The mask is the one of the eight with the fewest runs and blocks of
// one colour.
package qr

import (
	"fmt"
	"strings"
)

// MaxLen is how many bytes a code holds.
const MaxLen = 213

// Code is a square of modules.
type Code struct {
	size  int
	dark  [][]bool // by row and column
	fixed [][]bool // finders, timing, alignment, format and version: no mask changes them
}

// Error correction level M, by version (table 9 of the standard).
var (
	checkLen = [...]int{0, 10, 16, 26, 18, 24, 16, 18, 22, 22, 26} // codewords of a block
	blocks   = [...]int{0, 1, 1, 1, 2, 2, 4, 4, 4, 5, 5}
)

const maxVersion = 10

// codewords is how many a version has, of data and of error correction.
func codewords(version int) int {
	n := (16*version+128)*version + 64
	if version >= 2 {
		a := version/7 + 2
		n -= (25*a-10)*a - 55
	}
	if version >= 7 {
		n -= 36
	}
	return n / 8
}

// Encode makes the smallest code of a text.
func Encode(text string) (*Code, error) {
	for v := 1; v <= maxVersion; v++ {
		length := 8 // bits of the number of bytes
		if v >= 10 {
			length = 16
		}
		room := codewords(v) - checkLen[v]*blocks[v]
		if 4+length+8*len(text) > 8*room {
			continue
		}
		c := newCode(v)
		c.place(interleave(v, pack(text, length, room)))
		c.maskBest()
		return c, nil
	}
	return nil, fmt.Errorf("a text of %d bytes: a QR code has room for %d", len(text), MaxLen)
}

// pack makes the codewords of the data: mode, length, bytes, end and padding.
func pack(text string, length, room int) []byte {
	var bits []bool
	put := func(v uint, n int) {
		for i := n - 1; i >= 0; i-- {
			bits = append(bits, v>>i&1 == 1)
		}
	}
	put(0b0100, 4)
	put(uint(len(text)), length)
	for i := range len(text) {
		put(uint(text[i]), 8)
	}
	put(0, min(4, 8*room-len(bits)))
	put(0, -len(bits)&7)
	for pad := uint(0xec); len(bits) < 8*room; pad ^= 0xec ^ 0x11 {
		put(pad, 8)
	}
	out := make([]byte, room)
	for i, b := range bits {
		if b {
			out[i/8] |= 0x80 >> (i % 8)
		}
	}
	return out
}

// interleave cuts the data into blocks, adds codewords that correct errors, and mixes them.
func interleave(version int, data []byte) []byte {
	n, check := blocks[version], checkLen[version]
	short, long := len(data)/n, len(data)%n // the last blocks have one more
	divisor := generator(check)
	var parts, checks [][]byte
	for i := range n {
		l := short
		if i >= n-long {
			l++
		}
		parts, checks = append(parts, data[:l]), append(checks, remainder(data[:l], divisor))
		data = data[l:]
	}
	var out []byte
	for _, all := range [][][]byte{parts, checks} {
		for i := 0; i <= max(short, check); i++ {
			for _, p := range all {
				if i < len(p) {
					out = append(out, p[i])
				}
			}
		}
	}
	return out
}

// times multiplies in the field of 256 elements modulo x⁸+x⁴+x³+x²+1.
func times(a, b byte) (p byte) {
	for ; b != 0; b >>= 1 {
		if b&1 == 1 {
			p ^= a
		}
		carry := a >> 7
		a = a<<1 ^ carry*0x1d
	}
	return p
}

// generator returns the coefficients of (x-1)(x-2)(x-4)… of a degree, but the first, which is 1.
func generator(degree int) []byte {
	g := make([]byte, degree)
	g[degree-1] = 1
	root := byte(1)
	for range degree {
		for i := range g {
			g[i] = times(g[i], root)
			if i+1 < degree {
				g[i] ^= g[i+1]
			}
		}
		root = times(root, 2)
	}
	return g
}

func remainder(data, divisor []byte) []byte {
	r := make([]byte, len(divisor))
	for _, b := range data {
		f := b ^ r[0]
		r = append(r[1:], 0)
		for i, d := range divisor {
			r[i] ^= times(d, f)
		}
	}
	return r
}

// newCode draws all but data and format.
func newCode(version int) *Code {
	c := &Code{size: 17 + 4*version}
	for range c.size {
		c.dark, c.fixed = append(c.dark, make([]bool, c.size)), append(c.fixed, make([]bool, c.size))
	}
	for i := range c.size {
		c.fix(6, i, i%2 == 0)
		c.fix(i, 6, i%2 == 0)
	}
	last := c.size - 1
	for _, at := range [][2]int{{3, 3}, {3, last - 3}, {last - 3, 3}} {
		c.rings(at[0], at[1], 4)
	}
	if version >= 2 {
		n := version/7 + 2
		step := (version*8 + n*3 + 5) / (n*4 - 4) * 2
		at := []int{6}
		for i := range n - 1 {
			at = append(at, last-6-(n-2-i)*step)
		}
		for i, y := range at {
			for j, x := range at {
				if !(i == 0 && j == 0 || i == 0 && j == n-1 || i == n-1 && j == 0) { // where the finders are
					c.rings(y, x, 2)
				}
			}
		}
	}
	c.format(0) // its place; the mask comes later
	if version >= 7 {
		bits := version<<12 | check(version, 12, 0x1f25)
		for i := range 18 {
			a, b := c.size-11+i%3, i/3
			c.fix(a, b, bits>>i&1 == 1)
			c.fix(b, a, bits>>i&1 == 1)
		}
	}
	return c
}

// check is the remainder of v·2ⁿ by a polynomial with bits as coefficients.
func check(v, n, by int) int {
	r := v
	for range n {
		r = r<<1 ^ r>>(n-1)*by
	}
	return r
}

func (c *Code) fix(y, x int, dark bool) {
	c.dark[y][x], c.fixed[y][x] = dark, true
}

// rings draws a finder with its margin (radius 4) or an alignment pattern (2).
func (c *Code) rings(y, x, radius int) {
	for dy := -radius; dy <= radius; dy++ {
		for dx := -radius; dx <= radius; dx++ {
			ring := max(dy, -dy, dx, -dx)
			if y+dy >= 0 && y+dy < c.size && x+dx >= 0 && x+dx < c.size {
				c.fix(y+dy, x+dx, ring == 0 || (ring%2 == 1) == (radius == 4))
			}
		}
	}
}

// format draws the level and the mask, twice.
func (c *Code) format(mask int) {
	bits := (mask<<10 | check(mask, 10, 0x537)) ^ 0x5412 // level M is 0
	last := c.size - 1
	for i := range 15 {
		dark := bits>>i&1 == 1
		switch {
		case i < 6:
			c.fix(i, 8, dark)
		case i < 8:
			c.fix(i+1, 8, dark)
		case i == 8:
			c.fix(8, 7, dark)
		default:
			c.fix(8, 14-i, dark)
		}
		if i < 8 {
			c.fix(8, last-i, dark)
		} else {
			c.fix(last-14+i, 8, dark)
		}
	}
	c.fix(last-7, 8, true)
}

// place draws codewords, two columns at a time from the right, up and down by turns.
func (c *Code) place(words []byte) {
	i, up := 0, true
	for right := c.size - 1; right > 0; right -= 2 {
		if right == 6 { // timing
			right--
		}
		for n := range c.size {
			y := n
			if up {
				y = c.size - 1 - n
			}
			for _, x := range []int{right, right - 1} {
				if !c.fixed[y][x] && i < 8*len(words) {
					c.dark[y][x] = words[i/8]<<(i%8)&0x80 != 0
					i++
				}
			}
		}
		up = !up
	}
}

// masks say which modules a mask turns over.
var masks = [...]func(y, x int) bool{
	func(y, x int) bool { return (y+x)%2 == 0 },
	func(y, x int) bool { return y%2 == 0 },
	func(y, x int) bool { return x%3 == 0 },
	func(y, x int) bool { return (y+x)%3 == 0 },
	func(y, x int) bool { return (y/2+x/3)%2 == 0 },
	func(y, x int) bool { return y*x%2+y*x%3 == 0 },
	func(y, x int) bool { return (y*x%2+y*x%3)%2 == 0 },
	func(y, x int) bool { return ((y+x)%2+y*x%3)%2 == 0 },
}

func (c *Code) maskBest() {
	best, least := 0, -1
	for m := range masks {
		c.mask(m)
		if p := c.penalty(); least < 0 || p < least {
			best, least = m, p
		}
		c.mask(m) // off again
	}
	c.mask(best)
}

func (c *Code) mask(m int) {
	for y := range c.size {
		for x := range c.size {
			if !c.fixed[y][x] && masks[m](y, x) {
				c.dark[y][x] = !c.dark[y][x]
			}
		}
	}
	c.format(m)
}

// penalty counts runs of five and more modules of one colour, and squares of four.
func (c *Code) penalty() (p int) {
	for _, down := range []bool{false, true} {
		for a := range c.size {
			run := 0
			for b := range c.size {
				if b > 0 && c.at(a, b, down) == c.at(a, b-1, down) {
					run++
				} else {
					run = 1
				}
				switch {
				case run == 5:
					p += 3
				case run > 5:
					p++
				}
			}
		}
	}
	for y := range c.size - 1 {
		for x := range c.size - 1 {
			if d := c.dark[y][x]; d == c.dark[y][x+1] && d == c.dark[y+1][x] && d == c.dark[y+1][x+1] {
				p += 3
			}
		}
	}
	return p
}

func (c *Code) at(a, b int, down bool) bool {
	if down {
		return c.dark[b][a]
	}
	return c.dark[a][b]
}

// margin is how many light modules surround a code.
const margin = 4

// String returns the code in half blocks, black on white whatever the terminal's colours are.
func (c *Code) String() string {
	dark := func(y, x int) bool { return y >= 0 && x >= 0 && y < c.size && x < c.size && c.dark[y][x] }
	var b strings.Builder
	for y := -margin; y < c.size+margin; y += 2 {
		b.WriteString("\x1b[38;5;16;48;5;231m")
		for x := -margin; x < c.size+margin; x++ {
			switch up, low := dark(y, x), dark(y+1, x); {
			case up && low:
				b.WriteRune('█')
			case up:
				b.WriteRune('▀')
			case low:
				b.WriteRune('▄')
			default:
				b.WriteByte(' ')
			}
		}
		b.WriteString("\x1b[0m\n")
	}
	return b.String()
}
