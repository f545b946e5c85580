package spelling

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
)

// Table has spellings of values, as a tree: each path from its root is how some of them begin. A
// copy is a table of its own, since Add copies the nodes that it changes.
type Table struct {
	root  node
	first [256]bool
	begun [1 << 16 / 64]uint64 // a bit for each pair of bytes with which a spelling begins
	fours [1 << 16 / 64]uint64 // a bit for the hash of each four
}

// four is a hash of the four bytes that b begins with.
func four(b []byte) uint32 { return binary.LittleEndian.Uint32(b) * 0x9e3779b1 >> 16 }

type node struct {
	text []byte  // from its parent to here, of a seal.Secret; empty at the root alone
	mask []byte  // of the spelling that ends here; nil: none does
	self bool    // it's a value itself
	next []*node // by their first bytes
}

// NodeSize is what a node takes of the heap, with its place in its parent and the slack of both.
const NodeSize = 128

// TableSize is what a table takes without nodes.
const TableSize = 18 << 10

// find returns the place of the child that begins with c.
func (n *node) find(c byte) (int, bool) {
	i := sort.Search(len(n.next), func(i int) bool { return n.next[i].text[0] >= c })
	return i, i < len(n.next) && n.next[i].text[0] == c
}

// common returns how many bytes a and b have in common at their beginnings.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// Add adds a spelling, Min bytes at least, which the table keeps; self says that it's the value
// itself. One that is there keeps its mask.
func (t *Table) Add(p, mask []byte, self bool) {
	t.root = *t.root.with(p, mask, self)
	t.first[p[0]] = true
	t.begun[uint(p[0])<<2|uint(p[1]>>6)] |= 1 << (p[1] & 63)
	t.fours[four(p)>>6] |= 1 << (four(p) & 63)
}

func (n *node) with(p, mask []byte, self bool) *node {
	m := *n
	if len(p) == 0 {
		if m.mask == nil {
			m.mask = mask
		}
		m.self = m.self || self
		return &m
	}
	i, ok := m.find(p[0])
	if !ok {
		m.next = slices.Insert(slices.Clone(m.next), i, &node{text: p, mask: mask, self: self})
		return &m
	}
	m.next = slices.Clone(m.next)
	k := m.next[i]
	same := common(p, k.text)
	if same < len(k.text) {
		below := *k
		below.text = k.text[same:]
		k = &node{text: k.text[:same], next: []*node{&below}}
	}
	m.next[i] = k.with(p[same:], mask, self)
	return &m
}

// Has reports whether v is a spelling, and whether it's a value.
func (t *Table) Has(v []byte) (is, self bool) {
	for n := &t.root; ; {
		if len(v) == 0 {
			return n.mask != nil, n.self
		}
		i, ok := n.find(v[0])
		if !ok || !bytes.HasPrefix(v, n.next[i].text) {
			return false, false
		}
		n = n.next[i]
		v = v[len(n.text):]
	}
}

// Next returns the first place in b, from i on, where something may begin: At says what. It's
// len(b) if there is none.
func (t *Table) Next(b []byte, i int) int {
	for ; i+4 <= len(b); i++ {
		if h := four(b[i:]); t.fours[h>>6]&(1<<(h&63)) != 0 {
			return i
		}
	}
	for i < len(b) && !t.first[b[i]] {
		i++
	}
	return i
}

// At says what begins at b[i]: n bytes of a value, for mask; or more text decides, which last rules
// out. It looks at [Sure] bytes, or at those that are removed or wait.
func (t *Table) At(b []byte, i int, last bool) (n int, mask []byte, more bool) {
	b = b[i:]
	if !t.first[b[0]] {
		return 0, nil, false
	}
	if len(b) == 1 {
		return 0, nil, !last
	}
	if len(b) >= 4 && t.fours[four(b)>>6]&(1<<(four(b)&63)) == 0 {
		return 0, nil, false
	}
	if t.begun[uint(b[0])<<2|uint(b[1]>>6)]&(1<<(b[1]&63)) == 0 {
		return 0, nil, false
	}
	at, deep := &t.root, 0
	for deep < len(b) {
		j, ok := at.find(b[deep])
		if !ok {
			break
		}
		at = at.next[j]
		same := common(b[deep:], at.text)
		deep += same
		if same < len(at.text) {
			if deep == len(b) && !last {
				return 0, nil, true
			}
			break
		}
		if at.mask != nil {
			n, mask = deep, at.mask
		}
		if deep == len(b) && !last && len(at.next) > 0 {
			return 0, nil, true
		}
	}
	if deep >= Sure && deep > n {
		for n, mask = deep, at.mask; mask == nil; mask = at.mask {
			at = at.next[0] // a node without a spelling has some below it
		}
	}
	return n, mask, false
}
