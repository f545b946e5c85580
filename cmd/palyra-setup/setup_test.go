package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/cmd/internal/programs"
)

func TestTable(t *testing.T) {
	table := programs.Table(programs.Setup).Commands
	if len(table) != len(commands) {
		t.Errorf("%d commands, %d functions", len(table), len(commands))
	}
	for _, c := range table {
		if commands[c.Name] == nil {
			t.Errorf("%s has no function", c.Name)
		}
	}
}

// try runs palyra-setup in this process with a palyra that isn't there, so that the call
// that proves a setup fails: status 3 is a setup.
func try(t *testing.T, home, line string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	env := map[string]string{"HOME": home, "PALYRA_SOCKET": "/nowhere.sock"}
	a := &app{stdout: &out, stderr: &errs, getenv: func(n string) string { return env[n] },
		executable: func() (string, error) { return filepath.Join(home, "palyra-setup"), nil }}
	t.Setenv("PATH", "/nowhere")
	status = a.run(t.Context(), strings.Fields(line))
	return status, out.String(), errs.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files lists what is below a folder.
func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(p, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// texts are configurations as people and agents write them.
var texts = map[string]struct{ line, name, text string }{
	"empty object":     {"cursor", ".cursor/mcp.json", "{}"},
	"spaced object":    {"cursor", ".cursor/mcp.json", "{ \n }\n\n"},
	"one line":         {"cursor", ".cursor/mcp.json", `{"mcpServers":{"a":{"command":"a\\\""}},"z":1e400}`},
	"tabs":             {"cursor", ".cursor/mcp.json", "{\n\t\"z\": 1.0,\n\t\"mcpServers\": {\n\t\t\"a\": {}\n\t},\n\t\"a\": \"\\u003c\"\n}\n"},
	"CRLF":             {"cursor", ".cursor/mcp.json", "{\r\n  \"mcpServers\": {\r\n  }\r\n}\r\n"},
	"an entry of ours": {"cursor", ".cursor/mcp.json", `{"mcpServers": {"palyra": {"command": "/old/palyra", "args": ["mcp", "serve"], "env": {"A": "b"}}}}`},
	"user of claude":   {"claude --own-tools-off", ".claude.json", "{\n  \"numStartups\": 7,\n  \"projects\": {\"/p\": {\"mcpServers\": {}}}\n}"},
	"rights":           {"claude --own-tools-off", ".claude/settings.json", "{\"permissions\": {\"deny\": [\"Bash\", \"WebFetch\"], \"allow\": []}, \"model\": \"x\"}\n"},
	"hooks":            {"claude --hook --policy p --own-tools-off", ".claude/settings.json", "{\n  \"hooks\": {\n    \"PreToolUse\": [\n      {\"matcher\": \"Bash\", \"hooks\": [{\"type\": \"command\", \"command\": \"mine\"}]}\n    ]\n  }\n}\n"},
	"other hooks":      {"claude --hook --policy p", ".claude/settings.json", "{\"hooks\": {\"Stop\": []}, \"permissions\": {\"allow\": []}}"},
	"no hooks":         {"claude --hook --policy p", ".claude/settings.json", "{}"},
	"empty hooks":      {"claude --hook --policy p", ".claude/settings.json", "{\n\t\"hooks\": {\n\t\t\"PreToolUse\": []\n\t}\n}\n"},
	"empty TOML":       {"codex --own-tools-off", ".codex/config.toml", ""},
	"TOML":             {"codex --own-tools-off", ".codex/config.toml", "# mine\nmodel = 'x'\n[mcp_servers.a]\ncommand = \"a\" # b\n"},
	"TOML, features":   {"codex --own-tools-off", ".codex/config.toml", "[features] # f\nweb = true\n\n[tui]\nx = \"\"\"\n[features]\n\"\"\""},
	"TOML, shell off":  {"codex --own-tools-off", ".codex/config.toml", "[features]\nshell_tool = false"},
}

// TestThereAndBack: setup twice is setup once, nothing of the user's is lost, and undo gives
// back the same bytes, modes and files.
func TestThereAndBack(t *testing.T) {
	for name, c := range texts {
		home := t.TempDir()
		path := filepath.Join(home, c.name)
		write(t, path, c.text)
		before := files(t, home)
		status, dry, errs := try(t, home, "setup "+c.line+" --dry-run")
		if status != 0 || !strings.Contains(dry, "+ ") || !strings.Contains(dry, "nothing was written") || read(t, path) != c.text || len(files(t, home)) != len(before) {
			t.Errorf("%s, dry: status %d, %s%s", name, status, dry, errs)
		}
		status, out, errs := try(t, home, "setup "+c.line)
		once := read(t, path)
		if status != 3 || once == c.text || !strings.HasPrefix(out, strings.TrimSuffix(dry, "nothing was written\n")) || read(t, path+kept) != c.text {
			t.Fatalf("%s: status %d, %s%s%s", name, status, out, errs, once)
		}
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
		if status, out, _ := try(t, home, "setup "+c.line); status != 3 || read(t, path) != once || !strings.HasPrefix(out, "unchanged: ") {
			t.Errorf("%s, again: status %d, %s", name, status, out)
		}
		if status, _, errs := try(t, home, "setup "+c.line+" --workspace src"); status != 3 || read(t, path+kept) != c.text {
			t.Errorf("%s, another workspace: status %d, %s", name, status, errs)
		}
		if status, _, errs := try(t, home, "setup "+strings.TrimSuffix(c.line, " --own-tools-off")+" --undo"); status != 0 || read(t, path) != c.text {
			t.Errorf("%s, undone: status %d, %s%q, want %q", name, status, errs, read(t, path), c.text)
		}
		if after := files(t, home); strings.Join(after, " ") != strings.Join(before, " ") {
			t.Errorf("%s: %q is left, there was %q", name, after, before)
		}
		if status, _, errs := try(t, home, "setup "+c.line+" --undo"); status != 1 || !strings.Contains(errs, "no file has a backup") {
			t.Errorf("%s, undone twice: status %d, %s", name, status, errs)
		}
	}
}

// TestUndoKeepsLaterChanges: what the user or the agent wrote since stays.
func TestUndoKeepsLaterChanges(t *testing.T) {
	home := t.TempDir()
	user, rights, codex := filepath.Join(home, ".claude.json"), filepath.Join(home, ".claude/settings.json"), filepath.Join(home, ".codex/config.toml")
	write(t, user, "{\n  \"a\": 1\n}\n")
	write(t, rights, `{"permissions": {"allow": ["mcp__palyra"]}}`)
	write(t, codex, "model = \"x\"\n")
	for _, line := range []string{"setup claude --own-tools-off", "setup codex --own-tools-off"} {
		if status, _, errs := try(t, home, line); status != 3 {
			t.Fatalf("%s: status %d, %s", line, status, errs)
		}
	}
	write(t, user, strings.Replace(read(t, user), `"a": 1`, `"a": 2, "b": {"mcpServers": {}}`, 1))
	write(t, rights, strings.Replace(read(t, rights), `"deny": [`, `"deny": ["WebFetch", `, 1))
	write(t, codex, "# new\n"+read(t, codex)+"[tui]\nx = 1\n")
	for _, line := range []string{"setup claude --undo", "setup codex --undo"} {
		if status, _, errs := try(t, home, line); status != 0 {
			t.Fatalf("%s: status %d, %s", line, status, errs)
		}
	}
	for path, want := range map[string]string{user: "{\n  \"a\": 2, \"b\": {\"mcpServers\": {}}\n}\n", codex: "# new\nmodel = \"x\"\n[tui]\nx = 1\n"} {
		if got := read(t, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var got struct {
		Permissions map[string][]string
	}
	if err := json.Unmarshal([]byte(read(t, rights)), &got); err != nil || strings.Join(got.Permissions["allow"], " ") != "mcp__palyra" || strings.Join(got.Permissions["deny"], " ") != "WebFetch" {
		t.Errorf("%v, %s", err, read(t, rights))
	}
}

// TestHookBesideServer: setup of one leaves the other, and undo takes out both.
func TestHookBesideServer(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, ".claude/settings.json")
	write(t, path, "{\n  \"model\": \"x\"\n}\n")
	for _, line := range []string{"setup claude", "setup claude --hook --workspace src", "setup claude", "setup claude --hook --policy p --mode rw --own-tools-off"} {
		if status, _, errs := try(t, home, line); status != 3 {
			t.Fatalf("%s: status %d, %s", line, status, errs)
		}
	}
	var got struct {
		Permissions map[string][]string
		Hooks       map[string][]struct {
			Matcher string
			Hooks   []struct{ Command string }
		}
	}
	err := json.Unmarshal([]byte(read(t, path)), &got)
	if h := got.Hooks["PreToolUse"]; err != nil || strings.Join(got.Permissions["allow"], " ") != "mcp__palyra" || got.Permissions["deny"] != nil || len(h) != 1 || h[0].Matcher != "*" ||
		!strings.HasPrefix(h[0].Hooks[0].Command, "palyra hook claude --policy /") || !strings.HasSuffix(h[0].Hooks[0].Command, " --mode rw --refuse Edit --refuse Write --refuse NotebookEdit || exit 2") {
		t.Errorf("%v, %s", err, read(t, path))
	}
	if status, _, errs := try(t, home, "setup claude --undo"); status != 0 || read(t, path) != "{\n  \"model\": \"x\"\n}\n" || len(files(t, home)) != 1 {
		t.Errorf("status %d, %s, %q", status, errs, files(t, home))
	}
}

// TestRefuses: a file that setup can't edit is named, and nothing at all is written.
func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		line, name, text string
		status           int
		want             string
	}{
		"no JSON":           {"claude", ".claude/settings.json", "{\n  \"a\": 1,\n  // mine\n}", 78, "line 3: not JSON"},
		"an array":          {"cursor", ".cursor/mcp.json", "[]", 78, "not a JSON object"},
		"null":              {"cursor", ".cursor/mcp.json", "null", 78, "not a JSON object"},
		"a BOM":             {"cursor", ".cursor/mcp.json", "\ufeff{}", 78, "not JSON"},
		"two objects":       {"cursor", ".cursor/mcp.json", "{} {}", 78, "not JSON"},
		"a member twice":    {"cursor", ".cursor/mcp.json", `{"mcpServers": {}, "mcpServers": {}}`, 78, "stands twice"},
		"servers no object": {"cursor", ".cursor/mcp.json", `{"mcpServers": []}`, 78, "is no object"},
		"another palyra":    {"cursor", ".cursor/mcp.json", `{"mcpServers": {"palyra": {"command": "x", "args": ["y"]}}}`, 78, "didn't enter"},
		"rights no array":   {"claude", ".claude/settings.json", `{"permissions": {"allow": "all"}}`, 78, "no array"},
		"no TOML":           {"codex", ".codex/config.toml", "a = 1\nb = \n", 78, "line 2: not TOML"},
		"TOML's palyra":     {"codex", ".codex/config.toml", "[mcp_servers.palyra]\ncommand = \"x\"\n", 78, "didn't enter"},
		"shell tool on":     {"codex --own-tools-off", ".codex/config.toml", "[features]\nshell_tool = true\n", 78, "features.shell_tool"},
		"inline features":   {"codex --own-tools-off", ".codex/config.toml", "features = {a = true}\n", 78, "with a line [features]"},
		"lines behind ours": {"codex", ".codex/config.toml", tomlBegin + "[mcp_servers.palyra]\ncommand = \"x\"\n" + tomlEnd + "env = {A = \"b\"}\n", 78, "count to its table"},
		"codex's project":   {"codex --project", "x", "", 2, "its user's"},
		"cursor's tools":    {"cursor --own-tools-off", "x", "", 2, "no setting"},
		"hooks no array":    {"claude --hook --policy p", ".claude/settings.json", `{"hooks": {"PreToolUse": {}}}`, 78, "no array"},
		"hooks no object":   {"claude --hook --policy p", ".claude/settings.json", `{"hooks": []}`, 78, "is no object"},
		"hooks off":         {"claude --hook --policy p", ".claude/settings.json", `{"disableAllHooks": true}`, 78, "disableAllHooks"},
		"hooks off here":    {"claude --hook --policy p", ".claude/settings.local.json", `{"disableAllHooks": "yes"}`, 78, "disableAllHooks"},
		"codex's hook":      {"codex --hook --policy p", "x", "", 2, "no hook of codex"},
		"a hook of nothing": {"claude --hook", "x", "", 2, "--hook wants"},
		"no such agent":     {"emacs", "x", "", 2, "no agent"},
	} {
		home := t.TempDir()
		write(t, filepath.Join(home, c.name), c.text)
		status, _, errs := try(t, home, "setup "+c.line)
		if got := files(t, home); status != c.status || !strings.Contains(errs, c.want) || len(got) != 1 || read(t, filepath.Join(home, c.name)) != c.text {
			t.Errorf("%s: status %d, %q, files %q", name, status, errs, got)
		}
		if c.status == 78 && !strings.Contains(errs, filepath.Join(home, c.name)) {
			t.Errorf("%s: the file isn't named: %q", name, errs)
		}
	}
}

// TestLinks: setup follows no link out of its folder, and replaces none.
func TestLinks(t *testing.T) {
	for name, plant := range map[string]func(home, outside string) error{
		"the folder": func(home, outside string) error { return os.Symlink(outside, home+"/.cursor") },
		"the file": func(home, outside string) error {
			return errors.Join(os.Mkdir(home+"/.cursor", 0o700), os.Symlink(outside+"/mcp.json", home+"/.cursor/mcp.json"))
		},
		"the backup": func(home, outside string) error {
			return errors.Join(os.Mkdir(home+"/.cursor", 0o700), os.Symlink(outside+"/mcp.json", home+"/.cursor/mcp.json"+kept))
		},
		"a folder for the file": func(home, _ string) error { return os.MkdirAll(home+"/.cursor/mcp.json", 0o700) },
	} {
		home, outside := t.TempDir(), t.TempDir()
		write(t, filepath.Join(outside, "mcp.json"), "{}")
		if err := plant(home, outside); err != nil {
			t.Fatal(err)
		}
		before := files(t, home)
		status, _, errs := try(t, home, "setup cursor")
		if got := files(t, outside); status != 78 || !strings.Contains(errs, ".cursor/mcp.json") || read(t, outside+"/mcp.json") != "{}" || len(got) != 1 || len(files(t, home)) != len(before) {
			t.Errorf("%s: status %d, %q, %q", name, status, errs, got)
		}
	}
}

// TestChangedMeanwhile: an agent that writes its file between look and replacement loses
// nothing.
func TestChangedMeanwhile(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, ".cursor/mcp.json")
	write(t, path, "{}")
	f, err := openFile(home, ".cursor/mcp.json", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, `{"new": 1}`)
	if err := errors.Join(f.write([]byte("{}"), true), f.restore(nil)); err == nil || strings.Count(err.Error(), "changed meanwhile") != 2 || read(t, path) != `{"new": 1}` {
		t.Errorf("%v, %s", err, read(t, path))
	}
}

// TestProject: the files of the working directory, and a user's home that doesn't matter.
func TestProject(t *testing.T) {
	home, project := t.TempDir(), t.TempDir()
	t.Chdir(project)
	if status, _, errs := try(t, home, "setup claude --project --workspace src"); status != 3 || len(files(t, home)) != 0 {
		t.Errorf("status %d, %s, %q", status, errs, files(t, home))
	}
	var got struct {
		MCPServers map[string]server
	}
	err := json.Unmarshal([]byte(read(t, ".mcp.json")), &got)
	if e := got.MCPServers["palyra"]; err != nil || e.Command != "palyra" || strings.Join(e.Args, " ") != "mcp serve --workspace src --staged --socket /nowhere.sock" {
		t.Errorf("%v, %+v", err, e)
	}
	if status, _, errs := try(t, home, "setup claude --project --undo"); status != 0 || len(files(t, project)) != 0 {
		t.Errorf("undone: status %d, %s, %q", status, errs, files(t, project))
	}
}

// FuzzJSON: putting in and taking out gives a text that says the same, and what is put in
// can be read back.
func FuzzJSON(f *testing.F) {
	for _, c := range texts {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(`{"mcpServers":{"palyra":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		j := jsonText(b)
		if j.check() != nil || j.value(entryPath) != nil {
			return
		}
		s := server{"p", []string{"mcp", "serve"}}
		with, err := j.put(entryPath, s)
		if err != nil {
			return
		}
		want, _ := json.Marshal(s)
		var compact bytes.Buffer
		if err := errors.Join(with.check(), json.Compact(&compact, with.value(entryPath))); err != nil || !bytes.Equal(compact.Bytes(), want) {
			t.Fatalf("%q: %v, %q", b, err, with)
		}
		back, err := (&target{server: true}).without(with, b)
		if err != nil || !sameJSON(back, b) {
			t.Fatalf("%q: %v, %q", b, err, back)
		}
		if with, err := withHook(j, hookCommand("p", []string{"a b"}, true)); err == nil && !bytes.Contains(b, []byte("exit")) {
			if back, err := withoutHook(with, b); err != nil || !sameJSON(back, b) {
				t.Fatalf("%q: %v, %q", b, err, back)
			}
		}
	})
}

// FuzzTOML is FuzzJSON for TOML.
func FuzzTOML(f *testing.F) {
	for _, c := range texts {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		with, err := withTOML(b, server{"p", []string{"mcp", "serve"}}, true)
		if err != nil {
			return
		}
		if back, err := withoutTOML(with); err == nil && !(&target{toml: true}).same(back, b) {
			t.Fatalf("%q: %q", b, back)
		}
	})
}

func TestAddWorkspace(t *testing.T) {
	const made = opening + "\n[policy]\ndir = \"/p\"\n\n[listen]\nhttp = \"127.0.0.1:0\" # any port: palyra console open\n\n[workspaces.a]\npath = \"/x/a\"\nstaged = true\n"
	for _, c := range []struct {
		name, text, dir string
		direct          bool
		want, workspace string // want "=" is text
	}{
		{"first", "", "/x/a", false, made, "a"},
		{"known", made, "/x/a", false, "=", "a"},
		{"known by another name", "[workspaces.other]\npath = '/x/a/'", "/x/a", true, "=", "other"},
		{"inline", "workspaces = {b = {path = \"/x/a\"}}", "/x/a", false, "=", "b"},
		{"taken", made, "/y/a", false, made + "\n[workspaces.a-2]\npath = \"/y/a\"\nstaged = true\n", "a-2"},
		{"direct", "# mine", "/y/B c", true, "# mine\n\n[workspaces.b-c]\npath = \"/y/B c\"\nread_only = false\n", "b-c"},
		{"no letters", "# mine\n", "/y/…", false, "# mine\n\n[workspaces.project]\npath = \"/y/…\"\nstaged = true\n", "project"},
		{"long", "# mine\n", "/" + strings.Repeat("x", 40), true, "# mine\n\n[workspaces." + strings.Repeat("x", 28) + "]\npath = \"/" + strings.Repeat("x", 40) + "\"\nread_only = false\n", strings.Repeat("x", 28)},
		{"quotes", "# mine\n", "/y/\"\n\x7f<", true, "# mine\n\n[workspaces.project]\npath = \"/y/\\\"\\n\\u007f\\u003c\"\nread_only = false\n", "project"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == "=" {
				c.want = c.text
			}
			k := &kit{dir: c.dir, caches: []string{"home"}, mounts: []string{"/opt/\"x"}}
			if c.want != c.text {
				i := strings.LastIndex(c.want, "[workspaces.")
				c.want = c.want[:i] + entered + c.want[i:] + "own_path = true\nnetwork = \"loopback\"\ntimeout = \"10m\"\ncpu = \"20m\"\nmemory = \"4GiB\"\npids = 1024\ncaches = [\"home\"]\nmounts = [\"/opt/\\\"x\"]\n"
			}
			got, name, err := addWorkspace([]byte(c.text), "/p", k, c.dir, !c.direct)
			if err != nil || name != c.workspace || string(got) != c.want {
				t.Errorf("workspace %q, %v, text\n%s\nwant %q\n%s", name, err, got, c.workspace, c.want)
			}
			want := c.text
			if c.want != c.text {
				if want == "" {
					want = strings.TrimSuffix(c.want[:strings.Index(c.want, entered)], "\n")
				} else if !strings.HasSuffix(want, "\n") {
					want += "\n"
				}
			}
			more := string(got) + "\n[workspaces.next]\npath = \"/z\"\n"
			if back, err := withoutWorkspace(got, c.dir); err != nil || string(back) != want {
				t.Errorf("taken out, %v, text\n%s\nwant\n%s", err, back, want)
			}
			if back, err := withoutWorkspace([]byte(more), c.dir); err != nil || c.want != c.text && string(back) != want+"\n[workspaces.next]\npath = \"/z\"\n" {
				t.Errorf("taken out of the middle, %v, text\n%s", err, back)
			}
		})
	}
	for _, c := range []struct{ text, dir string }{{"[oops", "/x"}, {"[[workspaces]]\npath = \"/b\"", "/x"}, {"# mine", "/x\xff"}} {
		if got, _, err := addWorkspace([]byte(c.text), "/p", &kit{dir: c.dir}, c.dir, true); err == nil {
			t.Errorf("%q became\n%s", c.text, got)
		}
	}
}
