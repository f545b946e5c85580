package digests

import (
	"context"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"palyra/kernel/internal/pin"
)

const (
	maxCopies = 3       // of those used last
	copySize  = 8 << 20 // of each, in bytes, at most: palyra-tool has 4 MB
)

// program is a program that was sealed.
type program struct {
	key    key
	copy   *pin.Sealed // nil at first: a process that ends after one call needs none
	hashed time.Time
}

// Seal is pin.Seal of an open program, which is as st says and which others than root may
// change. From its second call on a copy of a small one is kept, if a change of the file
// would show as it must for a digest, and calls get a copy of that copy as long as the file
// has not changed. They never get the kept file itself, in whose mode and times programs
// could leave marks for each other.
func (c *Cache) Seal(ctx context.Context, name string, f *os.File, st pin.Stat, perm fs.FileMode) (*pin.Sealed, Digest, error) {
	keep := c != nil && st.Size <= copySize && pin.KeepsTimes(f)
	k := keyOf(st)
	if keep {
		switch p, seen := c.seen(k); {
		case p.copy != nil:
			if s, err := p.copy.Copy(name, perm); err == nil {
				return s, Digest{Sum: s.Digest, Size: s.Size, Cached: true, Hashed: p.hashed}, nil
			}
		case !seen:
			keep = false
		}
		keep = keep && c.oldEnough(f, st, false)
	}
	now := time.Now()
	s, err := pin.Seal(ctx, name, io.NewSectionReader(f, 0, 1<<62), st.Size, perm)
	if err != nil {
		return nil, Digest{}, err
	}
	if keep && pin.Changed(f, st) == nil {
		if own, err := s.Copy(name, perm); err == nil {
			c.keep(program{k, own, now})
		}
	}
	return s, Digest{Sum: s.Digest, Size: s.Size, Hashed: now}, nil
}

// seen returns what is known of a program, and notes that there is one.
func (c *Cache) seen(k key) (p program, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.programs, func(p program) bool { return p.key == k })
	if i < 0 {
		c.addLocked(program{key: k})
		return p, false
	}
	p = c.programs[i]
	c.programs = append(slices.Delete(c.programs, i, i+1), p)
	return p, true
}

func (c *Cache) keep(p program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs = slices.DeleteFunc(c.programs, func(o program) bool { return o.key == p.key })
	c.addLocked(p)
}

// addLocked adds one and lets the one go that was used longest ago. Its file is closed when
// nothing refers to it any more: a call may be copying it.
func (c *Cache) addLocked(p program) {
	c.programs = append(c.programs, p)
	if len(c.programs) > maxCopies {
		c.programs = slices.Delete(c.programs, 0, 1)
	}
}
