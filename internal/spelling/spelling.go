// Package spelling knows how a value may stand in text, and finds values there.
//
//	var t spelling.Table
//	for i, p := range spelling.Of(value) {
//		t.Add(p, mask, i == 0)
//	}
//	n, mask, more := t.At(text, i, true)
//
// It holds no value for longer than its caller does: a Table refers to the bytes that it was given.
//
// What it does not protect against: other spellings than those of [Of], and values shorter than
// [Min] bytes, which can't be told from other text.
package spelling

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"unicode/utf16"
	"unicode/utf8"
)

// Min is the length, in bytes, from which on values are found.
const Min = 8

// Sure is the length, in bytes, of a value's beginning that stands for the value. Most values are
// shorter. Without it, text that nearly is a long value would be compared again from each byte.
const Sure = 256

// Of returns how a value may stand in text, itself first, each once, [Min] bytes at least. It
// leaves no copies of the value behind but those.
func Of(value []byte) (all [][]byte) {
	add := func(p []byte) {
		if len(p) < Min {
			return
		}
		for _, q := range all {
			if bytes.Equal(p, q) {
				return
			}
		}
		all = append(all, bytes.Clone(p))
	}
	// made is add for bytes that are of no use behind it.
	made := func(p []byte) {
		add(p)
		clear(p)
	}
	forms := [][]byte{value}
	if t := bytes.TrimRight(value, "\r\n"); len(t) >= Min && len(t) < len(value) {
		forms = append(forms, t)
	}
	for _, v := range forms {
		add(v)
		made(bytes.ToLower(v)) // as names of hosts are kept
		made(bytes.ReplaceAll(v, []byte("\n"), []byte("\r\n")))
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			for lead := range 3 {
				inBase64(e, lead, v, add)
			}
		}
		lines(v, made)
		x := hex.AppendEncode(make([]byte, 0, 2*len(v)), v)
		add(x)
		made(bytes.ToUpper(x))
		clear(x)
		percent(v, made)
		quoted(v, made)
		if utf8.Valid(v) {
			inJSON(v, made)
		}
	}
	return all
}

// inBase64 adds the characters that v alone decides where lead bytes come before it, alone and with
// those that end the text.
func inBase64(e *base64.Encoding, lead int, v []byte, add func([]byte)) {
	text := append(make([]byte, lead, lead+len(v)), v...)
	whole := e.AppendEncode(make([]byte, 0, e.EncodedLen(len(text))), text)
	clear(text)
	defer clear(whole)
	from := whole
	if lead > 0 {
		from = whole[lead+1:] // of 8 or 16 bits before v, in characters of 6
	}
	add(from)
	bare := bytes.TrimRight(from, "=")
	add(bare)
	if (lead+len(v))%3 != 0 {
		add(bare[:len(bare)-1]) // the last one has bits of what follows
	}
}

// lines adds v in base64 as base64(1), openssl and MIME break it.
func lines(v []byte, made func([]byte)) {
	text := base64.StdEncoding.AppendEncode(make([]byte, 0, base64.StdEncoding.EncodedLen(len(v))), v)
	defer clear(text)
	for _, width := range []int{64, 76} {
		if len(text) <= width {
			continue
		}
		for _, end := range []string{"\n", "\r\n"} {
			b := make([]byte, 0, len(text)+2*(len(text)/width+1))
			for i := 0; i < len(text); i += width {
				if i > 0 {
					b = append(b, end...)
				}
				b = append(b, text[i:min(i+width, len(text))]...)
			}
			made(b)
		}
	}
}

const (
	upperHex = "0123456789ABCDEF"
	lowerHex = "0123456789abcdef"
)

// percent adds v as a part of URLs. Which characters stay depends on the part and on the encoder.
func percent(v []byte, made func([]byte)) {
	for _, e := range []struct {
		keeps string // beside letters and digits; "": neither those
		form  bool   // a blank is a plus sign
	}{
		{"", false},
		{"-_.~", false},                 // RFC 3986, unreserved
		{"-_.~/", false},                // Python's quote
		{"-_.~$&+=:@", false},           // Go's PathEscape
		{"-_.~$&+,;=", false},           // Go's user information
		{"-_.~!'()*", false},            // JavaScript's encodeURIComponent
		{"-_.~;,/?:@&=+$#!'()*", false}, // and encodeURI
		{"-_.~", true},                  // Go's QueryEscape, Python's quote_plus
		{"*-._", true},                  // forms of browsers and Java
	} {
		for _, digits := range []string{upperHex, lowerHex} {
			b := make([]byte, 0, 3*len(v))
			for _, c := range v {
				alone := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
				switch {
				case c == ' ' && e.form:
					b = append(b, '+')
				case e.keeps != "" && (alone || bytes.IndexByte([]byte(e.keeps), c) >= 0):
					b = append(b, c)
				default:
					b = append(b, '%', digits[c>>4], digits[c&15])
				}
			}
			made(b)
		}
	}
}

// quoted adds v as shells, Python and markup quote it.
func quoted(v []byte, made func([]byte)) {
	each := func(most int, spell func(b []byte, c byte) []byte) {
		b := make([]byte, 0, most*len(v))
		for _, c := range v {
			b = spell(b, c)
		}
		made(b)
	}
	each(4, func(b []byte, c byte) []byte { // within '…'
		if c == '\'' {
			return append(b, `'\''`...)
		}
		return append(b, c)
	})
	each(2, func(b []byte, c byte) []byte { // as words
		if bytes.IndexByte([]byte(" \t!\"#$&'()*;<>?[\\]^`{|}~"), c) >= 0 {
			b = append(b, '\\')
		}
		return append(b, c)
	})
	each(4, func(b []byte, c byte) []byte { // repr of bytes, and of text within ASCII
		if i := bytes.IndexByte([]byte("\t\n\r\\"), c); i >= 0 {
			return append(b, '\\', `tnr\`[i])
		}
		if c < ' ' || c >= 0x7f {
			return append(b, '\\', 'x', lowerHex[c>>4], lowerHex[c&15])
		}
		return append(b, c)
	})
	for _, quotes := range [][2]string{{"&#34;", "&#39;"}, {"&quot;", "&apos;"}, {"&quot;", "&#x27;"}, {"&quot;", "'"}} {
		each(6, func(b []byte, c byte) []byte {
			switch c {
			case '&':
				return append(b, "&amp;"...)
			case '<':
				return append(b, "&lt;"...)
			case '>':
				return append(b, "&gt;"...)
			case '"':
				return append(b, quotes[0]...)
			case '\'':
				return append(b, quotes[1]...)
			}
			return append(b, c)
		})
	}
}

// inJSON adds v as the content of a string: with and without the escapes that HTML wants, with
// escaped slashes, and in ASCII alone.
func inJSON(v []byte, made func([]byte)) {
	for _, as := range []struct {
		also   string // characters that are escaped, too
		ascii  bool
		digits string
	}{{"<>&\u2028\u2029", false, lowerHex}, {"\u2028\u2029", false, lowerHex}, {"", false, lowerHex}, {"/", false, lowerHex}, {"", true, lowerHex}, {"", true, upperHex}} {
		b := make([]byte, 0, 6*len(v))
		escape := func(c rune) {
			b = append(b, '\\', 'u', as.digits[c>>12&15], as.digits[c>>8&15], as.digits[c>>4&15], as.digits[c&15])
		}
		for rest := v; len(rest) > 0; {
			c, n := utf8.DecodeRune(rest)
			switch i := bytes.IndexRune([]byte("\"\\\b\f\n\r\t"), c); {
			case i >= 0:
				b = append(b, '\\', `"\bfnrt`[i])
			case c == '/' && as.also == "/":
				b = append(b, '\\', '/')
			case c < ' ', bytes.ContainsRune([]byte(as.also), c), as.ascii && c >= utf8.RuneSelf && c <= 0xffff:
				escape(c)
			case as.ascii && c > 0xffff:
				hi, lo := utf16.EncodeRune(c)
				escape(hi)
				escape(lo)
			default:
				b = append(b, rest[:n]...)
			}
			rest = rest[n:]
		}
		made(b)
	}
}
