package cell

import (
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"palyra/internal/canon"
	"palyra/isolate"
)

// specParser reads the canonical JSON of a Spec and nothing else: what the
// grant is bound to is the digest of these bytes, so they must have one reading.
type specParser struct {
	in  string
	bad bool
}

// parseSpec reads the canonical JSON of a Spec (isolate.Spec.Digest). Strings
// that need an escape are left to encoding/json.
func parseSpec(b string) (*isolate.Spec, error) {
	p := specParser{in: b}
	s := new(isolate.Spec)
	p.lit(`{"argv":`)
	s.Argv = p.strings()
	p.lit(`,"capsule":`)
	p.digest(&s.Capsule)
	p.lit(`,"cwd":`)
	s.Cwd = p.str()
	p.lit(`,"env":`)
	s.Env = p.strings()
	p.lit(`,"exec":`)
	p.file(&s.Exec)
	p.lit(`,"limits":`)
	p.limits(&s.Limits)
	if p.try(`,"network":`) {
		s.Network = p.str()
		p.bad = p.bad || s.Network == ""
	}
	p.lit(`,"operands":`)
	if !p.try("null") {
		s.Operands = []isolate.File{}
		for p.elements(len(s.Operands)) {
			var f isolate.File
			p.file(&f)
			s.Operands = append(s.Operands, f)
		}
	}
	if p.try(`,"script":`) {
		s.Script = new(isolate.File)
		p.file(s.Script)
	}
	p.lit(`,"stdin":`)
	s.Stdin = p.str()
	p.lit(`,"tier":`)
	if t := p.str(); s.Tier.UnmarshalText([]byte(t)) != nil || s.Tier.String() != t {
		p.bad = true
	}
	p.lit(`,"version":`)
	s.Version = int(p.num())
	p.lit(`,"workspace":`)
	if !p.try("null") {
		s.Workspace = new(isolate.Mount)
		p.mount(s.Workspace)
	}
	p.lit("}")
	if p.bad || len(p.in) != 0 {
		return nil, errors.New("decode spec: not the canonical form of one")
	}
	return s, nil
}

func (p *specParser) file(f *isolate.File) {
	p.lit(`{"digest":`)
	p.digest(&f.Digest)
	p.lit(`,"path":`)
	f.Path = p.str()
	p.lit(`,"pinned":`)
	f.Pinned = p.str()
	p.lit(`,"size":`)
	f.Size = p.num()
	p.lit("}")
}

func (p *specParser) mount(m *isolate.Mount) {
	p.lit(`{"gid":`)
	m.GID = p.id()
	p.lit(`,"read_only":`)
	if m.ReadOnly = p.try("true"); !m.ReadOnly {
		p.lit("false")
	}
	p.lit(`,"source":`)
	m.Source = p.str()
	p.lit(`,"uid":`)
	m.UID = p.id()
	p.lit("}")
}

func (p *specParser) limits(l *isolate.Limits) {
	p.lit(`{"cpu":`)
	l.CPU = time.Duration(p.num())
	for _, f := range []struct {
		name string
		to   *int64
	}{{"disk", &l.Disk}, {"file_size", &l.FileSize}, {"inodes", &l.Inodes}, {"memory", &l.Memory},
		{"open_files", &l.OpenFiles}, {"output", &l.Output}, {"pids", &l.PIDs}} {
		p.lit(`,"`)
		p.lit(f.name)
		p.lit(`":`)
		*f.to = p.num()
	}
	p.lit(`,"wall":`)
	l.Wall = time.Duration(p.num())
	p.lit("}")
}

func (p *specParser) try(s string) bool {
	if p.bad || len(p.in) < len(s) || p.in[:len(s)] != s {
		return false
	}
	p.in = p.in[len(s):]
	return true
}

func (p *specParser) lit(s string) {
	if !p.try(s) {
		p.bad = true
	}
}

// elements begins an array and separates its elements; n is how many there were.
func (p *specParser) elements(n int) bool {
	if n == 0 {
		p.lit("[")
	}
	if p.bad || p.try("]") {
		return false
	}
	if n > 0 {
		p.lit(",")
	}
	return !p.bad
}

func (p *specParser) strings() []string {
	if p.try("null") {
		return nil
	}
	out := []string{}
	for p.elements(len(out)) {
		out = append(out, p.str())
	}
	return out
}

func (p *specParser) id() uint32 {
	n := p.num()
	if n < 0 || n > 1<<32-1 {
		p.bad = true
	}
	return uint32(n)
}

// num reads an integer as JCS prints it; one that a double cannot hold is none.
func (p *specParser) num() (v int64) {
	negative := p.try("-")
	n := 0
	for n < len(p.in) && p.in[n] >= '0' && p.in[n] <= '9' && n < 17 {
		v = v*10 + int64(p.in[n]-'0')
		n++
	}
	if p.bad || n == 0 || v > 1<<53 || p.in[0] == '0' && (n > 1 || negative) {
		p.bad = true
		return 0
	}
	p.in = p.in[n:]
	if negative {
		return -v
	}
	return v
}

func (p *specParser) digest(d *canon.Digest) {
	s := p.str()
	if p.bad || d.UnmarshalText([]byte(s)) != nil || d.String() != s {
		p.bad = true
	}
}

// str reads a string as JCS prints it.
func (p *specParser) str() string {
	if !p.try(`"`) {
		p.bad = true
		return ""
	}
	for i := range len(p.in) {
		switch c := p.in[i]; {
		case c == '"':
			s := p.in[:i]
			p.in = p.in[i+1:]
			p.bad = p.bad || !utf8.ValidString(s)
			return s
		case c == '\\':
			return p.escaped()
		case c < ' ':
			p.bad = true
			return ""
		}
	}
	p.bad = true
	return ""
}

// escaped reads a string with escapes, whose opening quote was read.
func (p *specParser) escaped() (s string) {
	for i := 0; i < len(p.in) && !p.bad; i++ {
		switch p.in[i] {
		case '\\':
			i++
		case '"':
			token := `"` + p.in[:i+1]
			p.in = p.in[i+1:]
			if json.Unmarshal([]byte(token), &s) == nil {
				if b, err := canon.Marshal(s); err == nil && string(b) == token {
					return s
				}
			}
			p.bad = true
			return ""
		}
	}
	p.bad = true
	return ""
}
