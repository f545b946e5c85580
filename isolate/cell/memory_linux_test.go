package cell_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/internal/sys"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// TestMemoryIsCounted: all memory that a call holds, in whatever way, is in its usage, and ends
// the call when it exceeds the limit. Without a cgroup palyra-cell counts, else the kernel.
func TestMemoryIsCounted(t *testing.T) {
	exe := hold(t)
	const mib, limit = 1 << 20, 96
	hows := []string{"tables", "private-leader", "file", "sockets", "left", "shared-leader", "events", "events-leader", "texts", "received", "unaccepted", "egress received", "egress unaccepted"}
	cells := map[tier.Tier]*cell.Client{tier.C: start(t, tier.C), tier.B: start(t, tier.B)}
	for _, held := range []int64{40, 200} {
		var together sync.WaitGroup // they hold for seconds, for a sample to see it
		for tr, c := range cells {
			for _, i := range sample.Steps(hows) {
				how, egress := strings.CutPrefix(hows[i], "egress ")
				if tr == tier.B && !slices.Contains([]string{"tables", "private-leader", "sockets", "left", "shared-leader"}, how) {
					continue // no file system of its own that a program could reach so, no inotify, no /proc and no loopback
				}
				if how == "shared-leader" && os.Geteuid() != 0 {
					continue // it gets none
				}
				s := benchSpec("/hold", isolate.NetworkFresh)
				s.Tier, s.Exec.Pinned, s.Argv = tr, "sealed", []string{"hold", how, strconv.FormatInt(held, 10)}
				s.Limits.Memory, s.Limits.Disk, s.Limits.OpenFiles = limit*mib, 512*mib, 4096
				s.Limits.FileSize = 512 * mib
				if tr == tier.B {
					s.Cwd = "/"
				}
				if how == "received" || how == "unaccepted" {
					s.Network = isolate.NetworkLoopback
				}
				var conn *os.File
				if egress {
					s.Network, s.Egress = isolate.NetworkEgress, &isolate.Egress{Sockets: 1}
					b := isolatetest.StartBroker(t)
					t.Cleanup(func() { b.Close() })
					conn = b.Cell
				}
				g := mint(t, testKey, s)
				together.Go(func() {
					what := fmt.Sprintf("%v, %s %s, %d MiB", tr, s.Network, how, held)
					r, w, err := os.Pipe()
					if err != nil {
						t.Error(err)
						return
					}
					defer r.Close()
					res, err := c.Run(t.Context(), g, s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w, Egress: conn})
					w.Close()
					if err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
					x, peak := res.Evidence.Exit, res.Evidence.Usage.PeakMemory
					over := held > limit
					switch {
					case !over && (res.Outcome != isolate.Exited || x.Code != 0 || peak < held*mib || peak > limit*mib):
						t.Errorf("%s: %s, exit %+v, with a peak of %d MiB; want executed, 0, from %d to %d", what, res.Outcome, x, peak/mib, held, limit)
					case over && how == "private-leader" && res.Outcome == isolate.Exited && x.Code == 3:
						// RLIMIT_DATA bounds one process: mmap returned ENOMEM.
					case over && (res.Outcome != isolate.Killed || x.LimitHit != "memory" || peak <= limit*mib*9/10):
						t.Errorf("%s: %s, exit %+v, with a peak of %d MiB; want killed for memory of more than %d", what, res.Outcome, x, peak/mib, limit)
					}
				})
			}
		}
		together.Wait()
	}
}

// TestInotifyIsTheCells: a cell that takes all the inotify instances it can leaves enough for
// our own user, and as root takes none of root's.
func TestInotifyIsTheCells(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Fatal(err)
	}
	all, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		t.Fatal(err)
	}
	// The rest of our user's instances, without the cell's 16 unless those are another user's.
	want := all - 24
	if os.Getuid() == 0 {
		want = all - 12
	}
	exe := hold(t)
	c := start(t, tier.C)
	s := benchSpec("/hold", isolate.NetworkFresh)
	s.Exec.Pinned, s.Argv, s.Limits.OpenFiles = "sealed", []string{"hold", "inotify", strconv.Itoa(all)}, int64(all)+100
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := mint(t, testKey, s)
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), g, s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
		w.Close()
		done <- err
	}()
	line := make([]byte, 6)
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "ready\n" {
		t.Fatalf("the cell said %q: %v", line, err)
	}
	var own []int
	for len(own) < want {
		fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC)
		if err != nil {
			t.Errorf("beside the cell we get %d instances of %d, want %d: %v", len(own), all, want, err)
			break
		}
		own = append(own, fd)
	}
	for _, fd := range own {
		syscall.Close(fd)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func hold(t *testing.T) *os.File {
	t.Helper()
	program := os.Getenv("PALYRA_TEST_HOLD") // a prebuilt one, for hosts without a go command
	if program == "" {
		program = filepath.Join(t.TempDir(), "hold")
		cmd := exec.Command("go", "build", "-o", program, "./testdata/hold")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build hold: %v\n%s", err, out)
		}
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := sys.SealedFile("hold", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	return exe
}
