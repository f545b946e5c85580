package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

// TestExitTable compares the statuses with those that fault documents beside
// each kind, so that neither can move alone.
func TestExitTable(t *testing.T) {
	src, err := os.ReadFile("../../../internal/fault/fault.go")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\t(\w+) +Kind = (\d+) +// .*; (\d+) / (\d+)$`)
	found := line.FindAllStringSubmatch(string(src), -1)
	if len(found) != len(exits) {
		t.Fatalf("fault documents %d kinds, the table has %d", len(found), len(exits))
	}
	for _, m := range found {
		n, _ := strconv.Atoi(m[2])
		want, _ := strconv.Atoi(m[3])
		if got := Exit(fault.New(fault.Kind(n), "x", "x", nil)); got != want {
			t.Errorf("%s: %d, documented %d", m[1], got, want)
		}
	}
	if Exit(errors.New("x")) != 1 || Exit(nil) != 0 {
		t.Error("an unclassified error must be 1 and none 0")
	}
}

// TestStatuses compares the list in the help with what Exit gives: each status is
// documented once, and none that nothing gives.
func TestStatuses(t *testing.T) {
	want := map[string]bool{"0": true, strconv.Itoa(Findings): true}
	for k := range exits {
		want[strconv.Itoa(Exit(fault.New(k, "x", "x", nil)))] = true
	}
	got := map[string]bool{}
	for _, e := range Statuses() {
		if got[e.Code] || !want[e.Code] || e.Meaning == "" {
			t.Errorf("status %s: twice, without meaning, or given by nothing", e.Code)
		}
		got[e.Code] = true
	}
	if len(got) != len(want) {
		t.Errorf("documented %v, given %v", got, want)
	}
}

// TestPrint: one document with --json even beside an error, and a lost standard
// output is a status of its own.
func TestPrint(t *testing.T) {
	var out, errs bytes.Buffer
	err := fault.New(fault.Denied, "forbidden", "run\x1b[2J", nil).WithHint("ask")
	if got := Print(&out, &errs, "palyra", "x", true, nil, err); got != 4 {
		t.Errorf("status %d", got)
	}
	if !strings.Contains(out.String(), `"ok": false`) || !strings.Contains(out.String(), `"reason": "forbidden"`) {
		t.Errorf("document %s", &out)
	}
	if strings.ContainsRune(errs.String(), 0x1b) || !strings.Contains(errs.String(), "\nhint: ask\n") {
		t.Errorf("standard error %q", &errs)
	}
	for name, tt := range map[string]struct {
		json bool
		r    *Report
		err  error
		want int
	}{
		"text": {false, &Report{Text: "x"}, nil, 75}, "document": {true, &Report{}, nil, 75}, "findings": {false, &Report{Text: "x", Exit: Findings}, nil, 75},
		"beside an error": {true, nil, fault.New(fault.Denied, "forbidden", "run", nil), 4},
	} {
		errs.Reset()
		if got := Print(broken{}, &errs, "palyra", "x", tt.json, tt.r, tt.err); got != tt.want || !strings.Contains(errs.String(), "palyra: write standard output: gone\nhint: ") {
			t.Errorf("lost output, %s: status %d, %q", name, got, &errs)
		}
	}
	if got := Say(broken{}, &errs, "palyra", "help"); got != 75 {
		t.Errorf("lost help gives status %d", got)
	}
	if got := Print(&out, &errs, "palyra", "x", false, &Report{Exit: Findings}, nil); got != 3 {
		t.Errorf("findings give status %d", got)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestPrintNothing: a command whose result is no text writes none. Another write to the same file,
// of palyra mcp serve to a client that doesn't read, would hold it up.
func TestPrintNothing(t *testing.T) {
	r, w := io.Pipe() // a write waits for its reader
	defer r.Close()
	defer w.Close()
	done := make(chan int)
	go func() { done <- Print(w, io.Discard, "palyra", "mcp.serve", false, nil, nil) }()
	select {
	case status := <-done:
		if status != 0 {
			t.Errorf("status %d", status)
		}
	case <-time.After(time.Minute):
		t.Fatal("it writes to standard output")
	}
}

func TestDocumentSortsKeys(t *testing.T) {
	var b bytes.Buffer
	in := struct {
		Z int64 `json:"z"`
		A any   `json:"a"`
	}{1<<62 + 1, map[string]any{"y": "<&>", "b": nil}}
	if err := (Document{"x": in}).Write(&b, "test"); err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile(`"(\w)":`).FindAllStringSubmatch(b.String(), -1)
	var got []string
	for _, k := range keys {
		got = append(got, k[1])
	}
	if want := []string{"x", "a", "b", "y", "z"}; !slices.Equal(got, want) {
		t.Errorf("keys in order %q, want %q", got, want)
	}
	if !strings.Contains(b.String(), "4611686018427387905") || !strings.Contains(b.String(), "<&>") {
		t.Errorf("number or text changed: %s", &b)
	}
}

// TestJSONIsPlain: nothing in a document draws on a terminal, and it still says
// the same.
func TestJSONIsPlain(t *testing.T) {
	title := "\u009b2J\u0085\u202e\u200b\x1b[H\x7f\u00e9 \U0001f600 <&>\u2028"
	for name, write := range map[string]func(w io.Writer) error{
		"document": func(w io.Writer) error { return Document{"title": title}.Write(w, "runs.show") },
		"line": func(w io.Writer) error {
			return WriteJSON(w, map[string]any{"title": title, "raw": json.RawMessage(`"\u00e9"`)}, "")
		},
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
			t.Errorf("%s: %q", name, b.String()[i:])
		}
		var got map[string]any
		if err := json.Unmarshal(b.Bytes(), &got); err != nil || got["title"] != title {
			t.Errorf("%s: %q, %v", name, got["title"], err)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		`open "a\b": x`: `open "a\b": x`, "a\x1b[0m": `a\x1b[0m`, "a\nb": "a\nb", "\u202e": `\u202e`, "\x80": `\ufffd`, "é": `\u00e9`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}
