package steps

import (
	"encoding/binary"

	"palyra/isolate/internal/sys"
)

// The slots in which a child leaves what it met, for palyra-cell to read at the gate.
// SlotNested, SlotAfter and SlotFenced are of steps that must fail: a negative errno.
const (
	SlotNested     = "again"      // of making one more user namespace
	SlotSecurebits = "securebits" // as prctl(2) returns them
	SlotBefore     = "before"     // of opening a folder before the landlock domain, or there is no cell
	SlotAfter      = "after"      // and after
	SlotFenced     = "fenced"     // of asking whether the reaper may be signalled
	slotReaper     = "reaper"
)

// SecurebitsLocked is what SlotSecurebits must hold.
const SecurebitsLocked = secbitsLocked

const (
	cloneNewUser = 0x10000000
	prGetSecbits = 27
)

// TryNested tries what the limit of user namespaces forbids. The kernel looks at the
// limit first (create_user_ns), so that the answer is ENOSPC for this reason alone.
func TryNested() sys.Tape {
	return sys.Tape{{Call: "unshare", Args: ints(cloneNewUser), Out: SlotNested, MayFail: true,
		Why: "must fail: palyra-cell looks at the gate whether it did"}}
}

// ReadSecurebits reads them back: no file of /proc shows them.
func ReadSecurebits() sys.Tape {
	return sys.Tape{{Call: "prctl", Args: ints(prGetSecbits, 0, 0, 0, 0), Out: SlotSecurebits,
		Why: "read back what no file shows, for palyra-cell at the gate"}}
}

// TryFence asks whether the program may send its reaper a signal, and sends none. Only
// the domain of [Fence] forbids it: both are the same user's.
func TryFence() sys.Tape {
	return sys.Tape{{Call: "getppid", Out: slotReaper, Why: "the reaper"},
		{Call: "kill", Args: []sys.Arg{sys.Slot(slotReaper), sys.Int(0)}, Out: SlotFenced, MayFail: true,
			Why: "must fail from Landlock ABI 6 on: palyra-cell looks at the gate whether it did"}}
}

// Files splits off the limit of descriptors, which RestrictWitnessed must come before:
// until then the table holds palyra-cell's own, which may be more.
func Files(limits []Limit) (others, files []Limit) {
	for _, l := range limits {
		if l.Resource == rlimitNOFILE {
			files = append(files, l)
		} else {
			others = append(others, l)
		}
	}
	return others, files
}

// RestrictWitnessed is Restrict between two attempts to list outside, a folder that no
// rule grants: the first must succeed and the second fail, which nothing but the domain
// has come between. The kernel does not say otherwise which domain a process is in.
func RestrictWitnessed(ruleset, outside int, quiet bool) sys.Tape {
	open := func(slot string, mayFail bool, why string) sys.Step {
		b := binary.NativeEndian.AppendUint64(nil, closeOnExec)
		b = append(b, make([]byte, 16)...) // mode and resolve
		return sys.Step{Call: "openat2", Args: []sys.Arg{sys.FD("outside", outside), sys.Str("."), sys.Bytes("how", b, "O_RDONLY"), sys.Int(len(b))},
			Out: slot, MayFail: mayFail, Why: why}
	}
	t := sys.Tape{open(SlotBefore, false, "a folder that no landlock rule grants can be opened before"),
		{Call: "close", Args: []sys.Arg{sys.Slot(SlotBefore)}, Why: "no descriptor of it stays"}}
	t = append(t, Restrict(ruleset, quiet)...)
	return append(t, open(SlotAfter, true, "and must not be after: palyra-cell looks at the gate whether it was"))
}
