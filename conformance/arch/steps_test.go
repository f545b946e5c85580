package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/call"
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
	c := &native.Cell{Spec: specimen(), Filter: make([]byte, 8), Root: true, Quiet: true, Counted: true, Core: 1, LastCap: lastCap, Ignored: []int{13}, Masked: native.Masked(),
		Mounts:   []native.Attach{{Label: "tmp", Path: "/tmp"}, {Label: "shm", Path: "/dev/shm"}, {Label: "workspace", Path: native.WorkspaceDir}},
		Operands: []native.Operand{{Path: "names.txt"}}}
	c.Mounts = append(c.Mounts, native.Attach{Label: "pts", Path: "/dev/pts"}, native.Attach{Label: "tty", Path: "/dev/tty"})
	c.Mounts = append(c.Mounts, native.Attach{Label: "roots", Path: isolate.RootsDir})
	c.Bundles = []string{"/etc/ssl/certs/ca-certificates.crt"}
	c.FDs.Script, c.Spec.Network, c.Spec.TTY = script, isolate.NetworkLoopback, new(call.TTY)
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
	p := &rlimit.Process{Spec: specimen(), Filter: make([]byte, 8), Quiet: true, Privileged: true, Root: true, UID: 1000, GID: 1000, LastCap: lastCap,
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

// stepTable prints rows, with those that belong together in one line. A run of rows that the
// tape printed before has as well is a reference to it.
func stepTable(rows, before []row) string {
	var b strings.Builder
	b.WriteString("| | step | why, and why here |\n|--:|---|---|\n")
	for i, n := 0, 0; i < len(rows); i += n {
		var from int
		if from, n = common(rows[i:], before); n > 0 {
			fmt.Fprintf(&b, "| %s | as %s of tier C | |\n", numbers(rows, i, n), numbers(before, from, n))
			continue
		}
		n = belong(rows[i:])
		r := rows[i]
		line := "`" + r.line + "`"
		if r.n > 1 {
			line += fmt.Sprintf(" and %d more", r.n-1)
		}
		for _, next := range rows[i+1 : i+n] {
			if !label.MatchString(next.line) {
				next.line = next.call
			}
			line += ", `" + next.line + "`"
			if next.why != r.why && unnamed(next) == unnamed(r) {
				r.why = unnamed(r)
			}
		}
		if r.indent {
			line = "↳ " + line
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", numbers(rows, i, n), line, r.why)
	}
	return b.String()
}

// numbers are those of the steps in n rows from the i-th on.
func numbers(rows []row, i, n int) string {
	first, last := 1, 0
	for k, r := range rows[:i+n] {
		if last += r.n; k < i {
			first += r.n
		}
	}
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d–%d", first, last)
}

// common finds the longest run in other that rows begin with.
func common(rows, other []row) (from, n int) {
	for i := range other {
		k := 0
		for k < len(rows) && i+k < len(other) && rows[k] == other[i+k] {
			k++
		}
		if k > n {
			from, n = i, k
		}
	}
	return from, n
}

// belong returns how many rows stand in one line: those from the opening of a descriptor to
// its close, or those whose reasons differ in a name alone.
func belong(rows []row) int {
	_, slot, opens := strings.Cut(rows[0].line, " -> $")
	for i, r := range rows[1:] {
		if !opens || !strings.Contains(r.line, "$"+slot) {
			break
		}
		if r.call == "close" {
			return i + 2
		}
	}
	n := 1
	for n < len(rows) && rows[n].indent == rows[0].indent && unnamed(rows[n]) == unnamed(rows[0]) {
		n++
	}
	return n
}

// label is the name of a descriptor or a value in a printed step.
var label = regexp.MustCompile(`fd:([a-z]+)|([a-z]+)\{`)

// unnamed is the reason of a row without the label that its step has: "bound it", not "bound
// cpu".
func unnamed(r row) string {
	m := label.FindStringSubmatch(r.line)
	if m == nil {
		return r.why
	}
	return regexp.MustCompile(`\b`+m[1]+m[2]+`\b`).ReplaceAllString(r.why, "it")
}

// TestStepTables prints the tapes into the document, so that no step of a cell
// goes unnamed there. conformance/trace compares them with what strace sees.
func TestStepTables(t *testing.T) {
	const name = "docs/CELL.md"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	c, b := rowsC(), rowsB()
	for _, r := range slices.Concat(c, b) {
		if r.why == "" {
			t.Errorf("step %s has no reason", r.line)
		}
	}
	body := stepTable(c, nil)
	for i, r := range scripted() {
		if r.line != c[i].line {
			body += fmt.Sprintf("\nA script makes it `%s` (%s) instead of `%s`.\n", r.line, r.why, c[i].line)
		}
	}
	doc = between(t, doc, "steps of tier C", body)
	golden(t, name, between(t, doc, "steps of tier B", stepTable(b, c)))
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
			if strings.HasPrefix(r.line, "prlimit64(0, 7,") {
				// The limit of descriptors: the table is still palyra-cell's.
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
