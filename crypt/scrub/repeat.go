package scrub

// A text of many "a" agrees at each of its bytes with most of a value of many "a". To compare them
// from the start each time takes time that grows with the value's length for each byte of text,
// which whoever stores such a value could have palyrad spend. So what was compared is remembered,
// as in Z-search, and no byte of a text is compared twice with such a pattern.
const (
	short   = 64 // bytes: such patterns cost little
	repeats = 16 // of what a pattern begins with, from which on it's searched so
)

// overlaps returns for each place of a pattern how much of its beginning stands there, or nil if
// the pattern doesn't begin with repetitions. It's no secret of its own: it says where a value is
// like itself.
func overlaps(p []byte) []int32 {
	if len(p) <= short {
		return nil
	}
	z := make([]int32, len(p))
	z[0] = int32(len(p)) // maxPatterns at most
	from, to, found := 0, 0, false
	for i := 1; i < len(p); i++ {
		n := 0
		if i < to {
			n = min(int(z[i-from]), to-i)
		}
		for i+n < len(p) && p[n] == p[i+n] {
			n++
		}
		if z[i] = int32(n); i+n > to {
			from, to = i, i+n
		}
		found = found || (i+n)/i >= repeats
	}
	if !found {
		return nil
	}
	return z
}

// seen is what is known of one text and one pattern: text[from:to] is how the pattern begins.
type seen struct{ from, to int }

// search is one pass over one text, from its start to its end.
type search struct {
	text []byte
	seen map[*pattern]seen // of those with overlaps alone
}

// agrees returns for how many bytes text from i on is p.
func (s *search) agrees(p *pattern, i int) int {
	n, w := 0, s.seen[p]
	if i < w.to {
		if z := int(p.overlaps[i-w.from]); z < w.to-i {
			return z
		}
		n = w.to - i
	}
	for n < len(p.text) && i+n < len(s.text) && p.text[n] == s.text[i+n] {
		n++
	}
	if s.seen == nil {
		s.seen = make(map[*pattern]seen)
	}
	s.seen[p] = seen{i, i + n}
	return n
}
