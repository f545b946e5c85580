package cell_test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"palyra/isolate"
	"palyra/isolate/tier"
)

// TestDiskIsCounted: the private workspace of tier B of a user holds no more than its limit,
// wherever a program writes in it, and nothing of it is left.
func TestDiskIsCounted(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("needs an unprivileged user: root's is a file system of its own")
	}
	exe := hold(t)
	c := start(t, tier.B)
	const mib, limit = 1 << 20, 64
	for _, x := range []struct {
		how  string
		held int
		over string // the limit
	}{
		{"unlinked", 20, ""}, {"unlinked", 200, "disk"}, {"hidden", 20, ""}, {"hidden", 200, "disk"},
		{"mapped", 8, ""}, {"mapped", 200, "disk"}, {"undumpable", 20, "uncounted"}, // its open files don't show
	} {
		t.Run(x.how+"/"+strconv.Itoa(x.held), func(t *testing.T) {
			s := benchSpec("/hold", isolate.NetworkFresh)
			s.Tier, s.Exec.Pinned, s.Argv = tier.B, "sealed", []string{"hold", x.how, strconv.Itoa(x.held)}
			s.Limits.Disk, s.Limits.FileSize = limit*mib, 4*mib
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			out, err := io.ReadAll(r)
			folder, _, _ := strings.Cut(string(out), "\n")
			if err != nil || !strings.HasPrefix(folder, "/") {
				t.Fatalf("it ran in %q, %v", out, err)
			}
			if _, err := os.Lstat(folder); !os.IsNotExist(err) {
				t.Errorf("the private workspace %q is left: %v", folder, err)
			}
			want := isolate.Exited
			if x.over != "" {
				want = isolate.Killed
			}
			if got := res.Evidence.Exit; res.Outcome != want || got.LimitHit != x.over || x.over == "" && got.Code != 0 {
				t.Errorf("%s, %+v, %q; want %s by limit %q", res.Outcome, got, out, want, x.over)
			}
		})
	}
}
