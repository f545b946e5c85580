// Package landlock plans and builds Landlock rulesets.
//
// [Plan] is pure: from the host's ABI and a list of grants it computes which rights are handled
// (denied unless a rule gives them) and which rule gives what. Every right of the ABI is handled.
// TCP and, where the ABI has it, UDP have no rules, so that binding and connecting always fail,
// unless the caller adds ports (Ruleset.Connect); abstract sockets and signals are scoped to the
// cell. What the ABI lacks is named, because some other layer must then cover it.
//
//	rs, missing := landlock.Plan(abi, []landlock.Grant{{Access: "rx", Path: "/usr", File: usr}})
//	f, err := landlock.Build(rs) // then landlock_restrict_self(f) in the child
//
// A rule holds for the file or directory that Grant.File refers to and for all
// beneath it. Landlock walks from an opened file upward through mount points,
// so that a rule on the root of a mount tree covers what is mounted in it; but a
// rule on a directory that is covered by a mount does not reach that mount.
//
// # What it does not protect against
//
// Landlock does not see chdir, stat, access, chmod, chown, utime, setxattr,
// flock or fcntl, nor what was opened before: reading metadata is free, and
// changing it is left to mounts and to the seccomp filter.
package landlock

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Rights on files, linux/landlock.h.
const (
	FSExecute     uint64 = 1 << 0
	FSWriteFile   uint64 = 1 << 1
	FSReadFile    uint64 = 1 << 2
	FSReadDir     uint64 = 1 << 3
	FSRemoveDir   uint64 = 1 << 4
	FSRemoveFile  uint64 = 1 << 5
	FSMakeChar    uint64 = 1 << 6
	FSMakeDir     uint64 = 1 << 7
	FSMakeReg     uint64 = 1 << 8
	FSMakeSock    uint64 = 1 << 9
	FSMakeFIFO    uint64 = 1 << 10
	FSMakeBlock   uint64 = 1 << 11
	FSMakeSym     uint64 = 1 << 12
	FSRefer       uint64 = 1 << 13 // ABI 2: link and rename between directories
	FSTruncate    uint64 = 1 << 14 // ABI 3
	FSIoctlDev    uint64 = 1 << 15 // ABI 5
	FSResolveUnix uint64 = 1 << 16 // ABI 9: connect to a pathname socket from outside the domain
)

// Rights on ports and scopes.
const (
	NetBindTCP        uint64 = 1 << 0 // ABI 4
	NetConnectTCP     uint64 = 1 << 1 // ABI 4
	NetBindUDP        uint64 = 1 << 2 // ABI 10
	NetConnectSendUDP uint64 = 1 << 3 // ABI 10

	ScopeAbstractUnix uint64 = 1 << 0 // ABI 6
	ScopeSignal       uint64 = 1 << 1 // ABI 6
)

// level is what one ABI version added, and what is open below it.
type level struct {
	abi             int
	since           string // kernel
	fs, net, scoped uint64
	open            string // "" if nothing is open without it
}

// levels is the table of ABI versions, in order. A newer host is used at the
// last version here: rights that we do not know cannot be handled. ABI 7 (6.15)
// and 8 (7.0) added flags of landlock_restrict_self only.
var levels = []level{
	{1, "5.13", 1<<13 - 1, 0, 0, "landlock: files are not confined (ABI 1)"},
	// Without ABI 2 link and rename between directories always fail.
	{2, "5.19", FSRefer, 0, 0, ""},
	{3, "6.2", FSTruncate, 0, 0, "landlock: truncate is not confined (ABI 3)"},
	{4, "6.7", 0, NetBindTCP | NetConnectTCP, 0, "landlock: TCP is not confined (ABI 4)"},
	{5, "6.10", FSIoctlDev, 0, 0, "landlock: ioctl on devices is not confined (ABI 5)"},
	{6, "6.12", 0, 0, ScopeAbstractUnix | ScopeSignal, "landlock: abstract sockets and signals are not scoped (ABI 6)"},
	{9, "7.1", FSResolveUnix, 0, 0, "landlock: pathname sockets are not confined (ABI 9)"},
	{10, "7.2", 0, NetBindUDP | NetConnectSendUDP, 0, "landlock: UDP is not confined (ABI 10)"},
}

// onFile are the rights that a rule on something else than a directory can
// have; the kernel refuses the others with EINVAL.
const onFile = FSExecute | FSWriteFile | FSReadFile | FSTruncate | FSIoctlDev | FSResolveUnix

// rights maps the letters of Grant.Access to rights. Making devices and FIFOs,
// and reaching sockets from outside, is granted by none of them.
var rights = map[rune]uint64{
	'r': FSReadFile | FSReadDir,
	'x': FSExecute,
	'w': FSWriteFile | FSTruncate | FSRemoveDir | FSRemoveFile | FSMakeDir | FSMakeReg | FSMakeSock | FSMakeSym |
		FSRefer | FSIoctlDev,
}

// Grant is access to a file or to a directory with all beneath it.
type Grant struct {
	Access string   // "r", "rx", "rw" or "rwx"
	Path   string   // for the record only
	File   *os.File // O_PATH is enough; Build uses it, the caller closes it
	Kind   Kind     // of File, for who knows it
}

// Kind says whether a file is a directory.
type Kind uint8

// The kinds.
const (
	Unknown   Kind = iota // Build looks
	Directory             // all rights can be granted on it
	Other                 // only those of files can
)

// KindOf looks what a file is.
func KindOf(f *os.File) (Kind, error) {
	fi, err := f.Stat()
	if err != nil {
		return Unknown, err
	}
	if fi.IsDir() {
		return Directory, nil
	}
	return Other, nil
}

// Rule is a Grant as far as the host's ABI can express it.
type Rule struct {
	Grant
	Rights uint64 // 0: the access was not understood, Build refuses it
}

// Ruleset is a plan: what is handled, and what rules give back. The zero
// Ruleset handles nothing and cannot be built.
type Ruleset struct {
	ABI        int // of the host
	HandledFS  uint64
	HandledNet uint64
	Scoped     uint64
	Rules      []Rule
	Connect    []uint16 // TCP ports that may be connected to, where HandledNet has that right
}

// Plan computes the ruleset for a host with the given ABI, and names what that
// ABI leaves open.
func Plan(abi int, grants []Grant) (rs Ruleset, missing []string) {
	rs.ABI = abi
	for _, l := range levels {
		switch {
		case abi >= l.abi:
			rs.HandledFS |= l.fs
			rs.HandledNet |= l.net
			rs.Scoped |= l.scoped
		case l.open != "":
			missing = append(missing, l.open)
		}
	}
	for _, g := range grants {
		rs.Rules = append(rs.Rules, Rule{g, access(g.Access) & rs.HandledFS})
	}
	return rs, missing
}

// access returns the rights of an access, 0 if it is none of the four.
func access(s string) (mask uint64) {
	if !slices.Contains([]string{"r", "rx", "rw", "rwx"}, s) {
		return 0
	}
	for _, c := range s {
		mask |= rights[c]
	}
	return mask
}

// Lines returns the rules as text, "rx /usr" and "connect 443", sorted and without repetition.
func (rs Ruleset) Lines() []string {
	lines := []string{} // never nil: it becomes a JSON array
	for _, r := range rs.Rules {
		lines = append(lines, r.Access+" "+r.Path)
	}
	for _, p := range rs.Connect {
		lines = append(lines, fmt.Sprintf("connect %d", p))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// check refuses a ruleset that would confine less than it says.
func (rs Ruleset) check() error {
	if rs.HandledFS == 0 {
		return fmt.Errorf("landlock ruleset handles nothing: ABI %d", rs.ABI)
	}
	if len(rs.Connect) > 0 && rs.HandledNet&NetConnectTCP == 0 {
		return fmt.Errorf("landlock rules for %d ports, and connecting isn't handled", len(rs.Connect))
	}
	for _, r := range rs.Rules {
		if r.Rights == 0 || r.Rights&^rs.HandledFS != 0 || r.File == nil || strings.ContainsRune(r.Path, 0) {
			return fmt.Errorf("landlock rule %q %q: no such access, or nothing to grant it on", r.Access, r.Path)
		}
	}
	return nil
}
