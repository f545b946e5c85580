package kernel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/crypt/ca"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/sample"
)

// The crash tests run the test binary as a process that makes calls, and kill it with SIGKILL
// at one named step. Everything that it acknowledged before must be there afterwards, and the
// next Open must leave nothing open.
const asVictim = "PALYRA_TEST_VICTIM" // JSON of victim

type victim struct {
	State, Cell, Tool string
	Step              string // "" counts the steps instead
	Nth               int    // the occurrence of Step that kills
	Word              string // an argument that marks the processes
	Rotate            bool   // it makes no call and rotates the attestation key
	RotateLog         bool   // or the log's
	Seal              string // or seals the keys for this identity
}

// told is the victim's print of each answered call.
type told struct {
	Outcome string
	Index   uint64
	Receipt canon.Digest
}

// beVictim makes an allowed, a denied and an approved call.
func beVictim(spec string) int {
	var v victim
	if err := json.Unmarshal([]byte(spec), &v); err != nil {
		return 2
	}
	var mu sync.Mutex
	seen := make(map[string]int) // guarded by mu: steps come from several goroutines
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		seen[name]++
		if v.Step == "" {
			fmt.Printf("step %s %d\n", name, seen[name])
		}
		if name == v.Step && seen[name] == v.Nth {
			fmt.Printf("alive %d\n", len(withWord(v.Word)))
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
	var unlock keyring.Unlock
	if v.Seal != "" {
		unlock = unlockWith(v.Seal)
	}
	k, err := Open(context.Background(), Config{StateDir: v.State, Unlock: unlock, CellPath: v.Cell, Approver: answer{yes: true}, TestOnlyStep: step})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if v.Seal != "" {
		_, err := ca.Create(context.Background(), v.State, "a.b", time.Now(), ca.Options{}, func(map[string]string) error { return nil })
		var id sealing.Identity
		if err == nil {
			id, err = unlock()
		}
		if err == nil {
			var to *sealing.PublicKey
			if to, err = id.(*sealing.IdentityKey).Recipient("owner"); err == nil {
				err = k.SealKeys(context.Background(), "test", []*sealing.PublicKey{to})
			}
		}
		if err = errors.Join(err, k.Close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if v.Rotate || v.RotateLog {
		rotate := k.RotateKey
		if v.RotateLog {
			rotate = k.RotateLogKey
		}
		if err := rotateAsVictim(k, rotate); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	for _, argv := range [][]string{{"/bin/true", v.Word}, {"/bin/sh", v.Word}, {v.Tool, v.Word}} {
		p := proposal(argv...)
		p.RunID = v.Word
		o, err := k.Call(context.Background(), *p, IO{Stdout: writerFunc(func(b []byte) (int, error) {
			step("output")
			return len(b), nil
		})})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		b, _ := json.Marshal(told{o.Outcome, o.LogIndex, canon.Sum(o.Receipt)})
		fmt.Printf("told %s\n", b)
	}
	step("before close")
	if err := k.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (v victim) run(t *testing.T) (steps []string, got []told, alive int) {
	t.Helper()
	spec, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), asVictim+"="+string(spec))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	st, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	if killed := ok && st.Signaled() && st.Signal() == syscall.SIGKILL; killed != (v.Step != "") || !killed && err != nil {
		t.Fatalf("victim at %q: %v\n%s", v.Step, err, stderr.Bytes())
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if s, ok := strings.CutPrefix(sc.Text(), "step "); ok {
			steps = append(steps, s)
		}
		if s, ok := strings.CutPrefix(sc.Text(), "alive "); ok {
			fmt.Sscan(s, &alive)
		}
		if s, ok := strings.CutPrefix(sc.Text(), "told "); ok {
			var x told
			if err := json.Unmarshal([]byte(s), &x); err != nil {
				t.Fatal(err)
			}
			got = append(got, x)
		}
	}
	return steps, got, alive
}

func withWord(word string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc") // not Glob, which looks at each path once more
	for _, e := range entries {
		f := "/proc/" + e.Name() + "/cmdline"
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(word)) {
			found = append(found, f+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// survivors waits for those processes to be gone and returns those that aren't.
func survivors(word string) []string {
	for deadline := time.Now().Add(time.Minute); ; {
		if left := withWord(word); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestCrash(t *testing.T) {
	base := t.TempDir()
	v := victim{Cell: cellPath(t), Tool: unknown(t, "/bin/echo"), State: base + "/count", Word: "word"}
	steps, got, _ := v.run(t)
	if len(got) != 3 || got[0].Outcome != receipt.Executed || got[1].Outcome != receipt.Denied || got[2].Outcome != receipt.Executed {
		t.Fatalf("without a crash: %+v", got)
	}
	var names []string
	for _, s := range steps {
		names = append(names, s[:strings.LastIndexByte(s, ' ')])
	}
	for _, want := range []string{"sealed", "decided", "approved", "granted", "intent", "executed", "result", "receipt",
		"append:written", "append:durable", "cell_started", "run_sent", "run_answered", "output", "before close"} {
		if !strings.Contains(strings.Join(names, "\n"), want) {
			t.Errorf("step %q was never reached: %q", want, names)
		}
	}
	some := sample.Steps(steps)
	t.Logf("%d steps of %d", len(some), len(steps))
	for _, i := range some {
		s := steps[i]
		t.Run(strings.ReplaceAll(s, " ", "-"), func(t *testing.T) {
			t.Parallel() // they wait for the disk
			at := strings.LastIndexByte(s, ' ')
			v := v
			v.Step, v.State, v.Word = s[:at], fmt.Sprintf("%s/%d", base, i), fmt.Sprintf("palyra-crash-%d-%d-", os.Getpid(), i)
			fmt.Sscan(s[at+1:], &v.Nth)
			_, got, _ := v.run(t)
			if left := survivors(v.Word); left != nil {
				t.Errorf("survivors: %q", left)
			}
			checkRecovered(t, v, got)
		})
	}
}

// checkRecovered opens the state directory as the next process would, and then asks the oracle.
func checkRecovered(t *testing.T, v victim, got []told) {
	t.Helper()
	h := openHouse(t, Config{StateDir: v.State, CellPath: v.Cell})
	if open := h.state.journal.OpenEntries(); len(open) != 0 {
		t.Errorf("intents left open: %v", open)
	}
	size := h.state.journal.Size()
	for _, x := range got {
		e, err := h.state.logged(t.Context(), x.Index)
		if err != nil {
			t.Errorf("entry %d, which somebody has a receipt for: %v", x.Index, err)
			continue
		}
		b, err := h.state.receipt(t.Context(), x.Index, e)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := receipt.Verify(b, h.state.trust()); err != nil || s.Outcome != x.Outcome || s.Statement.Predicate.RunID != v.Word {
			t.Errorf("entry %d: %v, %v", x.Index, s, err)
		}
	}
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed {
		t.Errorf("the next call: %s, %+v", o.Outcome, o.Error)
	}
	r := h.audit()
	unknown := r.Outcomes[receipt.OutcomeUnknown]
	switch {
	case len(r.Orphans) != 0 || unknown > 1:
		t.Errorf("audit: %+v", r)
	case r.Results < len(got)+1 || r.Results > 4:
		t.Errorf("%d calls were answered, %d results: %+v", len(got), r.Results, r)
	case r.Journal.Size != size+2:
		t.Errorf("%d entries, want %d", r.Journal.Size, size+2)
	}
	again := openHouse(t, Config{StateDir: v.State, CellPath: v.Cell})
	if n := again.state.journal.Size(); n != size+2 {
		t.Errorf("opening again made it %d entries", n)
	}
}

// TestKilledWhileItRuns: palyra's death ends everything that it started.
func TestKilledWhileItRuns(t *testing.T) {
	v := victim{Cell: cellPath(t), Tool: unknown(t, "/usr/bin/yes"), State: t.TempDir() + "/state",
		Word: fmt.Sprintf("palyra-crash-%d-yes", os.Getpid()), Step: "output", Nth: 1}
	_, got, alive := v.run(t)
	if len(got) != 2 || alive == 0 {
		t.Fatalf("killed after %v, %d processes seen", got, alive)
	}
	if left := survivors(v.Word); left != nil {
		t.Errorf("survivors: %q", left)
	}
	h := openHouse(t, Config{StateDir: v.State, CellPath: v.Cell})
	if r := h.audit(); r.Outcomes[receipt.OutcomeUnknown] != 1 || r.Intents != 2 || len(r.Orphans) != 0 {
		t.Errorf("audit: %+v", r)
	}
}
