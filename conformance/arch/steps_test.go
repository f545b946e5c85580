package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/native"
	"palyra/isolate/rlimit"
)

// specimen is the call whose tape is printed. Nothing that it holds is secret,
// and the printed tape shows no descriptor numbers.
func specimen() *isolate.Spec {
	return &isolate.Spec{Version: 1, Argv: []string{"sort", "names.txt"}, Env: []string{"LANG=C"}, Cwd: "/workspace",
		Limits: isolate.Limits{Wall: time.Minute, CPU: time.Minute, Memory: 512 << 20, PIDs: 64, Output: 1 << 20,
			FileSize: 64 << 20, OpenFiles: 256, Disk: 64 << 20, Inodes: 4096}}
}

const lastCap = 40 // CAP_CHECKPOINT_RESTORE, the last one of Linux 6.x

// row is one step of a tape, or a run of steps with the same reason.
type row struct {
	indent bool
	call   string
	line   string
	why    string
	n      int
}

// rowsC and rowsB return the steps of the two tapes for a call that has every
// optional part but a script, as palyra-cell under root makes it. scripted is
// the same call with one: the two differ in one step.
func rowsC() []row { return tapeC(-1) }

func scripted() []row { return tapeC(5) }

func tapeC(script int) []row {
	c := &native.Cell{Spec: specimen(), Filter: make([]byte, 8), Root: true, Counted: true, Core: 1, LastCap: lastCap, Ignored: []int{13},
		Mounts:   []native.Attach{{Label: "tmp", Path: "/tmp"}, {Label: "shm", Path: "/dev/shm"}, {Label: "workspace", Path: native.WorkspaceDir}},
		Operands: []native.Operand{{Path: "names.txt"}}}
	c.FDs.Script = script
	var rows []row
	for _, s := range native.Tape(c) {
		rows = add(rows, false, s.Call, s.String(), s.Why)
		for _, s := range s.Child {
			rows = add(rows, true, s.Call, s.String(), s.Why)
		}
	}
	return rows
}

func rowsB() []row {
	p := &rlimit.Process{Spec: specimen(), Filter: make([]byte, 8), Privileged: true, Root: true, UID: 1000, GID: 1000, LastCap: lastCap,
		Ignored: []int{13}, NProc: 65, Core: 1}
	p.FDs.Script = -1
	var rows []row
	for _, s := range rlimit.Tape(p) {
		rows = add(rows, false, s.Call, s.String(), s.Why)
		for _, s := range s.Child {
			rows = add(rows, true, s.Call, s.String(), s.Why)
		}
	}
	return rows
}

func add(rows []row, indent bool, call, line, why string) []row {
	if n := len(rows); n > 0 && rows[n-1].why == why && rows[n-1].call == call && rows[n-1].indent == indent {
		rows[n-1].n++
		return rows
	}
	// Digests of structures differ between kernels and filters; their labels do not.
	return append(rows, row{indent, call, line, why, 1})
}

func stepTable(rows []row) string {
	var b strings.Builder
	b.WriteString("| | step | why, and why here |\n|--:|---|---|\n")
	n := 0
	for _, r := range rows {
		n++
		num := fmt.Sprint(n)
		if r.n > 1 {
			num = fmt.Sprintf("%d–%d", n, n+r.n-1)
			n += r.n - 1
		}
		line := "`" + r.line + "`"
		if r.n > 1 {
			line += fmt.Sprintf(" and %d more", r.n-1)
		}
		if r.indent {
			line = "↳ " + line
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", num, line, r.why)
	}
	return b.String()
}

// TestStepTables prints the tapes into the document, so that no step of a cell
// goes unnamed there. conformance/trace compares them with what strace sees.
func TestStepTables(t *testing.T) {
	const name = "docs/ARCHITECTURE.md"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	for section, rows := range map[string][]row{"steps of tier C": rowsC(), "steps of tier B": rowsB()} {
		for _, r := range rows {
			if r.why == "" {
				t.Errorf("%s: step %s has no reason", section, r.line)
			}
		}
		body := stepTable(rows)
		if section == "steps of tier C" {
			for i, r := range scripted() {
				if r.line != rows[i].line {
					body += fmt.Sprintf("\nA script makes it `%s` (%s) instead of `%s`.\n", r.line, r.why, rows[i].line)
				}
			}
		}
		doc = between(t, doc, section, body)
	}
	golden(t, name, doc)
}

// before lists pairs of steps whose order is a rule of DESIGN §6: landlock
// forbids later mounts and needs no_new_privs, the filter forbids most of what
// precedes it, and credential changes clear the death signal.
var before = [][2]string{
	{"move_mount", "unshare"},
	{"unshare", "setresuid"},
	{"setresgid", "setresuid"},
	{"prlimit64", "capset"},
	{"setresuid", "capset"},
	{"capset", "landlock_restrict_self"},
	{"move_mount", "landlock_restrict_self"},
	{"landlock_restrict_self", "seccomp"},
	{"prlimit64 nofile", "seccomp"},
	{"seccomp", "execveat"},
	{"setsid", "execveat"},
	{"close_range", "execveat"},
}

// walked is what the program's process walks: the steps up to the clone that
// makes it, then its own.
func walked(rows []row) []row {
	var out []row
	cloned := false
	for _, r := range rows {
		if !cloned || r.indent {
			out = append(out, r)
		}
		cloned = cloned || r.call == "clone"
	}
	return out
}

// second gives a step another name that is made twice, for a reason of its own: as root a
// cell leaves the host's user before it has a user namespace, and the program has a
// Landlock domain within the cell's.
func second(tier string, r row) string {
	switch {
	case tier == "c" && strings.HasPrefix(r.call, "setres") && strings.Contains(r.line, "(id:"):
		return "leave " + r.call
	case strings.HasPrefix(r.line, "landlock_restrict_self(fd:fence"):
		return "fence"
	}
	return r.call
}

// TestOrder holds both tapes to the order of confinement.
func TestOrder(t *testing.T) {
	for tier, rows := range map[string][]row{"c": walked(rowsC()), "b": walked(rowsB())} {
		last, first := make(map[string]int), make(map[string]int)
		nnp := false
		for i, r := range rows {
			if strings.HasSuffix(r.line, "[may fail]") { // tries what a step forbids
				continue
			}
			if strings.HasPrefix(r.line, "prlimit64(0, 7,") { // of descriptors: the table is still palyra-cell's
				r.call = "prlimit64 nofile"
			}
			r.call = second(tier, r)
			if _, ok := first[r.call]; !ok {
				first[r.call] = i
			}
			last[r.call] = i
			if strings.HasPrefix(r.line, "prctl(0x26, 1") { // PR_SET_NO_NEW_PRIVS
				nnp = true
			}
			if (r.call == "landlock_restrict_self" || r.call == "seccomp") && !nnp {
				t.Errorf("tier %s: %s without no_new_privs", tier, r.call)
			}
		}
		for _, p := range before {
			a, okA := last[p[0]]
			b, okB := first[p[1]]
			if okA && okB && a > b {
				t.Errorf("tier %s: %s (row %d) comes after %s (row %d)", tier, p[0], a+1, p[1], b+1)
			}
		}
		for _, must := range []string{"prlimit64", "capset", "landlock_restrict_self", "seccomp", "close_range", "setsid", "execveat"} {
			if _, ok := first[must]; !ok {
				t.Errorf("tier %s: no %s step", tier, must)
			}
		}
		if got := rows[len(rows)-1].call; got != "execveat" {
			t.Errorf("tier %s: the last step is %s, want execveat", tier, got)
		}
	}
}
