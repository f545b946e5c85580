package cell_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"palyra/isolate"
	"palyra/isolate/tier"
)

const merges = "PALYRA_TEST_MERGES"

// TestNothingIsMerged: a process that lets the kernel merge its memory with equal pages of
// others (systemd's MemoryKSM=) passes that on to its children, but not to a cell. That process is
// one of its own, and ends so: to undo it, the kernel looks at each page of the address space, and
// the race detector's has terabytes (50 s).
func TestNothingIsMerged(t *testing.T) {
	if os.Getenv(merges) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "-test.run=^TestNothingIsMerged$", "-test.v", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), merges+"=1")
		out, err := cmd.CombinedOutput()
		if t.Logf("%s", out); err != nil || !bytes.Contains(out, []byte("--- PASS: TestNothingIsMerged/b")) {
			t.Error(err)
		}
		return
	}
	const setMemoryMerge = 67
	// A kernel without the call merges nothing, and the program in the cell says so.
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setMemoryMerge, 1, 0, 0, 0, 0); errno != 0 && errno != syscall.EINVAL {
		t.Fatal(errno)
	}
	exe := hold(t)
	for _, tr := range []tier.Tier{tier.C, tier.B} {
		t.Run(tr.String(), func(t *testing.T) {
			c := start(t, tr)
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
