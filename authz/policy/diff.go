package policy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/fault"
	"palyra/internal/patch"
)

type edit struct {
	at   int // offset
	text string
}

const diffContext = 3

// insertions returns the unified diff that inserts edits into a file. No two edits are in one
// line.
func insertions(name string, data []byte, edits []edit) string {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	starts := make([]int, len(lines))
	for i, at := 0, 0; i < len(lines); i++ {
		starts[i] = at
		at += len(lines[i])
	}
	changed := make(map[int]string) // line → its new text
	var where []int
	for _, e := range edits {
		i, found := slices.BinarySearch(starts, e.at)
		if !found {
			i--
		}
		old, ok := changed[i]
		if !ok {
			old = string(lines[i])
			where = append(where, i)
		}
		cut := e.at - starts[i] + len(old) - len(lines[i]) // after earlier insertions
		changed[i] = old[:cut] + e.text + old[cut:]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n", name, name)
	grown := 0
	for len(where) > 0 {
		n := 1
		for n < len(where) && where[n]-where[n-1] <= 2*diffContext {
			n++
		}
		from, to := max(0, where[0]-diffContext), min(len(lines), where[n-1]+diffContext+1)
		var hunk strings.Builder
		size := 0
		for i := from; i < to; i++ {
			was := string(lines[i])
			now, ok := changed[i]
			if !ok {
				hunk.WriteString(prefixed(" ", was))
				size++
				continue
			}
			hunk.WriteString(prefixed("-", was))
			hunk.WriteString(prefixed("+", now))
			size += len(strings.SplitAfter(strings.TrimSuffix(now, "\n"), "\n"))
		}
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", from+1, to-from, from+1+grown, size)
		b.WriteString(hunk.String())
		grown += size - (to - from)
		where = where[n:]
	}
	return b.String()
}

func prefixed(op, text string) string {
	var b strings.Builder
	for _, l := range strings.SplitAfter(text, "\n") {
		if l == "" {
			continue
		}
		b.WriteString(op + l)
		if !strings.HasSuffix(l, "\n") {
			b.WriteString("\n\\ No newline at end of file\n")
		}
	}
	return b.String()
}

func newFile(name, text string) string {
	return fmt.Sprintf("--- /dev/null\n+++ b/%s\n@@ -0,0 +1,%d @@\n%s", name, strings.Count(text, "\n"), prefixed("+", text))
}

// endOfPolicy returns the offset of the semicolon that ends the policy at from, -1 if there is
// none. It skips strings and comments as Cedar's scanner does.
func endOfPolicy(text []byte, from int) int {
	for i := from; i < len(text); i++ {
		switch text[i] {
		case ';':
			return i
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '/':
			if i+1 < len(text) && text[i+1] == '/' {
				for i+1 < len(text) && text[i+1] != '\n' {
					i++
				}
			}
		}
	}
	return -1
}

// Patch returns the set that a unified diff makes of s, checked as Load checks a directory. The
// diff must apply exactly; it may add, change, rename and delete policy files and policy tests.
// Errors of the diff are of kind Usage or Busy, those of the result are Load's.
func (s *Set) Patch(diff []byte) (*Set, error) { return s.PatchContext(context.Background(), diff) }

// PatchContext is Patch. A done ctx ends it, as it ends LoadFSContext.
func (s *Set) PatchContext(ctx context.Context, diff []byte) (*Set, error) {
	files, err := s.directory().patched(diff)
	if err != nil {
		return nil, err
	}
	next, err := check(ctx, files)
	if err != nil || s.base == nil {
		return next, err
	}
	return next.WithFloor()
}

func (s *Set) patched(diff []byte) ([]file, error) {
	parsed, err := patch.Parse(diff)
	if err != nil {
		return nil, err
	}
	files := slices.Concat(s.texts, s.cases)
	find := func(name string) int { return slices.IndexFunc(files, func(f file) bool { return f.name == name }) }
	for i := range parsed {
		p := &parsed[i]
		op := fmt.Sprintf("change policy file %q", p.Path())
		var old []byte
		at := -1
		if p.Op != patch.Create {
			if at = find(p.Old); at < 0 {
				return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the set has no such file"))
			}
			old = files[at].data
		}
		if (p.Op == patch.Create || p.Op == patch.Rename) && find(p.New) >= 0 {
			return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the set has that file"))
		}
		data, _, err := p.Apply(old, 0)
		if err != nil {
			return nil, err
		}
		if at >= 0 {
			files = slices.Delete(files, at, at+1)
		}
		if p.Op == patch.Delete {
			continue
		}
		f := file{name: p.New, data: data}
		var ignore bool
		if f.kind, ignore, err = kindOf(f.name); err == nil && (ignore || strings.Contains(f.name, "/")) {
			err = errors.New("a policy directory has policies and policy tests, and no folders")
		}
		if err != nil {
			return nil, fault.New(fault.Usage, "policy_invalid", op, err).WithHint(hintName)
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return files, nil
}

// Files returns the policy files and policy tests of the set, by name. The caller must not
// change the content.
func (s *Set) Files() map[string][]byte {
	m := make(map[string][]byte)
	s = s.directory()
	for _, f := range slices.Concat(s.texts, s.cases) {
		m[f.name] = f.data
	}
	return m
}
