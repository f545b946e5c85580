package signal

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
)

// A pseudonym is ⟦secret:KIND#N⟧.
const (
	front = "⟦secret:"
	end   = "⟧"
)

// Pseudonyms names secrets, in the order in which they come. It isn't safe for concurrent use.
type Pseudonyms struct {
	names map[[sha256.Size]byte]string // by the digest of the value
	count map[string]int               // by kind
}

// NewPseudonyms returns a Pseudonyms that has named nothing.
func NewPseudonyms() *Pseudonyms {
	return &Pseudonyms{make(map[[sha256.Size]byte]string), make(map[string]int)}
}

// Redact returns the text with a pseudonym in place of each secret, and the secrets.
func (p *Pseudonyms) Redact(text string) (string, []Finding) {
	found := Secrets(text)
	if len(found) == 0 {
		return text, nil
	}
	var out strings.Builder
	from := 0
	for i := range found {
		f := &found[i]
		out.WriteString(text[from:f.From])
		out.WriteString(p.name(f.Kind(), text[f.From:f.To]))
		from = f.To
	}
	out.WriteString(text[from:])
	return out.String(), found
}

func (p *Pseudonyms) name(kind, value string) string {
	key := sha256.Sum256([]byte(value))
	name, ok := p.names[key]
	if !ok {
		p.count[kind]++
		name = fmt.Sprintf("%s%s#%d%s", front, kind, p.count[kind], end)
		p.names[key] = name
	}
	return name
}

// Named returns the first pseudonym that a text has, "" if it has none.
func Named(text string) string {
	for rest := text; ; rest = rest[len(front):] {
		i := strings.Index(rest, front)
		if i < 0 {
			return ""
		}
		rest = rest[i:]
		if n := pseudonym([]byte(rest[:min(len(rest), maxName+len(end))])); n > 0 {
			return rest[:n]
		}
	}
}

// maxName bounds a pseudonym, in bytes.
const maxName = 64

// pseudonym returns the length of the pseudonym with which b begins, 0 if it begins with none.
func pseudonym(b []byte) int {
	if !bytes.HasPrefix(b, []byte(front)) {
		return 0
	}
	i, digits := len(front), 0
	for ; i < len(b) && i < maxName && (isLower(b[i]) || isDigit(b[i]) || b[i] == '_'); i++ {
	}
	if i == len(front) || i == len(b) || b[i] != '#' {
		return 0
	}
	for i++; i < len(b) && i < maxName && isDigit(b[i]); i++ {
		digits++
	}
	if digits == 0 || !bytes.HasPrefix(b[i:], []byte(end)) {
		return 0
	}
	return i + len(end)
}
