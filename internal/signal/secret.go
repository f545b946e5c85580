package signal

import (
	"bytes"
	"math"
	"strings"
)

// Secrets returns the secrets of a text in order, none within another. They're found by the formats
// that issuers give their tokens, with the checksum where the format has one; as the password of a
// URL; as a private key; behind the names under which secrets are kept; and in the headers of HTTP.
// References to secrets (vault://…), look-ups in an environment, placeholders and pseudonyms aren't
// any.
func Secrets(text string) (found []Finding) {
	b := []byte(text)
	for i := bytes.Index(b, []byte(front)); i >= 0; { // names of secrets are none, and nothing goes on across one
		if n := pseudonym(b[i:]); n > 0 {
			clear(b[i : i+n])
		}
		next := bytes.Index(b[i+1:], []byte(front))
		if next < 0 {
			break
		}
		i += 1 + next
	}
	for range maxPasses {
		s := scanner{b: b}
		s.run()
		if len(s.found) == 0 {
			break
		}
		// Once more without these: what stood beside a secret stands alone behind it.
		for _, f := range s.found {
			clear(b[f.From:f.To])
		}
		found = append(found, s.found...)
	}
	byPlace(found)
	return found
}

// maxPasses bounds how often a text is looked through. Three do, but for one that was made to need
// more.
const maxPasses = 32

// scanner looks for secrets once.
type scanner struct {
	b     []byte
	found []Finding
	exact []bool // of each: by the format of the secret, not by what stands around it

	values, tokens depth
}

// depth bounds how often a byte is looked at: within what was looked at as a whole others are
// looked at only so deep.
type depth struct{ until, n int }

const maxDeep = 4

// may reports whether what begins at i may be looked at.
func (d *depth) may(i int) bool {
	if i >= d.until {
		d.n = 0
	}
	return d.n < maxDeep
}

// did notes that it was, up to a byte.
func (d *depth) did(to int) {
	d.n++
	d.until = max(d.until, to)
}

// add notes a secret. One that overlaps others becomes one with these: it has the code of the one
// whose format is known.
func (s *scanner) add(kind, severity string, from, to int, exact bool) {
	f := Finding{Leak + "." + kind, severity, from, to}
	if exact { // what follows it begins anew
		clear(s.b[from:to])
	}
	for n := len(s.found) - 1; n >= 0 && s.found[n].To+maxKey > f.From; n-- { // the others are before it
		o := &s.found[n]
		if o.To <= f.From || o.From >= f.To {
			continue
		}
		f.From, f.To = min(f.From, o.From), max(f.To, o.To)
		if s.exact[n] && !exact {
			f.Code, f.Severity, exact = o.Code, o.Severity, true
		}
		s.found = append(s.found[:n], s.found[n+1:]...)
		s.exact = append(s.exact[:n], s.exact[n+1:]...)
	}
	s.found, s.exact = append(s.found, f), append(s.exact, exact)
}

// The bytes at which run looks closer.
var interesting = func() (t [256]bool) {
	for i := range formats {
		t[formats[i].prefix[0]] = true
	}
	for _, c := range "e-:=>bB" { // a JWT, a key, an assignment or URL, a header
		t[c] = true
	}
	return t
}()

func (s *scanner) run() {
	b := s.b
	for i := 0; i < len(b); i++ {
		c := b[i]
		if !interesting[c] {
			continue
		}
		switch c {
		case ':', '=', '>':
			s.assignment(i)
			if c == ':' {
				s.url(i)
			}
			continue
		case '-':
			s.privateKey(i)
			continue
		case 'b', 'B':
			s.bearer(i)
		case 'e':
			s.jwt(i)
		}
		for _, f := range byFirst[c] {
			if i+1 == len(b) || f.prefix[1] != b[i+1] {
				continue
			}
			if n := f.at(b, i, &s.tokens); n > 0 {
				s.add(f.kind, Critical, i, i+n, true)
				i += n - 1
				break
			}
		}
	}
}

// starts reports whether a word begins at i: behind a byte of no word, or behind an escape of one.
func starts(b []byte, i int) bool {
	if i == 0 || !isWord(b[i-1]) {
		return true
	}
	return strings.IndexByte("nrt", b[i-1]) >= 0 && slashes(b, i-1)%2 == 1
}

// slashes counts the backslashes before i.
func slashes(b []byte, i int) (n int) {
	for i--; i >= 0 && b[i] == '\\'; i-- {
		n++
	}
	return n
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isAlnum(c byte) bool { return isLower(c) || isUpper(c) || isDigit(c) }
func isWord(c byte) bool  { return isAlnum(c) || c == '_' }
func isHex(c byte) bool   { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
func isSafe(c byte) bool  { return isWord(c) || c == '-' } // base64 for URLs
func isBase64(c byte) bool {
	return isAlnum(c) || c == '+' || c == '/' || c == '='
}

// while returns where the bytes of a class that begin at i end, at most max of them.
func while(b []byte, i, max int, is func(byte) bool) int {
	end := min(len(b), i+max)
	for i < end && is(b[i]) {
		i++
	}
	return i
}

// entropy is that of the bytes of a text as a source, in bits a byte.
func entropy(v []byte) (bits float64) {
	var count [256]int
	for _, c := range v {
		count[c]++
	}
	for _, n := range count {
		if n > 0 {
			p := float64(n) / float64(len(v))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}

// private key: a PEM block, also in one line of a string with escapes.

var (
	pemFront = []byte("-----BEGIN ")
	pemEnd   = []byte("-----END ")
	dashes   = []byte("-----")
)

const (
	minLine = 16 // of base64 that counts as a line of a key
	maxGap  = 16 // between the lines of a key in a program's text
)

func (s *scanner) privateKey(i int) {
	b := s.b
	if i > 0 && b[i-1] == '-' || !bytes.HasPrefix(b[i:], pemFront) {
		return
	}
	from := i
	i += len(pemFront)
	label := b[i:while(b, i, 48, func(c byte) bool { return isUpper(c) || isDigit(c) || c == ' ' })]
	i += len(label)
	if !bytes.Contains(label, []byte("PRIVATE KEY")) || !bytes.HasPrefix(b[i:], dashes) {
		return
	}
	i += len(dashes)
	to, size := i, 0
	for {
		i = blank(b, i)
		if bytes.HasPrefix(b[i:], pemEnd) {
			i += len(pemEnd)
			i = while(b, i, 48, func(c byte) bool { return isUpper(c) || isDigit(c) || c == ' ' })
			to = while(b, i, len(dashes), func(c byte) bool { return c == '-' })
			break
		}
		if n := header(b, i); n > i {
			i, to = n, n
			continue
		}
		n := while(b, i, len(b), isBase64)
		if n == i { // between the parts of a text in quotes
			j := while(b, i, maxGap, func(c byte) bool { return strings.IndexByte("\"'+,`\\. \t\r\n", c) >= 0 })
			if n = while(b, j, len(b), isBase64); n-j < 3*minLine {
				break
			}
		} else if n-i < minLine && b[n-1] != '=' && !bytes.HasPrefix(b[blank(b, n):], pemEnd) {
			break
		}
		size += n - i
		i, to = n, n
	}
	if size >= 2*minLine {
		s.add("private_key", Critical, from, to, true)
	}
}

// blank returns the first byte from i that is no white space, and no escape of one.
func blank(b []byte, i int) int {
	for i < len(b) {
		n := i
		for n < len(b) && b[n] == '\\' {
			n++
		}
		switch {
		case n > i && n < len(b) && strings.IndexByte("nrt", b[n]) >= 0:
			i = n + 1
		case n == i && strings.IndexByte(" \t\r\n", b[i]) >= 0:
			i++
		default:
			return i
		}
	}
	return i
}

// header returns the end of the line of a PEM header that begins at i, i if there's none.
func header(b []byte, i int) int {
	for _, name := range []string{"Proc-Type: ", "DEK-Info: ", "Comment: ", "Version: ", "Charset: ", "Hash: "} {
		if bytes.HasPrefix(b[i:], []byte(name)) {
			return while(b, i, 128, func(c byte) bool { return strings.IndexByte("\r\n\\\"\x00", c) < 0 })
		}
	}
	return i
}

// url finds the password in scheme://user:password@host. i is the first colon.
func (s *scanner) url(i int) {
	b := s.b
	if i == 0 || !isAlnum(b[i-1]) || !bytes.HasPrefix(b[i:], []byte("://")) {
		return
	}
	from := i + 3
	to := while(b, from, 512, func(c byte) bool { return c > ' ' && strings.IndexByte("/?#\"'`<>\\\x00", c) < 0 })
	at := bytes.LastIndexByte(b[from:to], '@')
	if at < 0 || from+at+1 == to {
		return
	}
	user, password, ok := bytes.Cut(b[from:from+at], []byte(":"))
	if !ok || len(password) < 3 || bytes.Equal(user, password) || reference(password) || placeholder(password) {
		return
	}
	s.add("password", Critical, from+len(user)+1, from+at, false)
}

// bearer finds the token behind the word Bearer.
func (s *scanner) bearer(i int) {
	b := s.b
	const word = "bearer"
	if !starts(b, i) || i+len(word) >= len(b) || !strings.EqualFold(string(b[i:i+len(word)]), word) || b[i+len(word)] != ' ' {
		return
	}
	from := i + len(word)
	from = while(b, from, 4, func(c byte) bool { return c == ' ' })
	to := while(b, from, 8192, func(c byte) bool { return isSafe(c) || strings.IndexByte(".~+/=", c) >= 0 })
	to -= len(b[from:to]) - len(bytes.TrimRight(b[from:to], ".-"))
	if v := b[from:to]; len(v) >= 12 && !reference(v) && !placeholder(v) && mixed(v) && !code(v) {
		s.add("authorization", Critical, from, to, false)
	}
}
