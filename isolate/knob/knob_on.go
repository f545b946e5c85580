//go:build palyra_knobs && linux

package knob

import (
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/isolate/internal/sys"
	"palyra/isolate/native/landlock"
)

// Build says what kind of build this is.
const Build = Tag

// LogOrigin is the name that a new log gets.
const LogOrigin = Origin

// words reads, once, what is turned off and left out.
var words = sync.OnceValue(func() []string {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	b, err := os.ReadFile(exe + ".knobs")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
})

// off is what is turned off.
var off = sync.OnceValue(func() []string {
	return slices.DeleteFunc(slices.Clone(words()), func(w string) bool { return strings.HasPrefix(w, Omit) })
})

// omitted is the number of the step that is left out, 0 for none.
var omitted = sync.OnceValue(func() int {
	for _, w := range words() {
		if n, ok := strings.CutPrefix(w, Omit); ok {
			n, _ := strconv.Atoi(n)
			return n
		}
	}
	return 0
})

// omit is t without its nth step, as Tape.Lines counts them. Of a clone the child is
// left out, too.
func omit(t sys.Tape, n int) sys.Tape {
	var out sys.Tape
	for _, s := range t {
		n--
		switch inner := s.Child.Steps(); {
		case n == 0:
			n = -1
			continue
		case n > 0 && n <= inner:
			s.Child, n = omit(s.Child, n), -1
		default:
			n -= inner
		}
		out = append(out, s)
	}
	return out
}

func isOff(name string) bool { return slices.Contains(off(), name) }

// namespaces are the CLONE_NEW* flags by knob.
var namespaces = map[string]uint64{PID: 0x20000000, Net: 0x40000000, IPC: 0x08000000, UTS: 0x04000000, Cgroup: 0x02000000, Time: 0x80}

// Clone leaves out what is off. The mount namespace stays: what is mounted must
// not be mounted for palyra-cell.
func Clone(flags uint64) uint64 {
	for name, f := range namespaces {
		if isOff(name) {
			flags &^= f
		}
	}
	return flags
}

// Outer leaves out the PID namespace of palyra-cell if that is off.
func Outer(flags uintptr) uintptr {
	if isOff(OuterPID) {
		flags &^= uintptr(namespaces[PID])
	}
	return flags
}

// Template reports whether threads that clone enter the template.
func Template() bool { return !isOff(Mount) }

// Ruleset is rs without what is off. A ruleset must handle something: making
// block devices, which needs a capability as well.
func Ruleset(rs landlock.Ruleset) landlock.Ruleset {
	if isOff(LandlockFS) {
		rs.HandledFS, rs.Rules = landlock.FSMakeBlock, nil
	}
	if isOff(LandlockNet) {
		rs.HandledNet = 0
	}
	if isOff(LandlockIPC) {
		rs.Scoped = 0
	}
	return rs
}

// Wall is the wall clock limit that is held: an hour more where none is.
func Wall(d time.Duration) time.Duration {
	if isOff(Deadline) {
		return d + time.Hour
	}
	return d
}

// Gate opens for what is not confined as it must be, if that was meant.
func Gate(err error) error {
	if len(off()) > 0 {
		return nil
	}
	return err
}

// Note appends what this build is, and what is off, to the degradations.
func Note(degraded []string) []string {
	degraded = append(degraded, "test build "+Tag+": receipts of it prove nothing")
	for _, name := range words() {
		degraded = append(degraded, "knob: "+name+" is turned off")
	}
	return degraded
}

// CAP_DAC_OVERRIDE, SECBIT_NO_SETUID_FIXUP and PR_CAP_AMBIENT_RAISE.
const (
	dacOverride   = 1
	noSetuidFixup = 4
	ambientRaise  = 2
)

// Tape is t without the steps of what is off.
func Tape(t sys.Tape) sys.Tape {
	if n := omitted(); n > 0 {
		t = omit(t, n)
	}
	if len(off()) == 0 {
		return t
	}
	return without(t, slices.ContainsFunc(t, func(s sys.Step) bool { return s.Call == "unshare" }))
}

// without is Tape for steps of a cell: at tier C, if it is.
func without(t sys.Tape, c bool) sys.Tape {
	var out sys.Tape
	for _, s := range t {
		s.Child = without(s.Child, c)
		out = append(out, step(s, c)...)
	}
	return out
}

// step returns what stands for a step.
func step(s sys.Step, c bool) sys.Tape {
	text := s.String()
	is := func(prefix string) bool { return strings.HasPrefix(text, prefix) }
	switch {
	case (isOff(User) || isOff(Nested)) && c && (strings.Contains(text, "$nested") || strings.Contains(text, "$again")):
		return nil // without a user namespace these would be the host's limits
	case isOff(IPC) && strings.Contains(text, "$ipc"):
		return nil // as would these without an IPC namespace
	case isOff(Net) && strings.Contains(text, "$lo"):
		return nil // and these without a network namespace
	case isOff(PID) && c && is("setsid("):
		// No other process ends it when its reaper is killed.
		return sys.Tape{s, {Call: "prctl", Args: []sys.Arg{sys.Int(1), sys.Int(9), sys.Int(0), sys.Int(0), sys.Int(0)}, Why: "knob: die with the reaper"}}
	case isOff(User) && c && (is("unshare(0x10000000") || is("write(fd:status, mark{U}") || is("read(fd:gate") || is("setresgid(") || is("setresuid(")):
		return nil // without a user namespace there is no id to become
	case isOff(Mount) && is("move_mount(fd:workspace"):
		return nil // the host has no such directory
	case isOff(Mount) && is("move_mount(fd:shm"):
		return nil // it sees the host's
	case isOff(Mount) && is("move_mount(fd:tmp"):
		s.Args = slices.Clone(s.Args) // where it hides nothing of the host's, for what needs a place to write to
		s.Args[3] = sys.Str("/mnt")
	case isOff(Mount) && c && is("fchdir("):
		s.Call, s.Args = "chdir", []sys.Arg{sys.Str("/mnt")} // the workspace is not attached
	case isOff(UTS) && is("sethostname("):
		return nil // it would be the host's
	case isOff(NoNewPrivs) && (is("prctl(0x26") || is("capset(")):
		return nil // Landlock and the filter need the one or the other; the execution ends the capabilities
	case isOff(Capabilities) && (is("prctl(0x18") || is("prctl(0x2f")):
		return nil
	case isOff(Capabilities) && is("prctl(0x1c"):
		s.Args = slices.Clone(s.Args) // the tape's own are shared
		s.Args[1] = sys.Int(noSetuidFixup)
	case isOff(Capabilities) && is("capset("):
		return append(keep(s), sys.Step{Call: "prctl", Args: []sys.Arg{sys.Int(47), sys.Int(ambientRaise), sys.Int(dacOverride), sys.Int(0), sys.Int(0)},
			Why: "knob: through the execution"})
	case isOff(Rlimits) && is("prlimit64(0,"):
		return nil
	case isOff(Seccomp) && is("seccomp(1,"):
		return nil
	case isOff(Landlock) && is("landlock_restrict_self("):
		return nil
	case isOff(Descriptors) && is("close_range(") && !is("close_range(0,") && strings.HasSuffix(text, ", 0)"):
		return nil
	}
	return sys.Tape{s}
}

// keep is capset with one capability in all three sets.
func keep(s sys.Step) sys.Tape {
	sets := make([]byte, 24) // effective, permitted, inheritable, twice
	for i := range 3 {
		binary.NativeEndian.PutUint32(sets[4*i:], 1<<dacOverride)
	}
	return sys.Tape{{Call: "capset", Args: []sys.Arg{s.Args[0], sys.Bytes("sets", sets, "dac_override")}, Why: "knob: one capability stays"}}
}
