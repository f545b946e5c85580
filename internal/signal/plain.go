package signal

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"html"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// folded is a text as it reads: in lower case, letters that look alike as one, without what isn't
// seen.
type folded struct {
	b    []byte
	cuts []cut // in order: where the bytes of b don't go on as those of the text do
}

// cut says that byte at of a folded text is from byte from of the text, and so on.
type cut struct{ at, from int }

func (f *folded) add(s string, from int) {
	for i := range len(s) {
		f.cut(from)
		f.b = append(f.b, s[i])
	}
}

// cut notes that the next byte comes from there.
func (f *folded) cut(from int) {
	if n := len(f.cuts); n == 0 && from != len(f.b) || n > 0 && f.cuts[n-1].from+len(f.b)-f.cuts[n-1].at != from {
		f.cuts = append(f.cuts, cut{len(f.b), from})
	}
}

// from returns where byte i comes from, the end of the text for one behind the last.
func (f *folded) from(i, end int) int {
	if i >= len(f.b) {
		return end
	}
	n, found := slices.BinarySearchFunc(f.cuts, i, func(c cut, i int) int { return cmp.Compare(c.at, i) })
	if !found {
		n--
	}
	if n < 0 {
		return i
	}
	return f.cuts[n].from + i - f.cuts[n].at
}

// unseen is a run of characters that people don't see.
type unseen struct {
	code, severity string
	from, to       int
	n              int    // characters
	says           folded // what they say, if they stand for bytes
}

// reader takes a text apart.
type reader struct {
	text   string
	seen   folded
	unseen []unseen
	alike  map[rune]string
	rtl    bool // it has letters that are written from right to left, or others that join
}

// read folds a text. What it hides is noted apart.
func read(text string) *reader {
	r := &reader{text: text, alike: alike()}
	r.seen.b = make([]byte, 0, len(text)+len(text)/8)
	for i := 0; i < len(text); {
		j := i
		for j < len(text) && text[j] < utf8.RuneSelf && text[j] != '&' && text[j] != '\\' {
			j++
		}
		if j > i {
			r.seen.cut(i)
			at := len(r.seen.b)
			r.seen.b = append(r.seen.b, text[i:j]...)
			for k, c := range r.seen.b[at:] {
				if isUpper(c) {
					r.seen.b[at+k] = c + 'a' - 'A'
				}
			}
			i = j
			continue
		}
		s, n := next(text[i:])
		for _, x := range s {
			r.rune(x, i, i+n)
		}
		i += n
	}
	return r
}

// next returns the characters that a text begins with, and how many bytes stand for them: an
// entity of HTML, an escape of a string, or one character.
func next(s string) (string, int) {
	if s[0] == '&' {
		if n := strings.IndexByte(s[:min(len(s), 12)], ';'); n > 0 {
			if t := html.UnescapeString(s[:n+1]); t != s[:n+1] {
				return t, n + 1
			}
		}
		return "&", 1
	}
	if s[0] == '\\' && len(s) > 1 {
		switch s[1] {
		case 'n', 'r', 't':
			return " ", 2
		case '"', '/', '\\':
			return s[1:2], 2
		case 'u':
			if x, ok := escape(s); ok {
				if hi, lo := x, rune(0); hi >= 0xd800 && hi < 0xdc00 && len(s) >= 12 {
					if lo, ok = escape(s[6:]); ok && lo >= 0xdc00 && lo < 0xe000 {
						return string((hi-0xd800)<<10 + lo - 0xdc00 + 0x10000), 12
					}
				}
				return string(x), 6
			}
		}
		return "\\", 1
	}
	_, n := utf8.DecodeRuneInString(s)
	return s[:n], n
}

// escape reads \uXXXX.
func escape(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	b, err := hex.DecodeString(s[2:6])
	if err != nil {
		return 0, false
	}
	return rune(b[0])<<8 | rune(b[1]), true
}

// unseenAs says what kind of character that isn't seen x is, and how grave one is; "" for others.
func unseenAs(x rune) (code, severity string) {
	switch {
	case x >= 0xe0000 && x <= 0xe007f:
		return "tags", High
	case x >= 0xfe00 && x <= 0xfe0f, x >= 0xe0100 && x <= 0xe01ef:
		return "selectors", High // of variants
	case x >= 0x202a && x <= 0x202e, x >= 0x2066 && x <= 0x2069:
		return "bidi", High
	case x == 0xad, x == 0x34f, x == 0x61c, x == 0x115f, x == 0x1160, x == 0x17b4, x == 0x17b5, x >= 0x180b && x <= 0x180f, x >= 0x200b && x <= 0x200f,
		x >= 0x2060 && x <= 0x2065, x >= 0x206a && x <= 0x206f, x == 0x3164, x == 0xfeff, x == 0xffa0, x >= 0xfff9 && x <= 0xfffb, x >= 0x1d173 && x <= 0x1d17a:
		return "zero_width", Warning
	}
	return "", ""
}

// saidBy returns the character of ASCII that an unseen one stands for: a tag is one, and a selector
// can be a byte.
func saidBy(x rune) string {
	switch {
	case x >= 0xe0100:
		x -= 0xe0100 - 16
	case x >= 0xe0000:
		x -= 0xe0000
	case x >= 0xfe00 && x <= 0xfe0f:
		x -= 0xfe00
	default:
		return ""
	}
	if x < ' ' || x >= 0x7f {
		return ""
	}
	return strings.ToLower(string(x))
}

// rune adds a character that stands from from to before to.
func (r *reader) rune(x rune, from, to int) {
	if code, severity := unseenAs(x); code != "" {
		r.hide(code, severity, from, to, saidBy(x))
		return
	}
	switch {
	case x >= 0x300 && x <= 0x36f, x >= 0x20d0 && x <= 0x20f0: // marks on letters
		return
	case x >= 0xff01 && x <= 0xff5e: // of full width
		x -= 0xff01 - '!'
	case x >= 0x1d400 && x <= 0x1d6a3: // mathematical letters, thirteen alphabets
		x = rune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[(x-0x1d400)%52])
	case x >= 0x1d7ce && x <= 0x1d7ff:
		x = '0' + (x-0x1d7ce)%10
	case x >= 0x24b6 && x <= 0x24e9: // in circles
		x = 'a' + (x-0x24b6)%26
	case x >= 0x1f130 && x <= 0x1f149: // in squares
		x = 'a' + x - 0x1f130
	case x >= 0x590 && x < 0x1100: // Hebrew, Arabic, Indic and others: some need joiners
		r.rtl = true
	}
	if unicode.IsSpace(x) {
		x = ' '
	}
	if s, ok := r.alike[x]; ok {
		r.seen.add(s, from)
		return
	}
	x = unicode.ToLower(x)
	if s, ok := r.alike[x]; ok {
		r.seen.add(s, from)
		return
	}
	r.seen.add(string(x), from)
}

// hide notes a character that isn't seen. Those of a kind beside each other are one.
func (r *reader) hide(kind, severity string, from, to int, says string) {
	n := len(r.unseen) - 1
	if n < 0 || r.unseen[n].code != kind || r.unseen[n].to != from {
		r.unseen = append(r.unseen, unseen{code: kind, severity: severity, from: from})
		n++
	}
	u := &r.unseen[n]
	u.n, u.to = u.n+1, to
	u.says.add(says, from)
}

// alike has letters that look like others, or are these with a mark: of the confusables of Unicode
// (UTS 39) those of Cyrillic, Greek and the extended Latin alphabets that are like a letter of
// ASCII.
var alike = sync.OnceValue(func() map[rune]string {
	t := make(map[rune]string)
	for to, from := range map[string]string{
		"a": "аαɑàáâãäåāăąǎȁȃạảấầẩẫậắằẳẵặᴀ", "b": "ƅЬвʙ", "c": "сϲçćĉċčᴄⅽ", "d": "ԁďđḍᴅⅾ", "e": "еєεèéêëēĕėęěẹẻẽếềểễệᴇ℮", "f": "ƒꜰ", "g": "ɡĝğġģǧɢ",
		"h": "һнĥħʜ", "i": "іιìíîïĩīĭįıǐịỉɪⅰ", "j": "јĵᴊ", "k": "кκķĸᴋ", "l": "ӏĺļľŀłʟⅼ", "m": "мᴍⅿ", "n": "ոпñńņňŉɴ", "o": "оοσòóôõöøōŏőǒọỏốồổỗộớờởỡợᴏ",
		"p": "рρᴘ", "q": "ԛ", "r": "гŕŗřʀ", "s": "ѕśŝşšșꜱ", "t": "тτţťŧțᴛ", "u": "υùúûüũūŭůűųǔụủứừửữựᴜ", "v": "ѵνᴠⅴ", "w": "ԝωŵᴡ", "x": "хχⅹ", "y": "уүγýÿŷỳỹỵʏ", "z": "źżžᴢ",
		"ss": "ß", "ae": "æ", "oe": "œ", "fi": "ﬁ", "fl": "ﬂ", "ff": "ﬀ", "'": "’‘ʼ", "-": "‐‑‒–—−", "\"": "“”„",
	} {
		for _, x := range from {
			t[x] = to
		}
	}
	return t
})

// The bounds of what is taken for base64.
const (
	minBase64 = 24
	maxBase64 = 64 << 10
)

// encoded calls f with what each long run of base64 says, if that is text.
func encoded(text string, f func(says string, from, to int)) {
	for i := 0; i < len(text); i++ {
		if !isAlnum(text[i]) {
			continue
		}
		j := i
		for j < len(text) && j-i < maxBase64 && (isSafe(text[j]) || text[j] == '+' || text[j] == '/') {
			j++
		}
		if j-i >= minBase64 {
			run := strings.NewReplacer("-", "+", "_", "/").Replace(text[i:j])
			if b, err := base64.RawStdEncoding.DecodeString(run[:len(run)-boolInt(len(run)%4 == 1)]); err == nil && readable(b) {
				f(string(b), i, j)
			}
		}
		i = j
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// readable reports whether bytes are text, for the most part.
func readable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	n := 0
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			n++
		}
	}
	return n*20 <= len(b)
}
