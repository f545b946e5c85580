package cell_test

import (
	"bytes"
	"io"
	"os"
	"syscall"
	"testing"

	"palyra/isolate"
	"palyra/isolate/tier"
)

// TestNothingIsMerged: a process that lets the kernel merge its memory with equal pages of
// others (systemd's MemoryKSM=) passes that on to its children, but not to a cell.
func TestNothingIsMerged(t *testing.T) {
	const setMemoryMerge = 67
	merge := func(on uintptr) {
		t.Helper()
		// A kernel without the call merges nothing, and the program in the cell says so.
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setMemoryMerge, on, 0, 0, 0, 0); errno != 0 && errno != syscall.EINVAL {
			t.Fatal(errno)
		}
	}
	exe := hold(t)
	for _, tr := range []tier.Tier{tier.C, tier.B} {
		t.Run(tr.String(), func(t *testing.T) {
			merge(1)
			c := start(t, tr)
			merge(0)
			s := benchSpec("/hold", isolate.NetworkFresh)
			s.Tier, s.Exec.Pinned, s.Argv = tr, "sealed", []string{"hold", "merge", "0"}
			if tr == tier.B {
				s.Cwd = "/"
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
			w.Close()
			if err != nil || res.Outcome != isolate.Exited {
				t.Fatalf("%+v, %v", res, err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, []byte("no\n")) {
				t.Errorf("PR_GET_MEMORY_MERGE in the cell: %q, %v; want no", got, err)
			}
		})
	}
}
