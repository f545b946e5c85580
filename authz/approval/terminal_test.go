package approval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"palyra/call"
	"palyra/internal/canon"
)

// person sits at a terminal: it reads the screen and, at a question, types what answer
// makes of it.
type person struct {
	shown  strings.Builder
	answer func(shown string) string
	typed  *strings.Reader
	at     int // how much was shown when it was typed
}

func (p *person) Write(b []byte) (int, error) { return p.shown.Write(b) }

func (p *person) Read(b []byte) (int, error) {
	if p.at != p.shown.Len() {
		p.at, p.typed = p.shown.Len(), strings.NewReader(p.answer(p.shown.String()))
	}
	return p.typed.Read(b)
}

// code is what the last question asks for.
func code(shown string) string {
	_, rest, _ := strings.Cut(shown, "\nType ")
	code, _, _ := strings.Cut(rest, " ")
	return code
}

func TestTerminalAnswer(t *testing.T) {
	for in, want := range map[string]struct {
		yes     bool
		comment string
	}{
		"CODE\n":              {true, ""},
		" CODE\r\n":           {true, ""},
		"CODE\nno\n":          {true, ""},
		"CODE":                {false, ""}, // cut short by the end of input
		"":                    {false, ""},
		"\n":                  {false, ""},
		"yes\n":               {false, ""},
		"y\n":                 {false, ""},
		"no\nCODE\n":          {false, ""},
		"CODECODE\n":          {false, ""},
		"00000\n":             {false, ""},
		"CAPSULE\n":           {false, digits(capsule.Hex())}, // known to whoever proposes
		"CODE please\n":       {false, "CODE please"},
		"\x1b[ACODE\n":        {false, "\x1b[ACODE"},
		"CODE\x00\n":          {false, "CODE\x00"},
		"use the other one\n": {false, "use the other one"},
		"No: use the other\n": {false, "use the other"},
		strings.Repeat(" ", maxAnswer) + "CODE\n": {false, ""},
	} {
		var shown string
		p := &person{answer: func(s string) string {
			shown = s
			return strings.NewReplacer("CODE", code(s), "CAPSULE", digits(capsule.Hex())).Replace(in)
		}}
		a, err := (&Terminal{In: p, Out: p, Name: "bob"}).Ask(t.Context(), question())
		wanted := strings.ReplaceAll(want.comment, "CODE", code(shown))
		if err != nil || a.Approved != want.yes || a.Comment != wanted || a.Approver != "bob" || a.Surface != "terminal" {
			t.Errorf("%q: got %+v, %v, want %v %q", in, a, err, want.yes, wanted)
		}
		if !strings.Contains(shown, capsule.String()) {
			t.Errorf("%q: the capsule's digest was not shown", in)
		}
	}
}

// digits are the first four of what could be typed if the capsule counted.
func digits(hex string) string { return hex[:4] }

// TestCodeIsDrawn: the digits of one question are not those of the next, of the
// same call.
func TestCodeIsDrawn(t *testing.T) {
	seen := map[string]bool{}
	for range 64 {
		p := &person{answer: func(string) string { return "\n" }}
		if _, err := (&Terminal{In: p, Out: p}).Ask(t.Context(), question()); err != nil {
			t.Fatal(err)
		}
		c := code(p.shown.String())
		if len(c) != 4 || strings.Trim(c, "0123456789") != "" {
			t.Fatalf("%q", c)
		}
		seen[c] = true
	}
	if len(seen) < 32 {
		t.Errorf("64 questions had %d different codes", len(seen))
	}
}

// TestPages: what does not fit the screen is shown in parts, the digits come
// behind the last, and no long line can look like a row.
func TestPages(t *testing.T) {
	q := question()
	q.Call.Argv = append(slicesOf(200, "junk"), "LAST", strings.Repeat(" ", 66)+`  network     none`)
	turned := 0
	p := &person{answer: func(s string) string {
		if strings.HasSuffix(s, "-- ") {
			turned++
			if strings.Contains(s, "Type ") {
				t.Error("the digits are there before the last page")
			}
			return "\n"
		}
		return code(s) + "\n"
	}}
	a, err := (&Terminal{In: p, Out: p, Size: screen(24, 80)}).Ask(t.Context(), q)
	if err != nil || !a.Approved || turned < 8 || !strings.Contains(p.shown.String(), "LAST") {
		t.Errorf("%+v, %v after %d pages", a, err, turned)
	}
	for line := range strings.Lines(p.shown.String()) {
		if i := strings.LastIndex(line, " -- "); i >= 0 {
			line = line[i+4:] // where Enter would have been shown
		}
		if len(line) > 81 && !strings.HasPrefix(line, "Type ") || strings.HasPrefix(line, "  network     none") && strings.Contains(line, `"`) {
			t.Errorf("row %q", line)
		}
	}
	for _, answer := range []string{"q\n", "0000\n", ""} {
		p := &person{answer: func(string) string { return answer }}
		if a, err := (&Terminal{In: p, Out: p, Size: screen(24, 80)}).Ask(t.Context(), q); err != nil || a.Approved || a.Comment != "" || strings.Contains(p.shown.String(), "Type ") {
			t.Errorf("%q on the first page: %+v, %v", answer, a, err)
		}
	}
}

// screen is a Terminal's Size.
func screen(rows, columns int) func() (int, int) {
	return func() (int, int) { return rows, columns }
}

// TestShrunkScreen: a page is cut for the screen that it is shown on, and a screen that
// shrinks leaves nothing out.
func TestShrunkScreen(t *testing.T) {
	for last := range 6 { // pages of each height come last
		q := question()
		q.Call.Argv = append(slicesOf(200, "junk"), strings.Repeat("x", 500), strings.Repeat("y", last*25))
		shrink(t, q)
	}
}

func shrink(t *testing.T, q Request) {
	t.Helper()
	rows, columns := 40, 120
	at := 0
	var words string // that were shown, without what cutting adds
	p := &person{}
	p.answer = func(s string) string {
		page := p.shown.String()[at:]
		at = p.shown.Len()
		body, _, _ := strings.Cut(page, "-- page ")
		body, _, _ = strings.Cut(body, "\nType ")
		prompt := strings.TrimPrefix(page, body)
		taken := strings.Count(prompt, "\n")
		for line := range strings.Lines(prompt + "0000") { // as it is typed
			taken += (len(line) + columns) / columns
		}
		if n := strings.Count(body, "\n") + taken - strings.Count(prompt, "\n"); n > rows {
			t.Errorf("%d rows on a screen of %d", n, rows)
		}
		for line := range strings.Lines(body) {
			if len(line) > columns {
				t.Errorf("%d columns on a screen of %d: %q", len(line), columns, line)
			}
			words += strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "    > ")
		}
		if rows, columns = max(rows-10, 8), max(columns-30, 30); strings.HasSuffix(s, "-- ") {
			return "\n"
		}
		return code(s) + "\n"
	}
	a, err := (&Terminal{In: p, Out: p, Size: func() (int, int) { return rows, columns }}).Ask(t.Context(), q)
	if err != nil || !a.Approved {
		t.Errorf("%+v, %v", a, err)
	}
	if want := strings.ReplaceAll(Card(q), "\n", ""); words != want {
		t.Errorf("shown: %q, want %q", words, want)
	}
}

// TestSmallScreen: a screen without room for a page and its question is refused by name,
// and so is the answer on one that became so while it waited.
func TestSmallScreen(t *testing.T) {
	for _, test := range []struct {
		rows, columns int
		ok            bool
	}{{MinRows, MinColumns, true}, {MinRows - 1, 80, false}, {24, MinColumns - 1, false}, {1, 1, false}} {
		for _, when := range []string{"before", "while it waits"} {
			rows, columns := test.rows, test.columns
			if when != "before" {
				rows, columns = 24, 80
			}
			p := &person{}
			p.answer = func(s string) string {
				if strings.HasSuffix(s, "-- ") {
					return "\n"
				}
				rows, columns = test.rows, test.columns
				return code(s) + "\n"
			}
			q := question()
			r := Resolve(t.Context(), &Terminal{In: p, Out: p, Size: func() (int, int) { return rows, columns }}, q).View()
			want := fmt.Sprintf("it has %d rows of %d columns, a question needs 8 of 30; enlarge it and try again, or answer elsewhere: palyra approvals approve", test.rows, test.columns)
			switch {
			case test.ok && r.Answer == Approved:
			case !test.ok && r.Answer == Unreachable && strings.HasSuffix(r.Detail, want):
			default:
				t.Errorf("%d rows of %d %s: %+v", test.rows, test.columns, when, r)
			}
			if !test.ok && when == "before" && p.shown.Len() > 0 {
				t.Errorf("shown all the same: %q", p.shown.String())
			}
		}
	}
}

func TestTerminalLeavesTheRest(t *testing.T) {
	p := &person{answer: func(s string) string { return code(s) + "\nprogram input" }}
	if _, err := (&Terminal{In: p, Out: p}).Ask(t.Context(), question()); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(p.typed); string(rest) != "program input" {
		t.Errorf("left %q", rest)
	}
}

func TestTerminalErrors(t *testing.T) {
	broken := errors.New("broken")
	for name, term := range map[string]*Terminal{
		"read":   {In: iotest.ErrReader(broken), Out: io.Discard},
		"write":  {In: strings.NewReader("yes\n"), Out: brokenWriter{broken}},
		"no in":  {Out: io.Discard},
		"no out": {In: strings.NewReader("yes\n")},
	} {
		if a, err := term.Ask(context.Background(), question()); err == nil || a.Approved {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// The end of the time interrupts a pollable terminal and abandons any other.
func TestTerminalTimeout(t *testing.T) {
	pollable, pollableEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pollable.Close()
	defer pollableEnd.Close()
	plain, plainEnd := io.Pipe()
	defer plainEnd.Close()
	for name, in := range map[string]io.Reader{"pollable": pollable, "plain": plain} {
		t.Run(name, func(t *testing.T) {
			q := question()
			q.Timeout = 20 * time.Millisecond
			start := time.Now()
			r := Resolve(context.Background(), &Terminal{In: in, Out: io.Discard}, q)
			if r.View().Answer != Expired {
				t.Errorf("got %+v", r.View())
			}
			if d := time.Since(start); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
	// A pollable terminal serves the next question.
	out := &asked{typed: pollableEnd}
	if r := Resolve(context.Background(), &Terminal{In: pollable, Out: out}, question()); !r.Approved() {
		t.Errorf("the question after a timeout: %+v", r.View())
	}
}

// asked types the digits as soon as it is shown them.
type asked struct {
	shown strings.Builder
	typed io.Writer
}

func (a *asked) Write(b []byte) (int, error) {
	a.shown.Write(b)
	if c := code(a.shown.String()); c != "" && strings.Contains(string(b), "Type ") {
		io.WriteString(a.typed, c+"\n")
	}
	return len(b), nil
}

func TestCard(t *testing.T) {
	exe, script, operand := canon.Sum([]byte("exe")), canon.Sum([]byte("script")), canon.Sum([]byte("operand"))
	stdin := canon.Sum([]byte("stdin"))
	card := Card(Request{
		Decision: decision, Capsule: capsule, PolicySet: policySet,
		Call: Call{
			Principal: `Palyra::User::"alice"`, Tool: "process.run",
			Argv: []string{"/usr/bin/cc", "-o", "a b", "evil\nApproval needed"}, Executable: "/usr/bin/x86_64-linux-gnu-gcc-14", Digest: exe,
			Script: "/srv/tool", ScriptDigest: script, Readers: []Operand{{Path: "/usr/bin/rea\nder", Digest: operand}}, Called: []string{"/tmp/cc", "x\n"}, Operands: []Operand{{Path: "/workspace/in.c", Digest: operand}}, EnvNames: []string{"LANG"}, EnvChanged: []string{"PATH=/workspace/bin\n"},
			Absent: []string{"/workspace/late"}, Folders: []string{"/workspace/src"}, Libraries: []string{"/workspace/lib"},
			Cwd: "/workspace", Workspace: "/home/alice/src", EgressHosts: []string{"example.org:443", "*.example.org:443"}, Capabilities: []string{"network", "process_exec"},
			Planted: []Planted{{Path: ".git/hooks/x\n", Kind: "hook", Why: "git runs it"}},
			Inputs:  call.Inputs{{Origin: "project", Tool: "fs.read", Step: 1}, {Origin: "tool", Tool: "mcp.call", Step: 7}, {Origin: "web", Tool: "http.fetch\n", Step: 3}},
			Stdin:   "sealed", StdinDigest: stdin, StdinSize: 3000, StdinHead: "rm -r\nApproval needed\x1b[2J", Tier: "c", Limits: "wall 30s",
			Why: []Why{{Policy: "host_write_unless_approved", Reason: "the program can write", Where: "30-sensitive.cedar:29"}, {Policy: "mine", Where: "x.cedar:1"}},
		},
	})
	for _, want := range []string{
		// The bound digests.
		capsule.String(), policySet.String(), exe.String(), script.String(), operand.String(),
		// The program and its arguments.
		`"/usr/bin/cc" "-o" "a b" "evil\nApproval needed"`, `"/usr/bin/x86_64-linux-gnu-gcc-14"`, `"/srv/tool"`, `"/workspace/in.c"`,
		`read by     "/usr/bin/rea\nder" ` + operand.String(), `called      "/tmp/cc" "x\n"`,
		// The place and the limits.
		`"/workspace"`, `"/home/alice/src", WRITABLE`, `reaches     "example.org:443"`, "REACHES THESE HOSTS, and no other:", `reaches     "*.example.org:443": ANY NAME below example.org`, "network, process_exec", `"LANG"`, "sealed", "wall 30s",
		// Its input.
		"3000 bytes, " + stdin.String(), `rm -r\nApproval needed\x1b[2J`, "[and 2975 more bytes NOT SHOWN]",
		// The parts that aren't held.
		`set to      "PATH=/workspace/bin\n"`, `NOT THERE   "/workspace/late"`, `NOT HELD    what is in "/workspace/src" when it runs`, `NOT HELD    libraries from "/workspace/lib"`,
		`DANGER      ".git/hooks/x\n": git runs it (hook)`,
		`has read    FROM OUTSIDE before: tool (mcp.call, step 7), web (http.fetch\n, step 3)`,
		// The reasons.
		"the program can write (policy host_write_unless_approved, 30-sensitive.cedar:29)", "gives no reason (policy mine",
	} {
		if !strings.Contains(card, want) {
			t.Errorf("card lacks %s\n%s", want, card)
		}
	}
	if strings.Count(card, "Approval needed\n") != 1 {
		t.Errorf("an argument forges a line:\n%s", card)
	}

	for network, want := range map[string]string{"": "network     none\n", "void": "network     none\n",
		"loopback": "network     loopback: its programs reach each other, and no host\n",
		"session":  "network     session: its programs and RUNNING CALLS OF ITS SESSION reach each other, and no host\n"} {
		if card := Card(Request{Call: Call{Executable: "/x", Network: network}}); !strings.Contains(card, want) {
			t.Errorf("network %q: want %q in\n%s", network, want, card)
		}
	}
	if card := Card(Request{Call: Call{Executable: "/x", Workspace: "/w", ReadOnly: true}}); !strings.Contains(card, `"/w", read-only`) {
		t.Error("a read-only workspace is not shown as one")
	}
}

// TestCardHidesNothing: the last of many items is on the card too. A call whose card
// would be too long is put to no approver.
func TestCardHidesNothing(t *testing.T) {
	last := "LAST ONE"
	for name, c := range map[string]Call{
		"argument":      {Argv: append(slicesOf(5000, "junk"), last)},
		"long argument": {Argv: []string{strings.Repeat("x", 100_000) + last}},
		"operand":       {Operands: append(make([]Operand, 100), Operand{Path: last})},
		"loose":         {Loose: append(slicesOf(100, "junk"), last)},
		"environment":   {EnvNames: append(slicesOf(5000, "JUNK"), last)},
		"egress":        {EgressHosts: append(slicesOf(5000, "junk"), last)},
		"requests":      {EgressInspect: append(slicesOf(5000, "junk"), last)},
		"uses":          {EgressSecrets: append(make([]call.EgressSecret, 100), call.EgressSecret{Use: last})},
		"variable":      {EnvChanged: append(slicesOf(5000, "junk"), last)},
		"absent":        {Absent: append(slicesOf(5000, "junk"), last)},
		"folder":        {Folders: append(slicesOf(5000, "junk"), last)},
		"library":       {Libraries: append(slicesOf(5000, "junk"), last)},
		"reader":        {Readers: append(make([]Operand, 100), Operand{Path: last})},
		"name":          {Called: append(slicesOf(5000, "junk"), last)},
		"capability":    {Capabilities: append(slicesOf(5000, "junk"), last)},
	} {
		if card := Card(Request{Call: c}); !strings.Contains(card, last) || strings.Contains(card, "NOT SHOWN") {
			t.Errorf("%s: the last is not on the card of %d bytes", name, len(card))
		}
	}
	q := question()
	q.Call.Argv = []string{"x", strings.Repeat("y", MaxCard)}
	asked := false
	r := Resolve(t.Context(), approverFunc(func(context.Context, Request) (Answer, error) {
		asked = true
		return Answer{Approved: true}, nil
	}), q)
	if v := r.View(); asked || r.Approved() || v.Answer != Unreachable || !strings.Contains(v.Detail, "propose less at a time") {
		t.Errorf("a card without end: asked %v, %+v", asked, v)
	}
}

func slicesOf(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// TestShowCutsLines: no row of the screen begins with what a long line goes on with.
func TestShowCutsLines(t *testing.T) {
	var out strings.Builder
	term := &Terminal{Out: &out, Size: func() (int, int) { return 24, 80 }}
	forged := "  | +" + strings.Repeat("x", 75) + "Approval needed" + strings.Repeat(" ", 65) + "Type 4711 to approve this call once"
	if err := term.Show(forged + "\n\n"); err != nil {
		t.Fatal(err)
	}
	for row := range strings.Lines(strings.TrimSuffix(out.String(), "\n")) {
		if row = strings.TrimSuffix(row, "\n"); len(row) >= 80 || row != "" && !strings.HasPrefix(row, "  | ") && !strings.HasPrefix(row, "    > ") {
			t.Errorf("a row of %d columns: %q", len(row), row)
		}
	}
	if got := strings.ReplaceAll(strings.ReplaceAll(out.String(), "\n    > ", ""), "\n", ""); got != forged {
		t.Errorf("it shows %q", got)
	}
}
