package landlock

import (
	"fmt"
	"os"
	"runtime"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
)

// ABI returns the host's version of Landlock, or a refusal that says what is
// missing.
func ABI() (int, error) {
	v, err := sys.LandlockABI()
	if err != nil {
		return 0, fault.New(fault.Refused, "landlock_unavailable", "read landlock ABI", err).
			WithHint("boot a kernel 5.13 or later with CONFIG_SECURITY_LANDLOCK and landlock in the lsm= list")
	}
	return v, nil
}

// Build makes the ruleset in the kernel and returns its descriptor:
//
//	landlock_create_ruleset(handled rights, handled ports, scopes)
//	landlock_add_rule(path beneath) for each rule
//	landlock_add_rule(net port) for each port that may be connected to
//
// Rights that only a directory can have are left out of a rule on anything else.
func Build(rs Ruleset) (*os.File, error) {
	if err := rs.check(); err != nil {
		return nil, err
	}
	fd, err := sys.LandlockCreate(sys.LandlockAttr{HandledFS: rs.HandledFS, HandledNet: rs.HandledNet, Scoped: rs.Scoped})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "landlock")
	for _, r := range rs.Rules {
		if err := add(fd, r); err != nil {
			f.Close()
			return nil, fmt.Errorf("landlock rule %q %q: %w", r.Access, r.Path, err)
		}
	}
	for _, p := range rs.Connect {
		if err := sys.LandlockAllowPort(fd, NetConnectTCP, p); err != nil {
			f.Close()
			return nil, fmt.Errorf("landlock rule for port %d: %w", p, err)
		}
	}
	return f, nil
}

func add(ruleset int, r Rule) error {
	kind, err := r.Kind, error(nil)
	if kind == Unknown {
		if kind, err = KindOf(r.File); err != nil {
			return err
		}
	}
	mask := r.Rights
	if kind != Directory {
		mask &= onFile
	}
	err = sys.LandlockAllow(ruleset, mask, int(r.File.Fd()))
	runtime.KeepAlive(r.File)
	return err
}
