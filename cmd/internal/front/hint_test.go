package front

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// TestHint: the nearest hint wins, and no error has none.
func TestHint(t *testing.T) {
	of := map[string]string{}
	for _, r := range reasons {
		if of[r.reason] != "" {
			t.Errorf("%s stands there twice", r.reason)
		}
		of[r.reason] = r.hint
	}
	known := fault.New(fault.NotFound, "no_such_run", "look up run", nil)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"none":        {nil, ""},
		"its own":     {known.WithHint("own"), "own"},
		"its cause's": {fault.New(fault.Usage, "no_such_run", "x", known.WithHint("own")), "own"},
		"its reason":  {fmt.Errorf("outer: %w", known), of["no_such_run"]},
		"its errno":   {fault.New(fault.Unavailable, "no_reason_at_all", "write", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}), "free some space and try again"},
		"its kind":    {fault.New(fault.Integrity, "no_reason_at_all", "x", errors.New("y")), kinds[fault.Integrity]},
		"no kind":     {fault.New(999, "no_reason_at_all", "x", nil), kinds[fault.Internal]},
		"none known":  {errors.New("x"), kinds[fault.Internal]},
		"joined":      {errors.Join(errors.New("x"), known), of["no_such_run"]},
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

// TestHintReasons looks for every reason code with a hint in the sources: a code
// that was renamed would lose its hint unnoticed.
func TestHintReasons(t *testing.T) {
	var all strings.Builder
	for _, dir := range []string{"authz", "cmd/palyra", "cmd/palyra-ctl", "crypt", "internal", "kernel", "transport"} {
		err := filepath.WalkDir(filepath.Join("../../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Two are put together from a word and what is missing or wrong.
	src := strings.NewReplacer(`"no_such_"+what`, `"no_such_session" "no_such_run" "no_such_approval" "no_such_artifact"`).Replace(all.String())
	for _, known := range reasons {
		r, hint := known.reason, known.hint
		if !strings.Contains(src, `"`+r+`"`) && !strings.Contains(src, `"`+strings.TrimPrefix(r, "receipt_")+`"`) {
			t.Errorf("no error has the reason %q", r)
		}
		if hint == "" || strings.ContainsAny(hint, "\n\x1b") || Escape(hint) != hint {
			t.Errorf("%s: hint %q", r, hint)
		}
	}
}
