package canon

// plain returns how many bytes at the beginning of s are ASCII that stands in a
// JSON string as it is: no control character, quote or backslash. It looks at
// eight bytes at a time: most of what is printed is names, paths and digests, and
// is plain to the end.
func plain[T string | []byte](s T) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; len(s)-i >= 8; i += 8 {
		p := s[i : i+8]
		w := uint64(p[0]) | uint64(p[1])<<8 | uint64(p[2])<<16 | uint64(p[3])<<24 |
			uint64(p[4])<<32 | uint64(p[5])<<40 | uint64(p[6])<<48 | uint64(p[7])<<56
		// (x - ones) &^ x has the high bit of a byte set where that is zero, and
		// beside it at most in bytes above one that is: whatever is left of w is
		// looked at one by one. What is below ' ' borrows from the high bit likewise.
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		if (w|(w-ones*' ')&^w|(quote-ones)&^quote|(slash-ones)&^slash)&high != 0 {
			break
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < ' ' || c >= 0x80 || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
