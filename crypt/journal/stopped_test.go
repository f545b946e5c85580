//go:build unix

package journal

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
)

// stopped starts a process that appends, and stops it where it has written and not
// flushed its record. The test continues it.
func stopped(t *testing.T, h *house) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+filepath.Dir(h.dir), "PALYRA_TEST_SCRIPT=stop", "PALYRA_TEST_STEP=0")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "stops\n" {
		t.Fatalf("%q, %v", line, err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%v, %v", ws, err)
	}
	return cmd
}

// TestStoppedHolder: a process that stands still in the middle of a write keeps the
// others waiting for a bounded time, and for as long as they want; they are told
// which it is. When it goes on, so do they, and when it dies they take over.
func TestStoppedHolder(t *testing.T) {
	for how, sig := range map[string]syscall.Signal{"goes on": syscall.SIGCONT, "dies": syscall.SIGKILL} {
		t.Run(how, func(t *testing.T) {
			h := newHouse(t)
			j := h.open(t, Options{TestOnlyPatience: 200 * time.Millisecond})
			defer j.Close()
			patient := h.open(t, Options{})
			defer patient.Close()
			add(t, j, 0, 1)
			cmd := stopped(t, h)
			start := time.Now()
			_, err := j.Append(context.Background(), Entry{Leaf: []byte("x")})
			if fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "locked" || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", cmd.Process.Pid)) {
				t.Errorf("got %v", err)
			}
			if d := time.Since(start); d > patience {
				t.Errorf("waited %v", d)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			if _, err := patient.Append(ctx, Entry{Leaf: []byte("x")}); fault.KindOf(err) != fault.Timeout {
				t.Errorf("got %v", err)
			}
			// All who wait are told at once, not one after the other.
			start = time.Now()
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					if _, err := j.Append(context.Background(), Entry{Leaf: []byte("x")}); fault.ReasonOf(err) != "locked" {
						t.Errorf("got %v", err)
					}
				})
			}
			wg.Wait()
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("two hundred waited %v", d)
			}
			if _, err := Open(h.dir, h.ring.Log(), Options{TestOnlyPatience: time.Millisecond}); fault.ReasonOf(err) != "locked" {
				t.Errorf("open: %v", err)
			}
			if _, err := j.Prove(t.Context(), 0); err != nil {
				t.Errorf("what is known already: %v", err)
			}
			h.check(t) // reading needs no lock
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if _, err := j.Append(context.Background(), Entry{Leaf: leafN(7), Content: contentN(7)}); err != nil {
				t.Error(err)
			}
			if r := h.check(t); r.Size != 3 { // its record was whole
				t.Errorf("%+v", r)
			}
		})
	}
}

// BenchmarkOneBesideEight is how long a process with one entry waits beside another
// that appends with eight at a time, at full speed.
func BenchmarkOneBesideEight(b *testing.B) {
	h := newHouse(b)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+filepath.Dir(h.dir), "PALYRA_TEST_SCRIPT=hog", "PALYRA_TEST_STEP=0")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	j := h.open(b, Options{})
	defer j.Close()
	for j.Size() < 100 {
		if err := j.Refresh(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	var worst time.Duration
	at := j.Size()
	n := 0
	for b.Loop() {
		start := time.Now()
		if _, err := j.Append(context.Background(), benchEntry()); err != nil {
			b.Fatal(err)
		}
		worst = max(worst, time.Since(start))
		n++
		<-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond)
	}
	b.ReportMetric(float64(worst.Microseconds()), "µs-worst")
	b.ReportMetric(float64(j.Size()-at)/float64(n), "entries-between")
}
