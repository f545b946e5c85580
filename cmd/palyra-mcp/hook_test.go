package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/transport/api/apitest"
)

// answer is what a hook says of a tool call.
type answer struct {
	Output struct {
		Event        string `json:"hookEventName"`
		Decision     string `json:"permissionDecision"`
		Reason       string `json:"permissionDecisionReason"`
		UpdatedInput map[string]json.RawMessage
	} `json:"hookSpecificOutput"`
}

// asked runs palyra hook in this process, against a palyrad in memory that permits all.
func asked(t *testing.T, stdin io.Reader, args ...string) (a answer, silent bool) {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"palyra", "palyra-mcp"} {
		if err := os.WriteFile(filepath.Join(home, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	p := &app{stdin: stdin, stdout: &out, stderr: &errs, getenv: func(n string) string { return map[string]string{"HOME": home}[n] },
		executable: func() (string, error) { return filepath.Join(home, "palyra-mcp"), nil },
		dial: func(to connect.Target) (hub.Hub, error) {
			if to.Socket == "/nothing" {
				return connect.Dial(to)
			}
			return apitest.NewHub(), nil
		}}
	if status := p.run(t.Context(), append([]string{"hook"}, args...)); status != 0 || errs.Len() > 0 {
		t.Fatalf("status %d, %s", status, &errs)
	}
	if out.Len() == 0 {
		return a, true
	}
	if err := json.Unmarshal([]byte(out.String()), &a); err != nil || a.Output.Event != "PreToolUse" || strings.Count(out.String(), "\n") != 1 {
		t.Fatalf("%v, %q", err, &out)
	}
	return a, false
}

// bash is the event of a command.
func bash(t *testing.T, dir, line string) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"session_id": "s", "cwd": dir, "hook_event_name": "PreToolUse", "tool_name": "Bash",
		"tool_input": map[string]any{"command": line, "timeout": 5000, "shell": "/home/alice/src/bash",
			"_simulatedSedEdit": map[string]any{"filePath": "/home/alice/.profile", "newContent": "x"}}, "tool_use_id": "t", "agent_id": nil})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// lines are commands that a host's shell would make something of.
var lines = []string{
	"ls", "cd sub && echo \"it's $HOME\" | cat", "echo 'a\nb' >'x y'\n# comment", "$(touch HOST) `touch HOST`", "touch HOST; exit 3",
	"' ; touch HOST; '", "\\' && touch HOST #", "!! !$ *.go ~ {a,b} <(ls) >|x", "-n", "é\u2028\x01\x7f\t", strings.Repeat("x", maxLine), "true\\",
}

// TestRewrite: the shell that reads a rewritten command starts palyra with the line as one
// word, whatever is in it, and reads nothing else in it. Of the input's other members those stay
// that can't choose what runs.
func TestRewrite(t *testing.T) {
	dir := t.TempDir()
	spaced := filepath.Join(dir, "it's $(touch HOST)")
	if err := os.Mkdir(spaced, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		a, _ := asked(t, strings.NewReader(bash(t, spaced, line)), "claude", "--workspace", "src")
		var command string
		if err := json.Unmarshal(a.Output.UpdatedInput["command"], &command); err != nil || a.Output.Decision != "allow" || string(a.Output.UpdatedInput["timeout"]) != "5000" {
			t.Fatalf("%q: %v, %+v", line, err, a)
		}
		if len(a.Output.UpdatedInput) != 2 {
			t.Errorf("%q: %s", line, a.Output.UpdatedInput)
		}
		// The link's path and palyra's have only plain characters here; a folder's may not.
		if strings.Trim(command, `abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-_. &\`) != "" || len(command) > 120<<10 {
			t.Errorf("%q: %q", line, command)
		}
		words := unpacked(t, command)
		if words[len(words)-1] != line || words[len(words)-2] != "--" || words[0] != "--dir" || words[1] != spaced {
			t.Errorf("%q: %q", line, words)
		}
	}
	if _, err := os.Stat(filepath.Join(spaced, "HOST")); err == nil {
		t.Error("a shell of the host ran a part of a command")
	}
}

func unpacked(t *testing.T, command string) (words []string) {
	t.Helper()
	_, packed, _ := strings.Cut(command, " --packed ")
	packed, _, _ = strings.Cut(packed, " ")
	b, err := base64.RawURLEncoding.DecodeString(packed)
	if err := errors.Join(err, json.Unmarshal(b, &words)); err != nil {
		t.Fatal(err)
	}
	return words
}

// TestCodexRewrite: Codex starts each command where it says, so nothing follows palyra.
func TestCodexRewrite(t *testing.T) {
	a, _ := asked(t, strings.NewReader(bash(t, t.TempDir(), "ls")), "codex", "--workspace", "src")
	if s := string(a.Output.UpdatedInput["command"]); a.Output.Decision != "allow" || strings.Contains(s, "builtin") {
		t.Errorf("%+v", a)
	}
}

// TestHookRefuses: whatever an agent or its model writes, an answer comes, and it is a no
// with a reason's code.
func TestHookRefuses(t *testing.T) {
	dir := t.TempDir()
	good := bash(t, dir, "ls")
	other := func(tool string) string { return strings.Replace(good, `"Bash"`, `"`+tool+`"`, 1) }
	for name, c := range map[string]struct {
		stdin, flags, want string
	}{
		"nothing":           {"", "", "json_syntax"},
		"no JSON":           {"x", "", "json_syntax"},
		"an array":          {"[]", "", "invalid_input"},
		"two objects":       {good + good, "", "json_syntax"},
		"huge":              {strings.Repeat(" ", maxHook) + good, "", "too_large"},
		"deep":              {strings.Replace(good, `"ls"`, strings.Repeat("[", 999)+strings.Repeat("]", 999), 1), "", "json_syntax"},
		"two commands":      {strings.Replace(good, `"command":"ls"`, `"command":"ls","command":"id"`, 1), "", "json_syntax"},
		"two tools":         {strings.Replace(good, `"tool_name"`, `"tool_name":"Read","tool_name"`, 1), "", "json_syntax"},
		"no UTF-8":          {strings.Replace(good, `"ls"`, "\"l\xffs\"", 1), "", "json_syntax"},
		"half a character":  {strings.Replace(good, `"ls"`, `"l\ud800s"`, 1), "", "json_syntax"},
		"NUL":               {bash(t, dir, "ls\x00; id"), "", "NUL"},
		"long":              {bash(t, dir, strings.Repeat("x", maxLine+1)), "", "too_large"},
		"empty":             {bash(t, dir, " \n"), "", "it is empty"},
		"no command":        {strings.Replace(good, `"command"`, `"cmd"`, 1), "", "invalid_input"},
		"a list":            {strings.Replace(good, `"ls"`, `["ls"]`, 1), "", "invalid_input"},
		"another event":     {strings.Replace(good, "PreToolUse", "PostToolUse", 1), "", "invalid_input"},
		"no tool":           {other(""), "", "no tool_name"},
		"unknown tool":      {other("PowerShell"), "", "not_found"},
		"its case":          {other("bash"), "", "not_found"},
		"a tool turned off": {other("Edit"), "--refuse Edit", "turned the tool"},
		"a kind of tools":   {other("mcp__x__y"), "--refuse mcp__*", "turned the tool"},
		"Bash turned off":   {good, "--refuse Bash --pass Bash", "turned the tool"},
		"no folder":         {bash(t, filepath.Join(dir, "gone"), "ls"), "", "invalid_input"},
		"relative folder":   {bash(t, "sub", "ls"), "", "no absolute path"},
		"outside":           {bash(t, "/", "ls"), "--dir " + dir, "isn't in the workspace"},
		"no palyrad":        {good, "--socket /nothing", "daemon_unreachable"},
	} {
		a, silent := asked(t, strings.NewReader(c.stdin), append([]string{"claude", "--workspace", "src"}, strings.Fields(c.flags)...)...)
		if silent || a.Output.Decision != "deny" || a.Output.UpdatedInput != nil || !strings.Contains(a.Output.Reason, c.want) || !strings.HasPrefix(a.Output.Reason, "Nothing ran: ") {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a, _ := asked(t, strings.NewReader(good), "claude"); a.Output.Decision != "deny" || !strings.Contains(a.Output.Reason, "neither --workspace nor --policy") {
		t.Errorf("no door: %+v", a)
	}
}

// TestHookPasses: tools that start nothing, and those that the operator named.
func TestHookPasses(t *testing.T) {
	good := bash(t, t.TempDir(), "ls")
	for tool, flags := range map[string]string{"Edit": "", "Read": "", "mcp__palyra__exec": "", "apply_patch": "", "Monitor": "--pass Monitor", "LSP": "--pass L*"} {
		a, silent := asked(t, strings.NewReader(strings.Replace(good, `"Bash"`, `"`+tool+`"`, 1)), append([]string{"claude", "--workspace", "src"}, strings.Fields(flags)...)...)
		if !silent {
			t.Errorf("%s: %+v", tool, a)
		}
	}
}

// TestHookEnds: an agent that never ends its message gets its no when the hook is told to
// end, as by its deadline.
func TestHookEnds(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	var out strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &app{stdin: r, stdout: &out, stderr: io.Discard, getenv: func(string) string { return "" }, executable: os.Executable}
	if status := p.run(ctx, []string{"hook", "claude", "--workspace", "src"}); status != 0 || !strings.Contains(out.String(), `"permissionDecision":"deny"`) || !strings.Contains(out.String(), "timeout") {
		t.Errorf("status %d, %s", status, &out)
	}
}

// TestQuote: a shell reads back each text as it was.
func TestQuote(t *testing.T) {
	for _, sh := range []string{"/bin/sh", "/bin/bash"} {
		if _, err := os.Stat(sh); err != nil {
			continue
		}
		for _, line := range append(slices.Clone(lines), "", "'", "''", "a'b\"c\\", "\n") {
			if len(line) > 1<<10 {
				continue
			}
			out, err := exec.Command(sh, "-c", "printf %s "+programs.Quote(line)).Output()
			if err != nil || string(out) != line {
				t.Errorf("%s: %q becomes %q, %v", sh, line, out, err)
			}
			if words, ok := split(programs.Quote(line)); !ok || len(words) != 1 && line != "" || line != "" && words[0] != line {
				t.Errorf("%q is split into %q", line, words)
			}
		}
	}
}

// TestUnwrap: Claude Code's wrapping comes off, and nothing that only looks like it.
func TestUnwrap(t *testing.T) {
	const head, tail = "source /h/.claude/shell-snapshots/s.sh 2>/dev/null || true && { \\builtin shopt -u extglob; } >/dev/null 2>&1 || true && eval ", " < /dev/null && pwd -P >| /tmp/claude-fd83-cwd"
	for text, want := range map[string][2]string{
		head + `'cd sub && echo "it'"'"'s $HOME!"'` + tail: {`cd sub && echo "it's $HOME!"`, "/tmp/claude-fd83-cwd"},
		head + "ls" + tail: {"ls", "/tmp/claude-fd83-cwd"},
		head + `'a && eval '"'"'b'"'"'` + tail + `'` + tail:                {"a && eval 'b'" + tail, "/tmp/claude-fd83-cwd"},
		head + `'ls' $(id)` + tail:                                         {},
		head + `"$(id)"` + tail:                                            {},
		head + "'ls'" + strings.Replace(tail, "claude-fd83", ".bashrc", 1): {},
		head + "'ls'" + strings.Replace(tail, "/tmp/", "/tmp/../", 1):      {},
		head + "'ls'": {},
		"ls":          {},
	} {
		if want[0] == "" {
			want[0] = text
		}
		if line, file := unwrap(text); line != want[0] || file != want[1] {
			t.Errorf("%s\nis %q, %q", text, line, file)
		}
	}
}

// TestHandedBack: only what stands at the end of an output is taken off it.
func TestHandedBack(t *testing.T) {
	for out, want := range map[string][3]string{
		"x\x00palyra\x00/w\x00/w/s\x00":                        {"x", "/w", "/w/s"},
		"a\x00palyra\x00/\x00/\x00b\x00palyra\x00/w\x00/w\x00": {"a\x00palyra\x00/\x00/\x00b", "/w", "/w"},
		"x\x00palyra\x00/w\x00/w/s\x00more":                    {},
		"x\x00palyra\x00/w":                                    {},
		"x\x00palyra\x00a\x00b\x00c\x00":                       {},
		"":                                                     {},
	} {
		if want == [3]string{} {
			want[0] = out
		}
		if rest, root, cwd, _ := handedBack([]byte(out)); string(rest) != want[0] || root != want[1] || cwd != want[2] {
			t.Errorf("%q: %q, %q, %q", out, rest, root, cwd)
		}
	}
}

// TestHandBack: a line leads its caller to folders of the workspace alone.
func TestHandBack(t *testing.T) {
	base := t.TempDir()
	dir, err := real(base)
	if err != nil {
		t.Fatal(err)
	}
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "w"), 0o755), os.Mkdir(filepath.Join(dir, "w", "s"), 0o755), os.Symlink(dir, filepath.Join(dir, "w", "out"))); err != nil {
		t.Fatal(err)
	}
	s := &shell{dir: filepath.Join(dir, "w")}
	for cwd, want := range map[string]string{"/c": "w", "/c/s": "w/s", "/c/gone": "", "/c/out": "", "/tmp": "", "/": "", "/c/../x": ""} {
		os.Remove(link)
		os.Remove(file)
		if err := os.Symlink("/", link); err != nil {
			t.Fatal(err)
		}
		lerr, ferr := s.handBack(link, "", "/c", cwd), s.handBack("", file, "/c", cwd)
		to, _ := os.Readlink(link)
		b, _ := os.ReadFile(file)
		if want != "" && (lerr != nil || ferr != nil || to != filepath.Join(dir, want) || string(b) != to+"\n") || want == "" && (lerr == nil || ferr == nil || to != "/" || len(b) > 0) {
			t.Errorf("%s: %q, %q, %v, %v", cwd, to, b, lerr, ferr)
		}
	}
	os.Remove(link)
	if err := errors.Join(os.Symlink("/", link), os.Symlink(link, file+"2")); err != nil {
		t.Fatal(err)
	}
	if err := s.handBack("", file+"2", "/c", "/c"); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(link); err != nil || to != "/" {
		t.Errorf("a name for the folder went through a link: %q, %v", to, err)
	}
}

// FuzzHook: no event makes the hook panic, and each command that it lets through is the
// event's.
func FuzzHook(f *testing.F) {
	f.Add([]byte(`{"hook_event_name":"PreToolUse","cwd":"/","tool_name":"Bash","tool_input":{"command":"ls"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := readEvent(strings.NewReader(string(b)))
		if err == nil && (e.name == "" || !filepath.IsAbs(e.cwd)) {
			t.Errorf("%q: %+v", b, e)
		}
	})
}

// FuzzSplit: what is split is quoted back to the same words.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{`'a'"'"'b' c`, `a\ b`, `"x" y`, `$(x)`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		unwrap(s)
		words, ok := split(s)
		if !ok {
			return
		}
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, programs.Quote(w))
		}
		if again, ok := split(strings.Join(quoted, " ")); !ok || !slices.Equal(again, words) {
			t.Errorf("%q: %q, %q", s, words, again)
		}
	})
}

// TestLostOutput: a line whose output can't be had whole has run all the same, and its reader is
// told how much of the output there is.
func TestLostOutput(t *testing.T) {
	digest := canon.Sum([]byte("all"))
	for name, o := range map[string]hub.Output{
		"lost":       {Size: 99, Text: "begin", Artifact: digest, Lost: true, LostWhy: "disk_full"},
		"not there":  {Size: 99, Text: "begin", Artifact: digest},
		"not kept":   {Size: 99, Text: "begin"},
		"not a text": {Size: 99, Base64: []byte("begin")},
	} {
		e, err := (&app{}).ended(t.Context(), apitest.NewHub(), &hub.Run{ID: "run_1", Steps: []hub.StepResult{{Outcome: "executed", Exit: 3, Stdout: o}}})
		if err != nil || e.exit != 3 || string(e.stdout) != "begin" || !strings.Contains(e.said, "first 5 of 99 bytes of its standard output") || o.Lost && !strings.Contains(e.said, "disk_full") {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	e, err := (&app{}).ended(t.Context(), apitest.NewHub(), &hub.Run{ID: "run_1", Steps: []hub.StepResult{{Outcome: "executed", Stdout: hub.Output{Size: 5, Text: "begin"}}}})
	if err != nil || e.said != "" {
		t.Errorf("a whole output: %+v, %v", e, err)
	}
}
