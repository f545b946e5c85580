package front

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// TestHint: the nearest hint wins, and no error has none.
func TestHint(t *testing.T) {
	known := fault.New(fault.Denied, "certificate_missing", "look up", nil)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"none":        {nil, ""},
		"its own":     {known.WithHint("own"), "own"},
		"its cause's": {fault.New(fault.Usage, "certificate_missing", "x", known.WithHint("own")), "own"},
		"its reason":  {fmt.Errorf("outer: %w", known), fault.Do("certificate_missing")},
		"its errno":   {fault.New(fault.Unavailable, "no_reason_at_all", "write", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}), "free some space and try again"},
		"its kind":    {fault.New(fault.Integrity, "no_reason_at_all", "x", errors.New("y")), kinds[fault.Integrity]},
		"no kind":     {fault.New(999, "no_reason_at_all", "x", nil), kinds[fault.Internal]},
		"none known":  {errors.New("x"), kinds[fault.Internal]},
		"joined":      {errors.Join(errors.New("x"), known), fault.Do("certificate_missing")},
		"file":        {&os.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, "look at the path: it does not exist, or not under that name"},
	} {
		if got := Hint(tt.err); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	for k := range exits {
		if int(k) >= len(kinds) || kinds[k] == "" {
			t.Errorf("errors of kind %v have no hint", k)
		}
	}
	if len(kinds) != len(exits) {
		t.Errorf("hints for %d kinds, there are %d", len(kinds), len(exits))
	}
}
