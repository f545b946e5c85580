package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// apply applies a patch to files in memory, as a caller does.
func apply(files []File, tree map[string]string, offset int) (map[string]string, error) {
	out := maps.Clone(tree)
	for i := range files {
		f := &files[i]
		old, there := tree[f.Old]
		if _, taken := tree[f.New]; f.Old != "" && !there || f.New != f.Old && taken {
			return nil, fmt.Errorf("%q: not there, or taken", f.Path())
		}
		b, _, err := f.Apply([]byte(old), offset)
		if err != nil {
			return nil, err
		}
		delete(out, f.Old)
		if f.New != "" {
			out[f.New] = string(b)
		}
	}
	return out, nil
}

// TestGit applies what git itself printed.
func TestGit(t *testing.T) {
	b, err := os.ReadFile("testdata/git.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Patch         string
		Before, After map[string]string
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	files, err := Parse([]byte(v.Patch))
	if err != nil {
		t.Fatal(err)
	}
	got, err := apply(files, v.Before, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, v.After) {
		t.Errorf("got %q\nwant %q", got, v.After)
	}
	ops := make(map[Op]int)
	for _, f := range files {
		ops[f.Op]++
		if f.Path() == "mode.sh" && (f.Mode != "0755" || f.OldMode != "0644") {
			t.Errorf("%+v", f)
		}
	}
	if want := map[Op]int{Modify: 7, Create: 1, Delete: 1, Rename: 3}; !maps.Equal(ops, want) {
		t.Errorf("got %v, want %v", ops, want)
	}
}

func TestParse(t *testing.T) {
	const hunk = "@@ -1 +1 @@\n-a\n+b\n"
	for _, c := range []struct{ name, in, reason, path string }{
		{"plain", "--- x\n+++ x\n" + hunk, "", "x"},
		{"prefixes", "--- a/x\n+++ b/x\n" + hunk, "", "x"},
		{"a folder called a", "--- a/x\n+++ a/x\n" + hunk, "", "a/x"},
		{"times", "--- x\t2026-01-01 00:00:00\n+++ x\t2026-01-02\n" + hunk, "", "x"},
		{"quoted", "--- \"a/\\303\\274 \\\"\\\\\"\n+++ \"b/\\303\\274 \\\"\\\\\"\n" + hunk, "", "ü \"\\"},
		{"created", "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", "", "x"},
		{"created without prefix", "--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+b\n", "", "x"},
		{"deleted", "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "", "x"},
		{"section", "--- x\n+++ x\n@@ -1 +1 @@ func main() {\n-a\n+b\n", "", "x"},
		{"carriage returns in content", "--- x\n+++ x\n@@ -1 +1 @@\n-a\r\n+b\r\n", "", "x"},
		{"mode only", "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "", "x"},
		{"created empty", "diff --git a/x b/x\nnew file mode 100644\nindex 0000000..e69de29\n", "", "x"},
		{"spaces in names", "diff --git a/x y b/x y\nindex 1234567..89abcde 100644\n--- a/x y\t\n+++ b/x y\t\n" + hunk, "", "x y"},

		{"nothing", "", "invalid_input", ""},
		{"blank line", "\n", "invalid_input", ""},
		{"text before", "Subject: x\n--- x\n+++ x\n" + hunk, "invalid_input", ""},
		{"text behind", "--- x\n+++ x\n" + hunk + "-- \n2.39\n", "invalid_input", ""},
		{"blank line behind", "--- x\n+++ x\n" + hunk + "\n", "invalid_input", ""},
		{"fence", "```diff\n--- x\n+++ x\n" + hunk + "```\n", "invalid_input", ""},
		{"no second name", "--- x\n" + hunk, "invalid_input", ""},
		{"no hunk", "--- x\n+++ x\n", "invalid_input", ""},
		{"both null", "--- /dev/null\n+++ /dev/null\n" + hunk, "invalid_input", ""},
		{"carriage returns in headers", "--- x\r\n+++ x\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n", "invalid_input", ""},
		{"no header of a hunk", "--- x\n+++ x\n@@ @@\n-a\n+b\n", "invalid_input", ""},
		{"counts nothing", "--- x\n+++ x\n@@ -1,0 +1,0 @@\n", "invalid_input", ""},
		{"line 0", "--- x\n+++ x\n@@ -0 +1 @@\n-a\n+b\n", "invalid_input", ""},
		{"leading zero", "--- x\n+++ x\n@@ -01 +1 @@\n-a\n+b\n", "invalid_input", ""},
		{"negative", "--- x\n+++ x\n@@ --1 +1 @@\n-a\n+b\n", "invalid_input", ""},
		{"too few lines", "--- x\n+++ x\n@@ -1,2 +1,2 @@\n-a\n+b\n", "invalid_input", ""},
		{"too many lines", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n-a\n+b\n", "invalid_input", ""},
		{"announces more than there is", "--- x\n+++ x\n@@ -1,2000000000 +1 @@\n-a\n+b\n", "invalid_input", ""},
		{"changes nothing", "--- x\n+++ x\n@@ -1 +1 @@\n a\n", "invalid_input", ""},
		{"context without its space", "--- x\n+++ x\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "invalid_input", ""},
		{"ends in a line", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b", "invalid_input", ""},
		{"lines behind the last", "--- x\n+++ x\n@@ -1,2 +1 @@\n-a\n\\ No newline at end of file\n-b\n+c\n", "invalid_input", ""},
		{"hunks out of order", "--- x\n+++ x\n@@ -5 +5 @@\n-a\n+b\n" + hunk, "invalid_input", ""},
		{"hunks overlap", "--- x\n+++ x\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n@@ -2 +2 @@\n-c\n+d\n", "invalid_input", ""},
		{"created with context", "--- /dev/null\n+++ x\n@@ -1 +1,2 @@\n a\n+b\n", "invalid_input", ""},
		{"deleted with a rest", "--- x\n+++ /dev/null\n@@ -1,2 +1 @@\n-a\n b\n", "invalid_input", ""},
		{"one mode", "diff --git a/x b/x\nnew mode 100755\n", "invalid_input", ""},
		{"created and deleted", "diff --git a/x b/x\nnew file mode 100644\ndeleted file mode 100644\n", "invalid_input", ""},
		{"said twice", "diff --git a/x b/x\nnew file mode 100644\nnew file mode 100755\n", "invalid_input", ""},
		{"half a rename", "diff --git a/x b/y\nrename from x\n", "invalid_input", ""},
		{"rename of others", "diff --git a/x b/y\nrename from x\nrename to z\n", "invalid_input", ""},
		{"names that git did not announce", "diff --git a/x b/x\n--- a/x\n+++ b/y\n" + hunk, "invalid_input", ""},
		{"null that git did not announce", "diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", "invalid_input", ""},
		{"names without prefixes", "diff --git x x\n--- x\n+++ x\n" + hunk, "invalid_input", ""},
		{"bad quote", "--- \"a/x\n+++ \"b/x\n" + hunk, "invalid_input", ""},
		{"bad escape", "--- \"a/\\8\"\n+++ b/x\n" + hunk, "invalid_input", ""},

		{"link", "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n", "invalid_input: only regular files", ""},
		{"setuid", "diff --git a/x b/x\nold mode 100644\nnew mode 104755\n", "invalid_input: only regular files", ""},
		{"binary", "diff --git a/x b/x\nindex 1234567..89abcde 100644\nGIT binary patch\nliteral 0\n", "invalid_input: not something that can be applied", ""},
		{"copy", "diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "invalid_input: not something that can be applied", ""},

		{"up", "--- a/../x\n+++ b/../x\n" + hunk, "invalid_input: not a plain path below the workspace", ""},
		{"absolute", "--- /etc/x\n+++ /etc/x\n" + hunk, "invalid_input: not a plain path below the workspace", ""},
		{"slash behind the prefix", "--- a//etc/x\n+++ b//etc/x\n" + hunk, "invalid_input: not a plain path below the workspace", ""},
		{"dot", "--- .\n+++ .\n" + hunk, "invalid_input: not a plain path below the workspace", ""},
		{"NUL", "--- \"a/x\\000\"\n+++ \"b/x\\000\"\n" + hunk, "invalid_input: not a plain path below the workspace", ""},
		{"two names", "--- x\n+++ y\n" + hunk, "invalid_input: of different files", ""},
		{"twice", "--- x\n+++ x\n" + hunk + "--- x\n+++ x\n" + hunk, "invalid_input: names it twice", ""},
		{"mixed prefixes", "--- x\n+++ x\n" + hunk + "--- a/y\n+++ b/y\n" + hunk, "invalid_input: others do not", ""},
		{"created without the prefix of the others", "--- a/y\n+++ b/y\n" + hunk + "--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+b\n", "invalid_input: lacks the prefix", ""},
		{"file and folder", "--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+b\n--- /dev/null\n+++ x/y\n@@ -0,0 +1 @@\n+b\n", "invalid_input: stands in its way", ""},
		{"folder and file", "--- /dev/null\n+++ x/y/z\n@@ -0,0 +1 @@\n+b\n--- x\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n", "invalid_input: stands in its way", ""},

		{"many files", strings.Repeat("--- x\n+++ x\n"+hunk, MaxFiles+1), "too_large", ""},
	} {
		files, err := Parse([]byte(c.in))
		reason, text, _ := strings.Cut(c.reason, ": ") // of one reason there are several
		if fault.ReasonOf(err) != reason || (err == nil) != (reason == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v (%s), want %q", c.name, err, fault.ReasonOf(err), c.reason)
			continue
		}
		if err == nil && files[0].Path() != c.path {
			t.Errorf("%s: names %q, want %q", c.name, files[0].Path(), c.path)
		}
		if err != nil && fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: kind %v", c.name, fault.KindOf(err))
		}
	}
}

func TestApply(t *testing.T) {
	const abc = "--- x\n+++ x\n@@ -2,3 +2,3 @@\n a\n-b\n+B\n c\n"
	for _, c := range []struct {
		name, patch, old string
		offset           int
		want, reason     string
	}{
		{"there", abc, "0\na\nb\nc\n", 0, "0\na\nB\nc\n", ""},
		{"elsewhere", abc, "a\nb\nc\n", 0, "", "changed"},
		{"up", abc, "a\nb\nc\n", 1, "a\nB\nc\n", ""},
		{"down", abc, "0\n0\n0\na\nb\nc\n", 2, "0\n0\n0\na\nB\nc\n", ""},
		{"too far", abc, "0\n0\n0\na\nb\nc\n", 1, "", "changed"},
		{"two places", abc, "0\na\nb\nc\na\nb\nc\n", 3, "", "changed: its lines stand at line 2 and at line 5"},
		{"two places, one of them too far", abc, "0\na\nb\nc\na\nb\nc\n", 2, "0\na\nB\nc\na\nb\nc\n", ""},
		{"two places, and the numbers say which", abc, "0\na\nb\nc\na\nb\nc\n", 0, "0\na\nB\nc\na\nb\nc\n", ""},
		{"white space counts", abc, "0\na\nb \nc\n", 100, "", "changed"},
		{"carriage returns count", abc, "0\r\na\r\nb\r\nc\r\n", 100, "", "changed"},
		{"short file", abc, "0\na\n", 0, "", "changed"},
		{"empty file", abc, "", 10, "", "changed"},
		{"line feed missing in the file", abc, "0\na\nb\nc", 0, "", "changed"},
		{"line feed missing in the patch", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", "a\n", 0, "", "changed"},
		{"line feed added", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n", "a", 0, "a\n", ""},
		{"line feed taken away", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n", "a\n", 0, "a", ""},
		{"line feed taken away in the middle", "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n", "a\nb\n", 0, "", "changed"},
		{"no context, inserts behind", "--- x\n+++ x\n@@ -1,0 +2 @@\n+b\n", "a\nc\n", 0, "a\nb\nc\n", ""},
		{"no context, inserts before", "--- x\n+++ x\n@@ -0,0 +1 @@\n+b\n", "a\n", 0, "b\na\n", ""},
		{"no context never moves", "--- x\n+++ x\n@@ -9,0 +10 @@\n+b\n", "a\n", 100, "", "changed"},
		{"no context, removes", "--- x\n+++ x\n@@ -2 +1,0 @@\n-b\n", "a\nb\nc\n", 0, "a\nc\n", ""},
		{"numbers of the other side", "--- x\n+++ x\n@@ -2,3 +9,3 @@\n a\n-b\n+B\n c\n", "0\na\nb\nc\n", 0, "", "changed"},
		{"numbers of the other side, with offset", "--- x\n+++ x\n@@ -2,3 +9,3 @@\n a\n-b\n+B\n c\n", "0\na\nb\nc\n", 1, "0\na\nB\nc\n", ""},
		{"deleted", "--- x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "a\n", 0, "", ""},
		{"deleted, and there is more", "--- x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "a\nb\n", 0, "", "changed: holds more than"},
		{"created, and there is something", "--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+a\n", "b\n", 0, "", "changed"},
	} {
		files, err := Parse([]byte(c.patch))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		old := []byte(c.old)
		got, _, err := files[0].Apply(old, c.offset)
		reason, text, _ := strings.Cut(c.reason, ": ")
		if fault.ReasonOf(err) != reason || string(got) != c.want || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %q, %v; want %q, %s", c.name, got, err, c.want, c.reason)
		}
		if string(old) != c.old {
			t.Errorf("%s: the old content was changed", c.name)
		}
	}
}

// diff prints how a becomes b, as diff -u does with so many lines of context. It
// is simple and slow: the longest common subsequence by table.
func diff(name, a, b string, context int) string {
	x, y := split([]byte(a)), split([]byte(b))
	lcs := make([][]int, len(x)+1)
	for i := range lcs {
		lcs[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if bytes.Equal(x[i], y[j]) {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}
	type line struct {
		op   byte
		text []byte
		i, j int // lines of a and b before this one
	}
	var script []line
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && bytes.Equal(x[i], y[j]):
			script = append(script, line{' ', x[i], i, j})
			i, j = i+1, j+1
		case i < len(x) && (j == len(y) || lcs[i+1][j] >= lcs[i][j+1]):
			script = append(script, line{'-', x[i], i, j})
			i++
		default:
			script = append(script, line{'+', y[j], i, j})
			j++
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- a/%s\n+++ b/%s\n", name, name)
	for k := 0; k < len(script); {
		if script[k].op == ' ' {
			k++
			continue
		}
		from, to, quiet := max(0, k-context), k, 0
		for to < len(script) && quiet <= 2*context {
			if quiet++; script[to].op != ' ' {
				quiet = 0
			}
			to++
		}
		to -= max(0, quiet-context)
		h := script[from:to]
		n, m := 0, 0
		for _, l := range h {
			if l.op != '+' {
				n++
			}
			if l.op != '-' {
				m++
			}
		}
		start := func(at, count int) int {
			if count == 0 {
				return at
			}
			return at + 1
		}
		fmt.Fprintf(&out, "@@ -%d,%d +%d,%d @@\n", start(h[0].i, n), n, start(h[0].j, m), m)
		for _, l := range h {
			out.WriteByte(l.op)
			out.Write(l.text)
			if !bytes.HasSuffix(l.text, []byte("\n")) {
				out.WriteString("\n\\ No newline at end of file\n")
			}
		}
		k = to
	}
	return out.String()
}

// roundTrip wants the patch from a to b to make b of a, and a of nothing else
// than b when it is turned around.
func roundTrip(t *testing.T, a, b string, context int) {
	t.Helper()
	if a == b {
		return
	}
	text := diff("x", a, b, context)
	files, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	got, offsets, err := files[0].Apply([]byte(a), 0)
	if err != nil || string(got) != b {
		t.Fatalf("%q to %q with %d lines of context: got %q, %v from\n%s", a, b, context, got, err, text)
	}
	if slices.ContainsFunc(offsets, func(n int64) bool { return n != 0 }) {
		t.Fatalf("offsets %v", offsets)
	}
	// If it applies with an offset, it does the same.
	if got, _, err := files[0].Apply([]byte(a), 3); err == nil && string(got) != b {
		t.Fatalf("with an offset: %q", got)
	}
}

func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range r.IntN(30) {
			b.WriteByte("abcd"[r.IntN(4)])
			b.WriteByte('\n')
		}
		if r.IntN(3) == 0 {
			b.WriteString("last")
		}
		return b.String()
	}
	for range 3000 {
		roundTrip(t, text(), text(), r.IntN(4))
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nc\n", 3)
	f.Add("", "x", 0)
	f.Add("a\r\n\n\n", "\n\na", 1)
	f.Fuzz(func(t *testing.T, a, b string, context int) {
		if len(a)+len(b) > 1<<12 {
			return
		}
		roundTrip(t, a, b, min(max(context, 0), 10))
	})
}

// FuzzParse: what is read has only paths below the workspace, each once, and
// what it makes of a file is what its lines say.
func FuzzParse(f *testing.F) {
	b, err := os.ReadFile("testdata/git.json")
	if err != nil {
		f.Fatal(err)
	}
	var v struct{ Patch string }
	if err := json.Unmarshal(b, &v); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(v.Patch), []byte("a\nb\n"), 0)
	f.Add([]byte("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"), []byte("a\n"), 5)
	f.Add([]byte("--- /dev/null\n+++ \"b/\\303\\274\"\n@@ -0,0 +1 @@\n+b\n"), []byte(""), 0)
	f.Add([]byte("--- x\n+++ x\n@@ -1,0 +2 @@\n+b\n@@ -3 +4,0 @@\n-c\n"), []byte("a\n\nc\n"), 1)
	f.Fuzz(func(t *testing.T, patch, old []byte, offset int) {
		files, err := Parse(patch)
		if err != nil {
			if fault.KindOf(err) != fault.Usage || !strings.HasPrefix(fault.ReasonOf(err), "patch_") {
				t.Fatalf("%v", err)
			}
			return
		}
		seen := make(map[string]bool)
		for i := range files {
			file := &files[i]
			for _, name := range distinct(file.Old, file.New) {
				if name == "" || name[0] == '/' || seen[name] || slices.Contains(strings.Split(name, "/"), "..") {
					t.Fatalf("names %q", name)
				}
				seen[name] = true
			}
			was := string(old)
			got, offsets, err := file.Apply(old, min(max(offset, 0), 1000))
			if string(old) != was {
				t.Fatal("the old content was changed")
			}
			if err != nil {
				continue
			}
			if len(offsets) != len(file.Hunks) {
				t.Fatalf("%d offsets, %d hunks", len(offsets), len(file.Hunks))
			}
			want := len(old)
			for _, h := range file.Hunks {
				for _, l := range h.Lines {
					switch l.Op {
					case '+':
						want += len(l.Text)
					case '-':
						want -= len(l.Text)
					}
				}
			}
			if len(got) != want {
				t.Fatalf("%d bytes, want %d", len(got), want)
			}
		}
		if got, err := Brief(files); err == nil && len(got) < len(files) {
			t.Fatalf("%d arguments for %d files", len(got), len(files))
		}
	})
}

// TestBrief: every file is named, however many stand before it, and each that
// other programs obey has its flag behind it. A patch whose names are more than a
// person can be shown is refused.
func TestBrief(t *testing.T) {
	modify := func(name string) string {
		return fmt.Sprintf("--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-a\n+b\n", name, name)
	}
	var patch strings.Builder
	for i := range 490 {
		patch.WriteString(modify(fmt.Sprintf("junk/%03d", i)))
	}
	patch.WriteString(modify(".git/hooks/pre-push") + modify("prod.yaml"))
	files, err := Parse([]byte(patch.String()))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Brief(files)
	if err != nil || len(got) != 493 || got[0] != "modify=junk/000" || !slices.Equal(got[490:], []string{"modify=.git/hooks/pre-push", "flag=hook", "modify=prod.yaml"}) {
		t.Errorf("%d arguments, %v", len(got), err)
	}

	patch.Reset()
	for i := range 400 {
		patch.WriteString(modify(fmt.Sprintf("%03d%s", i, strings.Repeat("x", 200))))
	}
	patch.WriteString(modify("prod.yaml"))
	if files, err = Parse([]byte(patch.String())); err != nil {
		t.Fatal(err)
	}
	if got, err := Brief(files); fault.ReasonOf(err) != "too_large" || !strings.Contains(fault.HintOf(err), "split") || got != nil {
		t.Errorf("%d arguments, %v", len(got), err)
	}
}

// TestBriefModes: who decides sees which files become executable or cease to be,
// and no two patches that do different things have the same arguments.
func TestBriefModes(t *testing.T) {
	const moved = "similarity index 100%\nrename from "
	for _, c := range []struct {
		patch string
		want  []string
	}{
		{"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", []string{"modify=x", "permissions=0755", "flag=executable"}},
		{"diff --git a/x b/x\nold mode 100755\nnew mode 100644\n", []string{"modify=x", "permissions=0644"}},
		{"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", []string{"modify=x", "permissions=0755", "flag=executable"}},
		{"diff --git a/x b/x\nnew file mode 100755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n", []string{"create=x", "permissions=0755", "flag=executable"}},
		{"diff --git a/x b/x\ndeleted file mode 100755\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", []string{"delete=x"}},
		{"diff --git a/x b/x\nindex 1234567..89abcde 100755\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", []string{"modify=x"}},
		{"diff --git a/a b/b\nold mode 100644\nnew mode 100755\n" + moved + "a\nrename to b\n", []string{"rename=a", "to=b", "permissions=0755", "flag=executable"}},
		{"diff --git a/a -> b b/c\n" + moved + "a -> b\nrename to c\n", []string{"rename=a -> b", "to=c"}},
		{"diff --git a/a b/b -> c\n" + moved + "a\nrename to b -> c\n", []string{"rename=a", "to=b -> c"}},
		{"diff --git a/Makefile b/Makefile\nold mode 100644\nnew mode 100755\n", []string{"modify=Makefile", "permissions=0755", "flag=build"}},
		{"--- a/x permissions=0755\n+++ b/x permissions=0755\n@@ -1 +1 @@\n-a\n+b\n", []string{"modify=x permissions=0755"}},
	} {
		files, err := Parse([]byte(c.patch))
		if err != nil {
			t.Errorf("%q: %v", c.patch, err)
			continue
		}
		if got, err := Brief(files); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v, want %q", c.patch, got, err, c.want)
		}
	}
}

// TestTwoNames: a patch of git's that names two files and announces no rename is
// of one file to whoever decides and of the other to whoever applies it.
func TestTwoNames(t *testing.T) {
	for _, text := range []string{
		"diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
		"diff --git a/x b/y\nold mode 100644\nnew mode 100755\n",
		"diff --git a/x b/y\nnew file mode 100755\n--- /dev/null\n+++ b/y\n@@ -0,0 +1 @@\n+a\n",
		"diff --git a/x b/y\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
	} {
		if files, err := Parse([]byte(text)); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%q: %+v, %v", text, files, err)
		}
	}
}
