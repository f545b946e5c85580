package builtin

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// maxText bounds the lines that fs.read_file returns, in bytes.
const maxText = 1 << 20

// readFile is fs.read_file. It reads a file of up to toolproto.MaxDigested bytes to its
// end, in one pass, so that digest, size and part belong together. It reads only the needed
// part of a larger one.
func readFile(t *tree.Tree, in *toolproto.ReadFileInput) (any, error) {
	path := name(in.Path)
	f, st, err := t.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &toolproto.ReadFileResult{Path: in.Path, Size: st.Size, Permissions: permissions(st), SetID: st.SetID,
		HardLinks: st.Links, Unit: in.Unit, Offset: in.Offset}
	p := &part{lines: in.Unit == "lines", offset: in.Offset, limit: in.Limit}
	op := fmt.Sprintf("read %q", path)
	if st.Size <= toolproto.MaxDigested {
		r.Size, r.Digest, err = p.readAll(op, f)
	} else {
		err = p.readSome(op, f)
	}
	if err != nil {
		return nil, err
	}
	b := p.got
	if p.lines {
		r.Length = p.taken
	} else {
		if p.more {
			b = toolproto.WholeText(b)
		}
		r.Length = int64(len(b))
	}
	if p.more {
		r.NextOffset = in.Offset + r.Length
	}
	r.Content = toolproto.ContentOf(b)
	return r, nil
}

func permissions(st tree.Stat) string { return fmt.Sprintf("%04o", st.Perm) }

// readAll reads to the end.
func (p *part) readAll(op string, f *os.File) (int64, canon.Digest, error) {
	h, size := sha256.New(), int64(0)
	for buf := make([]byte, 64<<10); ; {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		p.take(buf[:n])
		if size += int64(n); size > toolproto.MaxDigested {
			return 0, canon.Digest{}, fault.New(fault.Busy, "changed", op, errors.New("grew while it was read"))
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, canon.Digest{}, fault.New(fault.Unavailable, "io_error", op, err)
		}
	}
	return size, canon.Digest(h.Sum(nil)), p.end(op)
}

// readSome reads from the first useful offset until it has the part.
func (p *part) readSome(op string, f *os.File) error {
	if !p.lines {
		if _, err := f.Seek(p.offset, io.SeekStart); err != nil {
			return fault.New(fault.Unavailable, "io_error", op, err)
		}
		p.at = p.offset
	}
	for buf := make([]byte, 64<<10); !p.more && !p.long; {
		n, err := f.Read(buf)
		p.take(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return fault.New(fault.Unavailable, "io_error", op, err)
		}
	}
	return p.end(op)
}

// part collects some of a stream of bytes, counted in bytes or lines.
type part struct {
	lines         bool
	offset, limit int64

	at    int64  // units that went by; of lines, the one that is being read
	begun bool   // the line that is being read has a byte
	from  int    // where in got that line begins
	got   []byte // the part
	taken int64  // lines in got that are complete
	more  bool   // there is more behind the part
	long  bool   // the first line alone is more than maxText
}

func (p *part) take(b []byte) {
	if p.lines {
		p.takeLines(b)
		return
	}
	lo, hi := max(p.offset-p.at, 0), min(p.offset+p.limit-p.at, int64(len(b)))
	if lo < hi {
		p.got = append(p.got, b[lo:hi]...)
	}
	if p.at += int64(len(b)); p.at > p.offset+p.limit {
		p.more = true
	}
}

func (p *part) takeLines(b []byte) {
	for len(b) > 0 && !p.long {
		if p.at >= p.offset && p.taken == p.limit || p.more {
			p.more = true
			return
		}
		n := bytes.IndexByte(b, '\n') + 1
		complete := n > 0
		if !complete {
			n = len(b)
		}
		if p.at >= p.offset {
			if len(p.got)+n > maxText {
				// This line does not fit any more.
				p.got, p.more, p.long = p.got[:p.from], true, p.taken == 0
				return
			}
			p.got = append(p.got, b[:n]...)
		}
		p.begun = !complete
		if complete {
			p.count()
		}
		b = b[n:]
	}
}

func (p *part) count() {
	if p.at >= p.offset {
		p.taken++
		p.from = len(p.got)
	}
	p.at++
}

// end counts a last line that has no line feed.
func (p *part) end(op string) error {
	if p.long {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("line %d is longer than %d bytes; read bytes", p.offset+1, maxText))
	}
	if p.lines && p.begun && !p.more {
		p.begun = false
		p.count()
	}
	return nil
}
