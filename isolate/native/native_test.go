package native

import (
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
)

func cell(mod func(*Cell)) *Cell {
	c := &Cell{
		Spec: &isolate.Spec{Version: 1, Argv: []string{"prog", "secret-arg"}, Env: []string{"TOKEN=secret-value"}, Cwd: WorkspaceDir,
			Limits: isolate.Limits{Wall: time.Minute, CPU: time.Second, Memory: 1 << 20, PIDs: 5, Output: 1, FileSize: 9, OpenFiles: 77, Disk: 1, Inodes: 1}},
		FDs:     steps.FDs{Stdin: 64, Stdout: 65, Stderr: 66, Script: -1, Exec: 67, Status: 68, Gate: 69},
		Ruleset: 70, Fence: 73, Counted: true, UID: 0x70000001, GID: 0x70000001, Filter: make([]byte, 80), Cookie: 0x1122334455667788, LastCap: 40,
		Mounts: []Attach{{"tmp", 71, "/tmp"}, {"workspace", 72, WorkspaceDir}}, Cwd: 72,
	}
	if mod != nil {
		mod(c)
	}
	return c
}

// flat lists the calls in the order in which the program's process meets them.
func flat(t sys.Tape) (out []sys.Step) {
	for _, s := range t {
		out = append(out, s)
		if s.Child != nil {
			return append(out, flat(s.Child)...)
		}
	}
	return out
}

// index returns where the nth step whose text starts with prefix stands.
func index(t *testing.T, steps []sys.Step, prefix string) int {
	t.Helper()
	i := slices.IndexFunc(steps, func(s sys.Step) bool { return strings.HasPrefix(s.String(), prefix) })
	if i < 0 {
		t.Fatalf("no step %q", prefix)
	}
	return i
}

func last(steps []sys.Step, prefix string) int {
	n := -1
	for i, s := range steps {
		if strings.HasPrefix(s.String(), prefix) {
			n = i
		}
	}
	return n
}

// resourceLimits are those that every cell has.
var resourceLimits = [...]string{"cpu", "fsize", "data", "stack", "core", "nproc", "nofile", "memlock", "sigpending", "msgqueue", "nice", "rtprio"}

// The order of confinement is DESIGN.md's and STYLE 33's. Each pair is a rule
// that the kernel, or safety, needs.
func TestOrder(t *testing.T) {
	for _, root := range []bool{false, true} {
		all := flat(Tape(cell(func(c *Cell) {
			c.Root, c.Ignored = root, []int{13, 17}
			c.Operands = []Operand{{FD: 80, Path: "in.txt"}}
			c.Mounts = append(c.Mounts, Attach{"roots", 81, isolate.RootsDir})
			c.Bundles = []string{"/etc/ssl/certs/a.crt"}
		})))
		for _, r := range [][3]string{ // what is tried stands right behind what forbids it
			{"setresuid(0x3e8", "unshare(0x10000000) -> $again", "prctl(0x1c, 0xef"},
			{"capset(", "prctl(0x1b", "prctl(0x26"},
			{"close($before", "landlock_restrict_self(", "openat2(fd:outside, \".\", how{O_RDONLY}, 0x18) -> $after"},
			{"openat2(fd:outside, \".\", how{O_RDONLY}, 0x18) -> $after", "prlimit64(0, 7", "seccomp("},
		} {
			if a, b, c := index(t, all, r[0]), index(t, all, r[1]), index(t, all, r[2]); a >= b || b >= c {
				t.Errorf("root %v: %q at %d, %q at %d, %q at %d", root, r[0], a, r[1], b, r[2], c)
			}
		}
		s := slices.DeleteFunc(all, func(s sys.Step) bool { return s.MayFail })
		for _, r := range []struct{ before, after, why string }{
			{"fsopen(", "unshare(", "proc belongs to the PID namespace's owner"},
			{"move_mount(", "unshare(", "the cell's user namespace must not own its mounts"},
			{"move_mount(fd:roots", "open_tree(-100, \"" + isolate.RootsFile, "the file lies in that mount"},
			{"move_mount($bundle", "unshare(", "the bundles are covered while we may mount"},
			{"openat2($workspace", "unshare(", "operands are covered while we may mount"},
			{"move_mount(", "fchdir(", "the working directory is a mount's, not what it covers"},
			{"sethostname(", "unshare(", "the cell's user namespace must not own its host name"},
			{"unshare(", "write(fd:status, mark{U}", "the maps are written to the new namespace"},
			{"unshare(", "openat2(-100, \"" + NestedLimit, "opened before, it is the host's limit"},
			{"write($nested", "capset(", "the limit needs CAP_SYS_RESOURCE of the new namespace"},
			{"write(fd:status, mark{U}", "setresuid(0x3e8", "the id exists once it is mapped"},
			{"setresgid(0x3e8", "setresuid(0x3e8", "a group cannot be changed by a user without capabilities"},
			{"setresuid(0x3e8", "prctl(0x1c, 0xef", "securebits need CAP_SETPCAP of the new namespace, kept by the change of user"},
			{"unshare(", "prlimit64(", "earlier, the limit of processes would count those of palyra-cell's user, too (set_userns_rlimit_max)"},
			{"setresuid(0x3e8", "prlimit64(", "the number of processes is the program's user's"},
			{"prlimit64(0, 6", "prctl(0x1c, 0xef", "limits before capabilities"},
			{"prlimit64(0, 2", "prctl(0x18", "limits before capabilities"},
			{"prlimit64(", "seccomp(", "the limit of descriptors is for the program's"},
			{"prctl(0x18", "capset(", "dropping from the bounding set needs CAP_SETPCAP"},
			{"capset(", "prctl(0x26", "no_new_privs after the capabilities"},
			{"prctl(0x26", "landlock_restrict_self(fd:ruleset", "landlock requires no_new_privs"},
			{"setresuid(0x3e8", "prctl(1, 9", "a credential change clears the death signal"},
			{"landlock_restrict_self(fd:ruleset", "rt_sigprocmask(", "signals after landlock"},
			{"rt_sigprocmask(", "seccomp(", "the filter comes last"},
			{"rt_sigaction(", "seccomp(", "the filter comes last"},
			{"umask(", "seccomp(", "the filter comes last"},
			{"landlock_restrict_self(fd:ruleset", "seccomp(", "the filter comes last"},
			{"seccomp(", "clone(", "both processes are filtered"},
			{"fsopen(", "openat2(-100, \"" + IPCLimit, "the variables are found in the cell's own proc"},
			{"write($ipc", "unshare(", "they are the IPC namespace's owner's to write"},
			{"unshare(", "openat2(-100, \"" + instancesLimit, "opened before, it is the host's limit"},
			{"write($nested", "write(fd:status, mark{U}", "nothing else of the cell's uses inotify before"},
			{"clone(", "landlock_restrict_self(fd:fence", "the reaper is outside of the program's domain"},
			{"landlock_restrict_self(fd:fence", "getppid()", "it is tried after it is up"},
			{"landlock_restrict_self(fd:fence", "write(5, mark{G}", "the evidence is of what the program gets"},
			{"clone(", "setsid(", "the session is the program's"},
			{"setsid(", "dup3(", "descriptors of the program"},
			{"dup3(", "close_range(7", "nothing else stays open"},
			{"close_range(7", "write(5, mark{G}", "the evidence shows the final descriptors"},
			{"read(6", "execveat(", "nothing runs before the gate opens"},
		} {
			if a, b := last(s, r.before), index(t, s, r.after); a < 0 || a >= b {
				t.Errorf("root %v: %q at %d is not before %q at %d: %s", root, r.before, a, r.after, b, r.why)
			}
		}
		for prefix, want := range map[string]int{"unshare(": 1, "setresgid(0x3e8": 1, "setresuid(0x3e8": 1, "prlimit64(": len(resourceLimits), "prctl(0x1c, 0xef": 1,
			"prctl(0x18": 41, "prctl(0x2f, 4": 1, "capset(": 1, "prctl(0x26, 1": 1, "prctl(1, 9": 1, "landlock_restrict_self(fd:ruleset": 1, "landlock_restrict_self(fd:fence": 1,
			"rt_sigprocmask(2, set{empty}": 1, "rt_sigaction(": 2, "umask(0x12": 1, "seccomp(1": 1, "setsid(": 1, "execveat(": 1} {
			n := 0
			for _, step := range s {
				if strings.HasPrefix(step.String(), prefix) {
					n++
				}
			}
			if n != want {
				t.Errorf("root %v: %d steps %q, want %d", root, n, prefix, want)
			}
		}
		for _, name := range resourceLimits {
			if !slices.ContainsFunc(s, func(s sys.Step) bool { return s.Call == "prlimit64" && strings.Contains(s.String(), " "+name+"{") }) {
				t.Errorf("root %v: no limit of %s", root, name)
			}
		}
		if got := s[len(s)-1].Call; got != "execveat" {
			t.Errorf("the last step is %s, want execveat", got)
		}
		// A change of user or capabilities decides who may look into the memory of palyra-cell.
		if closed := last(s, "prctl(4, 0"); closed < last(s, "setresuid(") || closed < last(s, "capset(") {
			t.Errorf("root %v: the last prctl(4, 0) is step %d, before a change of user or capabilities", root, closed)
		}
		if root {
			if to := index(t, s, "setresuid(id:user"); s[to+1].String() != "prctl(4, 0, 0, 0, 0)" || to > index(t, s, "unshare(") {
				t.Errorf("the host's user is left in step %d, which is followed by %s", to, s[to+1])
			}
		}
		if groups := last(s, "setgroups("); root != (groups >= 0) || groups > index(t, s, "unshare(") {
			t.Errorf("root %v: setgroups at %d", root, groups)
		}
	}
}

// TestLoopback: the loopback interface is set up by a process that has its own network
// namespace and is still of the user who owns that, and what bounds its sockets is set before.
func TestLoopback(t *testing.T) {
	for _, root := range []bool{false, true} {
		s := flat(Tape(cell(func(c *Cell) { c.Root, c.Spec.Network = root, isolate.NetworkLoopback })))
		up := index(t, s, "ioctl($lo, 0x8914, ifreq{lo,UP})")
		if a, b, c := index(t, s, "fsopen("), index(t, s, "socket(2, 0x80002, 0) -> $lo"), index(t, s, "unshare("); a >= b || b >= up || up >= c || s[up+1].String() != "close($lo)" {
			t.Errorf("root %v: the interface is up in step %d, its socket made in step %d", root, up, b)
		}
		if set := last(s, "write($lo, lo{"); set < 0 || set >= up {
			t.Errorf("root %v: a variable is set in step %d, after the interface is up in %d", root, set, up)
		}
		if root && index(t, s, "setresuid(id:user") < up {
			t.Error("the user changes before the interface is up")
		}
		if n := len(Variables(&isolate.Spec{Network: isolate.NetworkLoopback}, true, true)) - len(Variables(&isolate.Spec{}, true, true)); n != len(Buffers) {
			t.Errorf("%d variables more are compared at the gate, want %d", n, len(Buffers))
		}
	}
	for _, s := range flat(Tape(cell(nil))) {
		if s.Call == "socket" || s.Call == "ioctl" {
			t.Errorf("%s in a cell without a network", s)
		}
	}
}

// The tape of a cell that was made ahead and its rest, one after the other, hold
// the same order, and the same confinement as the tape of a cold cell.
func TestWarmOrder(t *testing.T) {
	c := cell(nil)
	armed := Armed(c)
	c.FDs.Status, c.FDs.Gate = -1, -1
	rest := Rest(c)
	s := append(flat(armed), rest...)
	for _, r := range []struct{ before, after, why string }{
		{"capset(", "prctl(0x26", "no_new_privs after the capabilities"},
		{"landlock_restrict_self(fd:ruleset", "seccomp(", "the filter comes last"},
		{"seccomp(", "clone(", "both processes are filtered"},
		{"landlock_restrict_self(fd:fence", "write(fd:status, mark{A}", "the evidence is of what the program gets"},
		{"setsid(", "write(fd:status, mark{A}", "the evidence shows the session"},
		{"write(fd:status, mark{A}", "park(", "palyra-cell reads the evidence of a cell that waits"},
		{"park(", "close_range(fd:after", "nothing of a call is touched before there is one"},
		{"close_range(fd:after", "dup3(", "a table of its own, before a number in it changes"},
		{"dup3(", "close_range(5", "nothing else stays open"},
		{"close_range(5", "execveat(", "nothing of palyra-cell is open in the program"},
	} {
		if a, b := last(s, r.before), index(t, s, r.after); a < 0 || a >= b {
			t.Errorf("%q at %d is not before %q at %d: %s", r.before, a, r.after, b, r.why)
		}
	}
	if got := rest[0].String(); got != "close_range(fd:after, 0xffffffff, 2, 0, 0, secret:cookie)" {
		t.Errorf("the rest begins with %s: palyra-cell's own descriptors would be changed", got)
	}
	// Up to the split the two walk the same.
	cold := Tape(cell(nil))
	for i, s := range cold {
		if s.Child != nil {
			if armed[i].Child == nil || strings.Join(armed[:i].Lines(), "\n") != strings.Join(cold[:i].Lines(), "\n") {
				t.Errorf("a warm cell is confined by\n%s\na cold one by\n%s", armed[:i].Lines(), cold[:i].Lines())
			}
		}
	}
	for _, s := range append(flat(armed), rest...) {
		if s.Why == "" {
			t.Errorf("%s has no reason", s)
		}
		if strings.HasPrefix(s.String(), "dup3(fd:status") || strings.HasPrefix(s.String(), "dup3(fd:gate") {
			t.Errorf("%s: a warm cell has no gate", s)
		}
	}
	// Descriptors that a step before the split opens in palyra-cell's table are
	// closed before it.
	for _, name := range []string{"procfs", "proc", "nested", "ipc", "before"} {
		if index(t, flat(armed), "close($"+name+")") > index(t, flat(armed), "seccomp(") {
			t.Errorf("descriptor $%s stays open in palyra-cell", name)
		}
	}
}

// No step may fail without ending the child but those that must, which palyra-cell
// looks at.
func TestNoStepMayFail(t *testing.T) {
	for _, s := range flat(Tape(cell(nil))) {
		if s.MayFail && s.Out != steps.SlotNested && s.Out != steps.SlotAfter && s.Out != steps.SlotFenced {
			t.Errorf("%s may fail", s)
		}
		if s.Why == "" {
			t.Errorf("%s has no reason", s)
		}
	}
}

func TestTextHoldsNothingOfTheCall(t *testing.T) {
	text := strings.Join(Tape(cell(nil)).Lines(), "\n")
	for _, bad := range []string{"secret-arg", "secret-value", "1122334455667788"} {
		if strings.Contains(text, bad) {
			t.Errorf("the printed tape holds %q", bad)
		}
	}
}

func TestDigestTellsConfinementApart(t *testing.T) {
	base := Tape(cell(nil)).Digest()
	for name, c := range map[string]struct {
		mod  func(*Cell)
		same bool
	}{
		"other descriptors": {func(c *Cell) { c.FDs.Exec = 99; c.Ruleset = 98; c.Mounts[0].FD = 97 }, true},
		"other program":     {func(c *Cell) { c.Spec.Argv = []string{"other", "x"}; c.Cookie = 1 }, true},
		"other limit":       {func(c *Cell) { c.Spec.Limits.Memory++ }, false},
		"more processes":    {func(c *Cell) { c.Spec.Limits.PIDs++ }, false},
		"no tmp":            {func(c *Cell) { c.Mounts = c.Mounts[1:] }, false},
		"an operand":        {func(c *Cell) { c.Operands = []Operand{{90, "x"}} }, false},
		"other directory":   {func(c *Cell) { c.Spec.Cwd, c.Spec.CwdInode = "/workspace/x", "1:2" }, false},
		"as root":           {func(c *Cell) { c.Root = true }, false},
		"other user":        {func(c *Cell) { c.UID, c.GID = 7, 7 }, true},
		"a cgroup":          {func(c *Cell) { c.Counted = false }, false},
		"a network":         {func(c *Cell) { c.Spec.Network = isolate.NetworkLoopback }, false},
		"a script":          {func(c *Cell) { c.FDs.Script = 77 }, false},
	} {
		if got := Tape(cell(c.mod)).Digest() == base; got != c.same {
			t.Errorf("%s: same digest %v, want %v", name, got, c.same)
		}
	}
}

// The order of ptr arguments of the limits: RLIMIT_NPROC counts the reaper too.
func TestLimits(t *testing.T) {
	l := steps.ResourceLimits(cell(nil).Spec.Limits, 6, steps.NoCore)
	got := map[string][2]uint64{}
	for _, r := range l {
		got[r.Name] = [2]uint64{r.Soft, r.Hard}
	}
	for name, want := range map[string][2]uint64{"nproc": {6, 6}, "nofile": {77, 77}, "fsize": {9, 9}, "cpu": {1, 2}, "core": {1, 1}, "data": {1 << 20, 1 << 20}} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
