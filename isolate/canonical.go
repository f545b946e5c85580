package isolate

import (
	"encoding/hex"
	"strconv"
	"unicode/utf8"

	"palyra/internal/canon"
)

// Canonical returns the canonical JSON of the Spec, which is canon.Marshal's: the
// tests and a fuzz target hold the two to each other. Each call needs it, and a
// call that finds cold caches waits for most of what canon.Marshal touches. What
// is not plain, a string that needs an escape for one, goes through canon.Marshal.
func (s *Spec) Canonical() ([]byte, error) {
	w := specWriter{out: make([]byte, 0, 1024)}
	w.spec(s)
	if w.odd {
		return canon.Marshal(s)
	}
	return w.out, nil
}

// Digest returns the digest of the Spec's canonical JSON, the second value that
// a grant is bound to.
func (s *Spec) Digest() (canon.Digest, error) {
	b, err := s.Canonical()
	if err != nil {
		return canon.Digest{}, err
	}
	return canon.Sum(b), nil
}

// specWriter writes members in the order of their names.
type specWriter struct {
	out []byte
	odd bool // something is left to canon.Marshal
}

func (w *specWriter) spec(s *Spec) {
	w.lit(`{"argv":`)
	w.strings(s.Argv)
	w.lit(`,"capsule":`)
	w.digest(&s.Capsule)
	w.lit(`,"cwd":`)
	w.str(s.Cwd)
	w.lit(`,"env":`)
	w.strings(s.Env)
	w.lit(`,"exec":`)
	w.file(&s.Exec)
	w.lit(`,"limits":`)
	w.limits(&s.Limits)
	if s.Network != "" {
		w.lit(`,"network":`)
		w.str(s.Network)
	}
	w.lit(`,"operands":`)
	if s.Operands == nil {
		w.lit("null")
	} else {
		w.lit("[")
		for i := range s.Operands {
			w.comma(i)
			w.file(&s.Operands[i])
		}
		w.lit("]")
	}
	if s.Script != nil {
		w.lit(`,"script":`)
		w.file(s.Script)
	}
	w.lit(`,"stdin":`)
	w.str(s.Stdin)
	w.lit(`,"tier":`)
	w.str(s.Tier.String())
	w.num(`,"version":`, int64(s.Version))
	w.lit(`,"workspace":`)
	if m := s.Workspace; m == nil {
		w.lit("null")
	} else {
		w.num(`{"gid":`, int64(m.GID))
		w.lit(`,"read_only":`)
		w.out = strconv.AppendBool(w.out, m.ReadOnly)
		w.lit(`,"source":`)
		w.str(m.Source)
		w.num(`,"uid":`, int64(m.UID))
		w.lit("}")
	}
	w.lit("}")
}

func (w *specWriter) file(f *File) {
	w.lit(`{"digest":`)
	w.digest(&f.Digest)
	w.lit(`,"path":`)
	w.str(f.Path)
	w.lit(`,"pinned":`)
	w.str(f.Pinned)
	w.num(`,"size":`, f.Size)
	w.lit("}")
}

func (w *specWriter) limits(l *Limits) {
	w.num(`{"cpu":`, int64(l.CPU))
	w.num(`,"disk":`, l.Disk)
	w.num(`,"file_size":`, l.FileSize)
	w.num(`,"inodes":`, l.Inodes)
	w.num(`,"memory":`, l.Memory)
	w.num(`,"open_files":`, l.OpenFiles)
	w.num(`,"output":`, l.Output)
	w.num(`,"pids":`, l.PIDs)
	w.num(`,"wall":`, int64(l.Wall))
	w.lit("}")
}

func (w *specWriter) lit(s string) { w.out = append(w.out, s...) }

func (w *specWriter) comma(i int) {
	if i > 0 {
		w.out = append(w.out, ',')
	}
}

func (w *specWriter) num(name string, v int64) {
	const exact = 1 << 53 // from here on a double does not hold every integer
	w.odd = w.odd || v <= -exact || v >= exact
	w.out = strconv.AppendInt(append(w.out, name...), v, 10)
}

func (w *specWriter) strings(v []string) {
	if v == nil {
		w.lit("null")
		return
	}
	w.lit("[")
	for i, s := range v {
		w.comma(i)
		w.str(s)
	}
	w.lit("]")
}

func (w *specWriter) str(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			w.odd = true
			return
		}
	}
	w.odd = w.odd || !utf8.ValidString(s)
	w.out = append(append(append(w.out, '"'), s...), '"')
}

func (w *specWriter) digest(d *canon.Digest) {
	w.lit(`"`)
	if !d.IsZero() {
		w.out = hex.AppendEncode(append(w.out, "sha256:"...), d[:])
	}
	w.lit(`"`)
}
