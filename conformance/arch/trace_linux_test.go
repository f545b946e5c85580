package arch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// task is what strace -ff saw of one thread.
type task struct {
	pid   int
	calls []string // names, in order
	lines []string
	kids  []kid
}

type kid struct {
	pid    int
	thread bool
}

var (
	callLine = regexp.MustCompile(`^([a-z0-9_]+)\(`)
	// With --decode-pids=pidns strace adds its own view of a PID in a namespace.
	outer = regexp.MustCompile(`= \d+ /\* (\d+) in strace's PID NS \*/$`)
	plain = regexp.MustCompile(`= (\d+)$`)
)

// TestTrace runs a call under strace and holds what it sees to the documents:
// the processes of the cell make the steps of the printed tape in that order
// and no other before the program runs, and every system call of palyra-cell is
// named in CELL.md.
func TestTrace(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace: ", err)
	}
	// Built here, so that it cannot look at old ones.
	bin := t.TempDir()
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", bin+"/", "./cmd/palyra", "./cmd/palyra-cell", "./cmd/palyra-egress")
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the binaries: %v\n%s", err, out)
	}
	palyra, workspace := filepath.Join(bin, "palyra"), t.TempDir()
	if err := os.WriteFile(filepath.Join(workspace, "names.txt"), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The built-in policy asks about a call with hosts.
	policy := t.TempDir()
	if err := os.WriteFile(filepath.Join(policy, "all.cedar"), []byte("@id(\"all\") permit (principal, action, resource);\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		rows []row
		args []string
	}{
		{"tier c", rowsC(), []string{"--tier", "c", "--", "/bin/true"}},
		{"tier c with a workspace", rowsC(), []string{"--tier", "c", "--workspace", workspace + ":ro", "--", "/bin/cat", "names.txt"}},
		{"tier c with a staged workspace", rowsC(), []string{"--tier", "c", "--workspace", workspace + ":staged", "--", "/bin/cat", "names.txt"}},
		{"tier c with egress", rowsC(), []string{"--tier", "c", "--policy", policy, "--egress", "packages.example:443", "--", "/bin/true"}},
		{"tier b", rowsB(), []string{"--tier", "b", "--", "/bin/true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tasks := trace(t, strace, palyra, c.args)
			checkCell(t, tasks, c.rows)
			checkServer(t, tasks)
		})
	}
}

func trace(t *testing.T, strace, palyra string, args []string) map[int]*task {
	t.Helper()
	dir := t.TempDir()
	c := exec.Command(strace, slices.Concat([]string{"-ff", "-qq", "-s", "256", "--decode-pids=pidns", "-o", filepath.Join(dir, "t"),
		palyra, "exec", "--state", filepath.Join(dir, "state")}, args)...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("strace palyra exec %q: %v\n%s", args, err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "t.*"))
	if err != nil {
		t.Fatal(err)
	}
	tasks := make(map[int]*task)
	for _, name := range files {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(name), "."))
		if err != nil {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		k := &task{pid: pid}
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSpace(line)
			m := callLine.FindStringSubmatch(line)
			if m == nil || strings.HasPrefix(m[1], "syscall_0xffffffff") {
				continue // a signal, an exit, or a thread that was killed where it has no number of a call
			}
			k.calls, k.lines = append(k.calls, m[1]), append(k.lines, line)
			if m[1] != "clone" && m[1] != "clone3" && m[1] != "vfork" && m[1] != "fork" {
				continue
			}
			got := outer.FindStringSubmatch(line)
			if got == nil {
				got = plain.FindStringSubmatch(line)
			}
			if got != nil {
				n, _ := strconv.Atoi(got[1])
				k.kids = append(k.kids, kid{n, strings.Contains(line, "CLONE_THREAD")})
			}
		}
		tasks[pid] = k
	}
	return tasks
}

// checkCell holds the reaper and the program's process to the printed steps.
func checkCell(t *testing.T, tasks map[int]*task, rows []row) {
	t.Helper()
	var outside, inside []row
	for _, r := range rows {
		if r.indent {
			inside = append(inside, r)
		} else {
			outside = append(outside, r)
		}
	}
	threads := make(map[int]bool) // palyra-egress has Landlock rules for each of its own
	for _, k := range tasks {
		for _, kid := range k.kids {
			threads[kid.pid] = threads[kid.pid] || kid.thread
		}
	}
	reaper, program := 0, 0
	for _, k := range tasks {
		if i := slices.Index(k.calls, "execveat"); i >= 0 {
			program++
			follows(t, "program", k.calls[:i+1], inside)
			continue
		}
		if slices.Contains(k.calls, "landlock_restrict_self") && !threads[k.pid] && !slices.Contains(k.calls, "execve") {
			reaper++
			calls := k.calls
			// The step called init: reap until the program has ended, then end.
			for len(calls) > 0 && slices.Contains([]string{"wait4", "waitid", "exit", "exit_group", "futex", "kill"}, calls[len(calls)-1]) {
				calls = calls[:len(calls)-1]
			}
			follows(t, "reaper", calls, outside)
			resets(t, k.lines)
		}
	}
	if reaper != 1 || program != 1 {
		t.Errorf("saw %d reapers and %d programs, want one of each", reaper, program)
	}
}

var reset = regexp.MustCompile(`^rt_sigaction\((\w+), \{sa_handler=SIG_DFL,`)

// resets wants every signal that is reset to be reset to its default, and once. Which
// they are is for what palyra-cell was started with: none from a shell, SIGHUP
// under nohup(1).
func resets(t *testing.T, lines []string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, line := range lines {
		if !strings.HasPrefix(line, "rt_sigaction(") {
			continue
		}
		m := reset.FindStringSubmatch(line)
		if m == nil || seen[m[1]] {
			t.Errorf("%s: want each signal at most once, and its default", line)
			continue
		}
		seen[m[1]] = true
	}
}

// follows wants calls to be steps of rows in order; a row may be absent (what
// this call did not need) or repeated as often as it says, or more.
func follows(t *testing.T, who string, calls []string, rows []row) {
	t.Helper()
	at := 0
	for i, c := range calls {
		j := at
		for j < len(rows) && rows[j].call != c {
			j++
		}
		if j == len(rows) {
			t.Errorf("%s: call %d, %s, is no step of CELL.md after step %d", who, i+1, c, at)
			return
		}
		at = j
		if rows[j].n == 1 && c != "rt_sigaction" { // resets looks at those
			at++
		}
	}
}

var (
	fence = regexp.MustCompile("(?ms)^```.*?^```")
	code  = regexp.MustCompile("`[^`]+`")
)

// checkServer wants every system call of palyra-cell named in the document.
func checkServer(t *testing.T, tasks map[int]*task) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(root, "docs/CELL.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, c := range code.FindAllString(fence.ReplaceAllString(string(doc), ""), -1) {
		for _, w := range strings.FieldsFunc(c, func(r rune) bool { return !(r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }) {
			named[w] = true
		}
	}
	var cell *task
	for _, k := range tasks {
		for _, l := range k.lines {
			if strings.HasPrefix(l, "execve(") && strings.Contains(l, `palyra-cell"`) && strings.HasSuffix(l, "= 0") {
				cell = k
			}
		}
	}
	if cell == nil {
		t.Fatal(errors.New("no process executed palyra-cell"))
	}
	unnamed := make(map[string]string)
	start := slices.Index(cell.calls, "execve")
	for _, c := range cell.calls[start:] {
		unnamed[c] = "palyra-cell"
	}
	queue := slices.Clone(cell.kids)
	for len(queue) > 0 {
		k := tasks[queue[0].pid]
		thread := queue[0].thread
		queue = queue[1:]
		if k == nil || !thread {
			continue // the cell's own processes are held to the tape
		}
		queue = append(queue, k.kids...)
		for _, c := range k.calls {
			unnamed[c] = "a thread of palyra-cell"
		}
	}
	for c, who := range unnamed {
		if !named[c] {
			t.Errorf("%s calls %s, which docs/CELL.md does not name", who, c)
		}
	}
}
