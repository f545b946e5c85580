package builtin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"palyra/internal/canon"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
)

type obj = map[string]any

// call runs a tool as the kernel would start it. It returns the status and, if
// that is Done, fills in the result, else the failure.
func call(t testing.TB, e *Env, tool string, in obj, result any) (toolproto.Status, toolproto.Failure) {
	t.Helper()
	if _, ok := in["workspace"]; !ok {
		in["workspace"] = "w"
	}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	e.Stdin, e.Stdout = bytes.NewReader(data), &out
	status := e.Main(append([]string{tool}, brief(t, tool, data)...))
	line, ok := bytes.CutSuffix(out.Bytes(), []byte("\n"))
	if !ok || canon.Check(line) != nil {
		t.Fatalf("%s wrote %.300q", tool, out.Bytes())
	}
	var f toolproto.Failure
	if status == toolproto.Done {
		if result != nil {
			err = canon.Decode(line, result, canon.Limits{Bytes: 32 << 20})
		}
	} else {
		err = canon.Decode(line, &f, canon.Limits{})
	}
	if err != nil {
		t.Fatalf("%s, status %d: %v in %.300s", tool, status, err, line)
	}
	return status, f
}

// brief is the brief of an input, if it has one.
func brief(t testing.TB, tool string, data []byte) []string {
	t.Helper()
	row, ok := tools.Find(tool)
	if !ok {
		return nil
	}
	in := row.Input()
	if toolproto.Decode(data, in) != nil {
		return nil
	}
	lines, _ := row.Brief(in)
	return lines
}

// TestActs: each row of the table of tools has an act, and each act a row.
func TestActs(t *testing.T) {
	rows := 0
	for _, row := range tools.All() {
		if (acts[row.Name] == nil) != row.Reaches { // those that reach hosts are palyra-fetch's
			t.Errorf("%s has an act: %v", row.Name, acts[row.Name] != nil)
		}
		if !row.Reaches {
			rows++
		}
	}
	if len(acts) != rows {
		t.Errorf("%d acts for %d rows", len(acts), rows)
	}
}

func put(t testing.TB, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// snapshot is every name below a folder, with the content of files.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			out[rel+"/"] = ""
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[rel] = string(b)
		default:
			out[rel] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestStart(t *testing.T) {
	for _, c := range []struct {
		args   []string
		in     string
		status toolproto.Status
		reason string
	}{
		{nil, "", toolproto.Bad, "invalid_input"},
		{[]string{"fs.remove"}, "{}", toolproto.Bad, "not_found"},
		{[]string{toolproto.Echo}, "", toolproto.Bad, "json_syntax"},
		{[]string{toolproto.Echo}, `{"text":"x"}` + "\nmore", toolproto.Bad, "json_syntax"},
		{[]string{toolproto.Echo}, `{"text":"x","text":"y"}`, toolproto.Bad, "json_syntax"},
		{[]string{toolproto.Echo, "x"}, `{"text":"x"}`, toolproto.Bad, "invalid_input"},
		{[]string{toolproto.Sleep}, `{"ms":0}`, toolproto.Bad, "invalid_input"},
		{[]string{toolproto.Sleep, "ms=0"}, `{"ms":0}`, toolproto.Done, ""},
		{[]string{toolproto.WriteFile, "path=b"}, `{"workspace":"w","path":"a","mode":"create","content":""}`, toolproto.Bad, "invalid_input"},
		{[]string{toolproto.ApplyPatch, "modify=y"}, `{"workspace":"w","patch":"--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n"}`, toolproto.Bad, "invalid_input"},
	} {
		dir := t.TempDir()
		var out bytes.Buffer
		e := &Env{Dir: dir, Stdin: strings.NewReader(c.in), Stdout: &out}
		status := e.Main(c.args)
		var f toolproto.Failure
		if err := json.Unmarshal(out.Bytes(), &f); err != nil || status != c.status || f.Error.Reason != c.reason {
			t.Errorf("%q %s: %d, %s, %v; want %d, %s", c.args, c.in, status, out.Bytes(), err, c.status, c.reason)
		}
		if got := snapshot(t, dir); len(got) != 1 {
			t.Errorf("%q: left %v", c.args, got)
		}
	}
	e := &Env{Dir: filepath.Join(t.TempDir(), "gone")}
	if s, f := call(t, e, toolproto.ListDir, obj{}, nil); s != toolproto.Failed || f.Error.Reason != "not_found" {
		t.Errorf("no workspace: %d, %+v", s, f)
	}
}

// TestReadParts reads a file in parts of every size, which are the whole.
func TestReadParts(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		var b strings.Builder
		for range r.IntN(40) {
			b.WriteString([]string{"x", "ü", "日", "\n", "\n\n", "line\n", "🙂"}[r.IntN(7)])
		}
		whole := b.String()
		put(t, dir+"/f", whole)
		for _, unit := range []string{"bytes", "lines"} {
			limit := 4 + r.IntN(20)
			var got strings.Builder
			for offset := int64(0); ; {
				var p toolproto.ReadFileResult
				if s, f := call(t, &Env{Dir: dir}, toolproto.ReadFile, obj{"path": "f", "unit": unit, "offset": offset, "limit": limit}, &p); s != toolproto.Done {
					t.Fatalf("%d, %+v", s, f)
				}
				text := p.Content.Text
				count := int64(len(text))
				if unit == "lines" {
					if count = int64(strings.Count(text, "\n")); text != "" && !strings.HasSuffix(text, "\n") {
						count++
					}
				}
				if p.Content.Binary || !utf8.ValidString(text) || p.Length != count || p.Length > int64(limit) || p.Size != int64(len(whole)) ||
					p.Digest != canon.Sum([]byte(whole)) || p.NextOffset != 0 && p.NextOffset != offset+p.Length {
					t.Fatalf("%q by %s from %d, %d at most: %+v", whole, unit, offset, limit, p)
				}
				got.WriteString(text)
				if offset = p.NextOffset; offset == 0 {
					break
				}
			}
			if got.String() != whole {
				t.Fatalf("by %s: got %q, want %q", unit, got.String(), whole)
			}
		}
	}
}

func TestReadContent(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 700<<10)
	for _, c := range []struct {
		name, content string
		in            obj
		text          string
		binary        bool
		next          int64
	}{
		{"empty", "", obj{}, "", false, 0},
		{"behind the end", "abc", obj{"offset": 9}, "", false, 0},
		{"latin1", "gr\xfc\xdfe", obj{}, "gr\xfc\xdfe", true, 0},
		{"NUL", "a\x00b", obj{}, "a\x00b", true, 0},
		{"half a character, alone", "ü", obj{"limit": 1}, "\xc3", true, 1},
		{"from the middle of a character", "ü", obj{"offset": 1}, "\xbc", true, 0},
		{"controls", "\x1b[31m\r\n", obj{}, "\x1b[31m\r\n", false, 0},
		{"exactly the limit", "abc", obj{"limit": 3}, "abc", false, 0},
		{"long lines", long + "\n" + long + "\n", obj{"unit": "lines", "limit": 10}, long + "\n", false, 1},
		{"no line feed at the end", "a\nb", obj{"unit": "lines", "offset": 1}, "b", false, 0},
		{"lines behind the end", "a\n", obj{"unit": "lines", "offset": 1}, "", false, 0},
	} {
		put(t, dir+"/f", c.content)
		c.in["path"] = "f"
		var r toolproto.ReadFileResult
		if s, f := call(t, &Env{Dir: dir}, toolproto.ReadFile, c.in, &r); s != toolproto.Done {
			t.Errorf("%s: %d, %+v", c.name, s, f)
			continue
		}
		text := r.Content.Text
		if r.Content.Binary {
			b, err := base64.StdEncoding.DecodeString(r.Content.Base64)
			if err != nil || text != "" {
				t.Errorf("%s: %+v", c.name, r.Content)
			}
			text = string(b)
		}
		if text != c.text || r.Content.Binary != c.binary || r.NextOffset != c.next {
			t.Errorf("%s: got %.40q, binary %v, next %d; want %.40q, %v, %d", c.name, text, r.Content.Binary, r.NextOffset, c.text, c.binary, c.next)
		}
	}
}

func TestSearch(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.go": "package a\n// Needle here\nend\n", "b/b.go": "needle\n", "b/c.txt": "a needle\nand\nneedle",
		".hidden/x.go": "needle\n", "b/.h": "needle\n", "bin": "needle\x00", "crlf": "needle\r\n", "b/latin": "needle \xff\n",
		"long": strings.Repeat("x", 5000) + "needle" + strings.Repeat("y", 5000) + "\n"} {
		put(t, filepath.Join(dir, name), content)
	}
	for _, c := range []struct {
		name string
		in   obj
		want string // PATH:LINE:COLUMN of each match
	}{
		{"literal", obj{}, "b/b.go:1:1 b/c.txt:1:3 b/c.txt:3:1 b/latin:1:1 crlf:1:1 long:1:5001"},
		{"any case", obj{"ignore_case": true, "path": "a.go"}, "a.go:2:4"},
		{"regexp", obj{"pattern": "^(needle|end)$", "regexp": true}, "a.go:3:1 b/b.go:1:1 b/c.txt:3:1"},
		{"regexp is not literal", obj{"pattern": "n..dle"}, ""},
		{"glob by name", obj{"globs": []string{"*.go"}}, "b/b.go:1:1"},
		{"glob by path", obj{"globs": []string{"b/*.txt", "*.none"}}, "b/c.txt:1:3 b/c.txt:3:1"},
		{"exclude a folder", obj{"exclude": []string{"b"}}, "crlf:1:1 long:1:5001"},
		{"exclude by path", obj{"exclude": []string{"**/*.txt", "long"}}, "b/b.go:1:1 b/latin:1:1 crlf:1:1"},
		{"hidden", obj{"hidden": true, "globs": []string{"x.go", ".h"}}, ".hidden/x.go:1:1 b/.h:1:1"},
		{"below a folder", obj{"path": "b", "globs": []string{"*.go"}}, "b/b.go:1:1"},
		{"path below the folder", obj{"path": "b", "globs": []string{"b/*.go"}}, ""},
		{"limit", obj{"max_matches": 2}, "b/b.go:1:1 b/c.txt:1:3"},
		{"size", obj{"max_file_bytes": 7}, "b/b.go:1:1"},
	} {
		if c.in["pattern"] == nil {
			c.in["pattern"] = "needle"
		}
		var r toolproto.SearchResult
		if s, f := call(t, &Env{Dir: dir}, toolproto.Search, c.in, &r); s != toolproto.Done {
			t.Errorf("%s: %d, %+v", c.name, s, f)
			continue
		}
		var got []string
		for _, m := range r.Matches {
			got = append(got, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column))
			if len(m.Text) > toolproto.MaxLine+10 || m.Path == "long" != m.Cut || !strings.Contains(strings.ToLower(m.Text), "needle") && c.name != "regexp" {
				t.Errorf("%s: %+v", c.name, m)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %s, want %s", c.name, strings.Join(got, " "), c.want)
		}
	}
	var r toolproto.SearchResult
	call(t, &Env{Dir: dir}, toolproto.Search, obj{"pattern": "and", "context": 5, "path": "b/c.txt"}, &r)
	if len(r.Matches) != 1 || !slices.Equal(r.Matches[0].Before, []string{"a needle"}) || !slices.Equal(r.Matches[0].After, []string{"needle"}) {
		t.Errorf("context: %+v", r)
	}
	call(t, &Env{Dir: dir}, toolproto.Search, obj{"pattern": "needle"}, &r)
	if r.Binary != 1 || r.Files != 7 {
		t.Errorf("%d binary, %d files", r.Binary, r.Files)
	}
}

func TestWrite(t *testing.T) {
	digest := canon.Sum([]byte("old\n")).String()
	for _, c := range []struct {
		name   string
		in     obj
		status toolproto.Status
		reason string
		want   string // content of f afterwards; "-" is none
		action string
	}{
		{"create", obj{"path": "new/f", "mode": "create", "parents": true}, toolproto.Done, "", "old\n", "created"},
		{"create without folder", obj{"path": "new/f", "mode": "create"}, toolproto.Failed, "not_found", "old\n", ""},
		{"create over", obj{"mode": "create"}, toolproto.Conflict, "exists", "old\n", ""},
		{"overwrite", obj{"mode": "overwrite"}, toolproto.Done, "", "new\n", "modified"},
		{"overwrite what is not there", obj{"path": "g", "mode": "overwrite"}, toolproto.Done, "", "old\n", "created"},
		{"append", obj{"mode": "append"}, toolproto.Done, "", "old\nnew\n", "modified"},
		{"append to nothing", obj{"path": "g", "mode": "append"}, toolproto.Done, "", "old\n", "created"},
		{"expected", obj{"mode": "overwrite", "expected_digest": digest}, toolproto.Done, "", "new\n", "modified"},
		{"not expected", obj{"mode": "append", "expected_digest": canon.Sum(nil).String()}, toolproto.Conflict, "changed", "old\n", ""},
		{"expected and not there", obj{"path": "g", "mode": "overwrite", "expected_digest": digest}, toolproto.Conflict, "changed", "old\n", ""},
		{"folder in the way", obj{"path": "f/g", "mode": "create", "parents": true}, toolproto.Failed, "bad_file", "old\n", ""},
		{"is a folder", obj{"path": "d", "mode": "overwrite"}, toolproto.Failed, "bad_file", "old\n", ""},
	} {
		dir := t.TempDir()
		put(t, dir+"/f", "old\n")
		if err := os.Chmod(dir+"/f", 0o640); err != nil {
			t.Fatal(err)
		}
		put(t, dir+"/d/x", "")
		before := snapshot(t, dir)
		if c.in["path"] == nil {
			c.in["path"] = "f"
		}
		c.in["content"] = "new\n"
		var r toolproto.WriteFileResult
		s, f := call(t, &Env{Dir: dir}, toolproto.WriteFile, c.in, &r)
		if s != c.status || f.Error.Reason != c.reason || r.Action != c.action {
			t.Errorf("%s: %d, %+v, %+v; want %d, %s", c.name, s, f, r, c.status, c.reason)
		}
		after := snapshot(t, dir)
		if after["f"] != c.want {
			t.Errorf("%s: f holds %q", c.name, after["f"])
		}
		if s != toolproto.Done {
			if fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("%s: changed to %v", c.name, after)
			}
			continue
		}
		content := after[c.in["path"].(string)]
		st, err := os.Stat(filepath.Join(dir, r.Path))
		if err != nil || r.After != canon.Sum([]byte(content)) || r.Size != int64(len(content)) || r.Permissions != fmt.Sprintf("%04o", st.Mode().Perm()) {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
		if want := map[string]fs.FileMode{"created": 0o644, "modified": 0o640}[r.Action]; st.Mode() != want {
			t.Errorf("%s: mode %v, want %v", c.name, st.Mode(), want)
		}
		for name := range after {
			if strings.Contains(name, ".palyra-") {
				t.Errorf("%s: left %s", c.name, name)
			}
		}
	}
}

func TestPatchRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", "a\n")
	put(t, dir+"/g", "a\n")
	before := snapshot(t, dir)
	const fine = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
	for _, c := range []struct{ name, patch, reason string }{
		{"second file does not fit", fine + "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-b\n+c\n", "changed"},
		{"second file is not there", fine + "--- a/h\n+++ b/h\n@@ -1 +1 @@\n-b\n+c\n", "not_found"},
		{"created over", fine + "--- /dev/null\n+++ b/g\n@@ -0,0 +1 @@\n+c\n", "exists"},
		{"renamed over", "diff --git a/f b/g\nrename from f\nrename to g\n", "exists"},
		{"below a file", fine + "--- /dev/null\n+++ b/g/x\n@@ -0,0 +1 @@\n+c\n", "bad_file"},
		{"other mode", "diff --git a/f b/f\nold mode 100755\nnew mode 100644\n", "changed"},
		{"not a patch", "hello\n", "invalid_input"},
	} {
		if s, f := call(t, &Env{Dir: dir}, toolproto.ApplyPatch, obj{"patch": c.patch}, nil); s == toolproto.Done || s == toolproto.Partial || f.Error.Reason != c.reason {
			t.Errorf("%s: %d, %+v", c.name, s, f)
		}
		if got := snapshot(t, dir); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("%s: left %v", c.name, got)
		}
	}
	var r toolproto.ApplyPatchResult
	put(t, dir+"/f", "0\n0\na\n")
	if s, f := call(t, &Env{Dir: dir}, toolproto.ApplyPatch, obj{"patch": fine, "offset": 2}, &r); s != toolproto.Done || !slices.Equal(r.Changes[0].Offsets, []int64{2}) {
		t.Errorf("%d, %+v, %+v", s, f, r)
	}
}
