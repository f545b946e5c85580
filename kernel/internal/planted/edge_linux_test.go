package planted

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// atLeast reports whether the kernel is of this version or a later one.
func atLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	a, err := strconv.Atoi(parts[0])
	if err != nil || len(parts) < 3 {
		t.Fatalf("release %q", parts)
	}
	b, err := strconv.Atoi(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return a > major || a == major && b >= minor
}

// What was planted right before a call is not the call's, and what is planted right
// after it began is. Before 6.13, and on file systems that do not keep stamps in
// order, the first may be listed; the second always is.
func TestEdge(t *testing.T) {
	ws := t.TempDir()
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	exact := atLeast(t, 6, 13) && stampsInOrder(dir)
	plant := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(ws, name, ".envrc"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"before", "after"} {
		if err := os.Mkdir(filepath.Join(ws, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 300 {
		plant("before")
		l := Begin(dir)
		plant("after")
		var found []string
		for _, f := range l.End(true, Limits{}).Found {
			found = append(found, f.Path)
		}
		switch got := strings.Join(found, " "); {
		case got == "after/.envrc":
		case !exact && got == "after/.envrc before/.envrc":
		default:
			t.Fatalf("found %q, exact %v", got, exact)
		}
	}
}
