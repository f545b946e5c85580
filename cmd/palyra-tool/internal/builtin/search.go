package builtin

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Bounds of a search beside those of its input.
const (
	maxSearchDepth = 64
	maxEntries     = 1_000_000 // names that are looked at
)

// searcher looks for a pattern.
type searcher struct {
	in      *toolproto.SearchInput
	literal []byte         // the pattern, if it is plain text
	re      *regexp.Regexp // else
	out     *toolproto.SearchResult
	entries int
	bytes   int // of the result
	base    string
}

// search is fs.search.
func search(t *tree.Tree, in *toolproto.SearchInput) (any, error) {
	s := &searcher{in: in, out: &toolproto.SearchResult{Matches: []toolproto.Match{}, Skipped: []toolproto.Reason{}}}
	if in.Regexp || in.IgnoreCase {
		re, err := in.Compile()
		if err != nil {
			return nil, fault.New(fault.Usage, "invalid_input", "compile pattern", err)
		}
		s.re = re
	} else {
		s.literal = []byte(in.Pattern)
	}
	path := name(in.Path)
	dir, base := tree.Split(path)
	if path == "." {
		base = ""
	}
	parent, err := t.Dir(dir)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if base == "" {
		err = s.folder(parent, 1)
		return s.out, err
	}
	st, err := parent.Stat(base)
	if err != nil {
		return nil, err
	}
	if st.Kind != tree.Directory {
		if err := s.file(parent, base, st); err != nil {
			return nil, err // it was named
		}
		return s.out, nil
	}
	s.base = path + "/"
	d, err := parent.Sub(base)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return s.out, s.folder(d, 1)
}

// folder searches a folder and those in it, in the order of their names.
func (s *searcher) folder(d *tree.Dir, depth int) error {
	names, more, err := d.Names(maxNames)
	if err != nil {
		return err
	}
	if more {
		s.stop("entries")
	}
	for _, base := range names {
		if s.out.Stopped != "" && s.out.Stopped != "entries" {
			return nil
		}
		if s.entries++; s.entries > maxEntries {
			s.stop("entries")
			return nil
		}
		below := strings.TrimPrefix(d.Path(base), s.base)
		if !s.in.Hidden && strings.HasPrefix(base, ".") || matchAny(s.in.Exclude, below) {
			continue
		}
		st, err := d.Stat(base)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		switch {
		case err != nil:
		case st.Kind == tree.Directory:
			err = s.sub(d, base, depth)
		case len(s.in.Globs) > 0 && !matchAny(s.in.Globs, below):
		case st.Kind != tree.File:
			s.out.Special++
		default:
			err = s.file(d, base, st)
		}
		if err != nil {
			skip(&s.out.Skipped, err)
		}
	}
	return nil
}

func (s *searcher) sub(d *tree.Dir, base string, depth int) error {
	if depth == maxSearchDepth {
		return fault.New(fault.Refused, "too_large", "open folder", errors.New("too many folders in each other"))
	}
	sub, err := d.Sub(base)
	if err != nil {
		return err
	}
	defer sub.Close()
	return s.folder(sub, depth+1)
}

// stop notes the first limit that the search met.
func (s *searcher) stop(limit string) {
	if s.out.Stopped == "" {
		s.out.Stopped = limit
	}
}

func matchAny(globs []string, path string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return toolproto.MatchGlob(g, path) })
}

// file searches one file, which is read whole.
func (s *searcher) file(d *tree.Dir, base string, st tree.Stat) error {
	if st.Kind == tree.File && st.Size > s.in.MaxFileBytes {
		s.out.Large++
		return nil
	}
	if s.out.Files == s.in.MaxFiles {
		s.stop("max_files")
		return nil
	}
	f, _, err := d.Open(base)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, s.in.MaxFileBytes+1))
	f.Close()
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", "read file", err)
	}
	if int64(len(b)) > s.in.MaxFileBytes {
		s.out.Large++
		return nil
	}
	if s.out.Bytes+int64(len(b)) > s.in.MaxBytes {
		s.stop("max_bytes")
		return nil
	}
	s.out.Files++
	s.out.Bytes += int64(len(b))
	if bytes.IndexByte(b, 0) >= 0 {
		s.out.Binary++
		return nil
	}
	if s.literal != nil && !bytes.Contains(b, s.literal) {
		return nil
	}
	s.lines(tree.Show(d.Path(base)), b)
	return nil
}

// lines looks at each line of a file.
func (s *searcher) lines(path string, b []byte) {
	all := bytes.Split(b, []byte("\n"))
	if n := len(all); len(all[n-1]) == 0 {
		all = all[:n-1] // nothing follows the last line feed
	}
	for i, l := range all {
		at, end := s.find(l)
		if at < 0 {
			continue
		}
		m := toolproto.Match{Path: path, Line: int64(i + 1), Column: int64(at + 1)}
		m.Text, m.Cut = cut(l, at, end)
		n := int(s.in.Context)
		for _, c := range all[max(0, i-n):i] {
			m.Before = append(m.Before, first(c))
		}
		for _, c := range all[i+1 : min(len(all), i+1+n)] {
			m.After = append(m.After, first(c))
		}
		for _, t := range slices.Concat(m.Before, m.After, []string{m.Path, m.Text}) {
			s.bytes += len(t)
		}
		switch {
		case int64(len(s.out.Matches)) == s.in.MaxMatches:
			s.stop("max_matches")
			return
		case s.bytes > maxOutput:
			s.stop("output")
			return
		}
		s.out.Matches = append(s.out.Matches, m)
	}
}

func (s *searcher) find(line []byte) (at, end int) {
	if s.literal != nil {
		at = bytes.Index(line, s.literal)
		return at, at + len(s.literal)
	}
	if loc := s.re.FindIndex(line); loc != nil {
		return loc[0], loc[1]
	}
	return -1, -1
}

// cut returns a line, or as much of it around the match as a result holds.
func cut(l []byte, at, end int) (string, bool) {
	const most = toolproto.MaxLine
	from, to := 0, len(l)
	if len(l) > most {
		from = max(0, min(at-(most-min(end-at, most))/2, len(l)-most))
		to = from + most
	}
	return strings.ToValidUTF8(string(l[from:to]), "\uFFFD"), from > 0 || to < len(l)
}

// first returns the beginning of a line.
func first(l []byte) string {
	s, _ := cut(l, 0, 0)
	return s
}
