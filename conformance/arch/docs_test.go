package arch

import (
	"bytes"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestExportedComments wants a comment on every exported name that begins with
// the name. Constants and variables may share the comment of their group.
func TestExportedComments(t *testing.T) {
	for _, f := range tree(t) {
		if f.test || f.ast.Name.Name == "main" {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) && !names1(d.Doc, d.Name.Name) {
					t.Errorf("%s: comment of %s does not begin with its name", f.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				exportedSpecs(t, f, d)
			}
		}
	}
}

func exportedSpecs(t *testing.T, f *file, d *ast.GenDecl) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			doc := s.Doc
			if doc == nil && len(d.Specs) == 1 {
				doc = d.Doc
			}
			if s.Name.IsExported() && !names1(doc, s.Name.Name) {
				t.Errorf("%s: comment of %s does not begin with its name", f.at(s), s.Name.Name)
			}
		case *ast.ValueSpec:
			if !s.Names[0].IsExported() || s.Comment != nil || s.Doc != nil {
				continue
			}
			if d.Doc == nil || len(d.Specs) == 1 && !names1(d.Doc, s.Names[0].Name) {
				t.Errorf("%s: %s has no comment that begins with its name", f.at(s), s.Names[0].Name)
			}
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	if x, ok := e.(*ast.IndexExpr); ok {
		e = x.X
	}
	x, _ := e.(*ast.Ident)
	if x == nil {
		return ""
	}
	return x.Name
}

// names1 reports whether the comment's first word, after an article, is name.
func names1(doc *ast.CommentGroup, name string) bool {
	if doc == nil {
		return false
	}
	s := doc.Text()
	for _, a := range []string{"A ", "An ", "The "} {
		s = strings.TrimPrefix(s, a)
	}
	w, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	w = strings.TrimRight(strings.Fields(w + " x")[0], ",:.;")
	return w == name
}

// pattern is a regular expression whose every match holds one of some words. To look
// for words first costs next to nothing, and an expression over the whole tree half
// a minute under the race detector.
type pattern struct {
	*regexp.Regexp
	words []string
}

func (p pattern) in(b []byte) bool {
	return slices.ContainsFunc(p.words, func(w string) bool { return bytes.Contains(b, []byte(w)) })
}

func (p pattern) find(b []byte) []byte {
	if !p.in(b) {
		return nil
	}
	return p.Find(b)
}

var (
	todo = pattern{regexp.MustCompile(`(//|#)\s*(TODO|FIXME|XXX)\b`), []string{"TODO", "FIXME", "XXX"}}
	good = regexp.MustCompile(`\bTODO\(#\d+\)`)
)

// TestTodos wants an issue for everything put off.
func TestTodos(t *testing.T) {
	for _, f := range tree(t) {
		if f.dir == "conformance/arch" {
			continue
		}
		for i, line := range bytes.Split(f.src, []byte("\n")) {
			if todo.find(line) != nil && !good.Match(line) {
				t.Errorf("%s:%d: TODO without an issue", f.path, i+1)
			}
		}
	}
}

// machine matches what only makes sense on the machine where it was written:
// its folders, and the registries it fetched from.
var machine = pattern{regexp.MustCompile(`/work/(main|shared)|/tmp/palyra/|/home/[a-z]+/|/Users/[a-z]+/|` +
	`registry\.npmjs\.org|proxy\.golang\.org|sum\.golang\.org|(deb|ftp\.[a-z]+)\.debian\.org`), []string{"/work/", "/tmp/", "/home/", "/Users/", "registry.", "proxy.", "sum.", ".debian."}}

// fictional matches the homes of people in examples.
var fictional = regexp.MustCompile(`^/home/(alice|bob|carol|mallory|user)/$`)

// secret matches private keys and the usual tokens.
var secret = pattern{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{40}|\b(ghp|gho)_[A-Za-z0-9]{36}\b|\bAKIA[0-9A-Z]{16}\b|PRIVATE\+KEY\+[a-z0-9.-]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{20}`),
	[]string{"PRIVATE", "ghp_", "gho_", "AKIA"}}

// TestPatterns shows each of them something to find.
func TestPatterns(t *testing.T) {
	b64 := strings.Repeat("Ab1+", 12)
	for _, c := range []struct {
		p    pattern
		text []string
	}{
		{todo, []string{"// TODO: x", "# FIXME", "//XXX y"}},
		{machine, []string{"/work/main", "/work/shared", "/tmp/palyra/", "/home/zoe/", "/Users/zoe/", "registry.npmjs.org",
			"proxy.golang.org", "sum.golang.org", "deb.debian.org", "ftp.de.debian.org"}},
		{secret, []string{"-----BEGIN EC PRIVATE KEY-----\n" + b64, "ghp_" + strings.Repeat("a", 36), "gho_" + strings.Repeat("0", 36),
			"AKIA" + strings.Repeat("Z", 16), "PRIVATE+KEY+log.example+0123abcd+" + b64}},
	} {
		for _, text := range c.text {
			if c.p.find([]byte("x "+text+" y")) == nil {
				t.Errorf("%.20s is not found by %.30s", text, c.p)
			}
		}
		if m := c.p.find([]byte("nothing of the kind")); m != nil {
			t.Errorf("%.30s finds %q", c.p, m)
		}
	}
}

// TestTrackedText looks in every text file for machine paths, registry hosts,
// private keys and stray bytes.
func TestTrackedText(t *testing.T) {
	for _, p := range names(t) {
		if path.Dir(p) == "conformance/arch" {
			continue // names what it looks for
		}
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 1<<20 {
			t.Errorf("%s: %d bytes; nothing that large belongs in the repository", p, len(b))
		}
		if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
			continue // vectors may be binary
		}
		for i, line := range bytes.Split(b, []byte("\n")) {
			if m := machine.find(line); m != nil && !fictional.Match(m) {
				t.Errorf("%s:%d: names a machine or a registry: %s", p, i+1, m)
			}
			if bytes.HasSuffix(line, []byte("\r")) && path.Ext(p) == ".go" {
				t.Errorf("%s:%d: carriage return", p, i+1)
			}
		}
		if m := secret.find(b); m != nil {
			t.Errorf("%s: looks like a private key or token", p)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$|<a id="([^"]+)">`)
	blocks  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// anchors are the fragments that a page has, as GitHub makes them of headings.
func anchors(page []byte) map[string]bool {
	have := make(map[string]bool)
	for _, m := range heading.FindAllSubmatch(blocks.ReplaceAll(page, nil), -1) {
		id := string(m[2])
		for _, r := range strings.ToLower(string(m[1])) {
			switch {
			case r == ' ':
				id += "-"
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				id += string(r)
			}
		}
		have[id] = true
	}
	return have
}

// TestDocLinks follows the relative links of the documents, to the heading.
func TestDocLinks(t *testing.T) {
	for _, p := range names(t) {
		if path.Ext(p) != ".md" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(blocks.ReplaceAll(b, nil), -1) {
			to, fragment, target := string(m[1]), string(m[2]), p
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") || to == "" && fragment == "" {
				continue
			}
			if to != "" {
				target = path.Join(path.Dir(p), to)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s leads nowhere", p, to)
				continue
			}
			if fragment == "" {
				continue
			}
			page, err := os.ReadFile(filepath.Join(root, target))
			if err != nil || !anchors(page)[fragment] {
				t.Errorf("%s: %s has no heading #%s", p, target, fragment)
			}
		}
	}
}

// TestPageSizes keeps the pages that are read first short.
func TestPageSizes(t *testing.T) {
	for name, most := range map[string]struct{ bytes, lines int }{
		"docs/ARCHITECTURE.md":  {12 << 10, 200},
		"conformance/README.md": {8 << 10, 100},
	} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); len(b) > most.bytes || n > most.lines {
			t.Errorf("%s has %d bytes in %d lines, at most %d in %d are wanted", name, len(b), n, most.bytes, most.lines)
		}
	}
}

// TestProseWidth keeps paragraphs that people write at 100 columns. A word may be longer.
func TestProseWidth(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```.*?^```$|^ *<!-- generated.*?^ *<!-- end -->$|^\\|[^\n]*$")
	printed := []string{"bench/README.md", "conformance/CASES.md", "docs/CONFORMANCE.md", "docs/formats/config.md"}
	for _, p := range names(t) {
		if path.Ext(p) != ".md" || slices.Contains(printed, p) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(blocks.ReplaceAllLiteralString(string(b), "")) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > 100 && strings.Contains(line[:100], " ") && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "<!--") {
				t.Errorf("%s: a line of %d columns: %s", p, n, line)
			}
		}
	}
}

var (
	testName = regexp.MustCompile(`\b(Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9]+\b`)
	testFunc = regexp.MustCompile(`(?m)^func ((Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9]+)\(`)
)

// TestDocTests wants every test that a document names to be there.
func TestDocTests(t *testing.T) {
	have := make(map[string]bool)
	read := func(p string) []byte {
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, p := range names(t) {
		if strings.HasSuffix(p, "_test.go") {
			for _, m := range testFunc.FindAllSubmatch(read(p), -1) {
				have[string(m[1])] = true
			}
		}
	}
	for _, p := range names(t) {
		if path.Ext(p) != ".md" || p == "conformance/OTHERS.md" { // names tests of other projects
			continue
		}
		for _, m := range testName.FindAll(read(p), -1) {
			if n := string(m); !have[n] {
				t.Errorf("%s names %s, which is no test", p, n)
			}
		}
	}
}
