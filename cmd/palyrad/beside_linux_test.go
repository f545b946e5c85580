package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/crypt/receipt"
)

// exec is a palyra exec on the state directory of the palyrads.
func (p *place) exec(argv ...string) *exec.Cmd {
	args := append([]string{"exec", "--state", filepath.Join(p.dir, "state"), "--"}, argv...)
	return exec.Command(filepath.Join(p.bin, "palyra"), args...)
}

// TestBesideExec: palyra exec works eight times in parallel on the state directory of a
// palyrad that is busy itself, and both work on. No call of either is taken for an
// orphan by the other, but for one that is killed.
func TestBesideExec(t *testing.T) {
	p := newCrowdedPlace(t)
	r := p.start()
	c := newCrowd(p, 4)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		c.work(r, 1000, stop)
	}()
	var slow sync.WaitGroup // in palyrad, for as long as most of this takes
	slow.Go(func() { r.call(`{"tool":"process.run","input":{"argv":["/bin/sleep","3"]}}`) })
	const rounds, each = 2, 8
	var wg sync.WaitGroup
	for who := range each {
		wg.Go(func() {
			for round := range rounds {
				word := fmt.Sprintf("beside-%d-%d", who, round)
				if out, err := p.exec("echo", word).CombinedOutput(); err != nil || string(out) != word+"\n" {
					t.Errorf("%s: %q, %v", word, out, err)
				}
			}
		})
	}
	wg.Wait()

	// One is killed when its intent stands, and its process does nothing any more.
	killed := p.exec("sleep", "77")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	for running := false; !running; {
		out, err := exec.Command(filepath.Join(p.bin, "palyra"), "journal", "show", "--state", filepath.Join(p.dir, "state")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		running = strings.Contains(string(out), "sleep 77")
	}
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	if out, err := p.exec("true").CombinedOutput(); err != nil {
		t.Errorf("after that: %v\n%s", err, out)
	}
	close(stop)
	<-over
	slow.Wait()

	// palyrad sees what the others did.
	var page struct{ Size uint64 }
	r.must(200, "GET", "/api/v1/journal", "", &page)
	if n := uint64(2*rounds*each + 4 + 2*len(c.told)); page.Size < n {
		t.Errorf("palyrad sees %d entries, want %d at least", page.Size, n)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	c.check(true)
	trust, err := receipt.LoadTrust(filepath.Join(p.dir, "state", "trust"))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := receipt.Audit(filepath.Join(p.dir, "state", "journal"), trust)
	if err != nil || len(rep.Orphans) != 0 || rep.Outcomes[receipt.OutcomeUnknown] != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	t.Logf("%d calls were answered by palyrad, %v", len(c.told), rep.Outcomes)
}

// TestOrphanBeside: a palyrad that runs on closes the intent that a killed palyra exec
// left, confined as it is, and none whose call goes on.
func TestOrphanBeside(t *testing.T) {
	p := newCrowdedPlace(t)
	t.Setenv("PALYRA_TEST_FLUSH", "20ms")
	r, _, _ := p.victim()
	killed, slow := p.exec("sleep", "78"), p.exec("sleep", "3")
	for _, cmd := range []*exec.Cmd{killed, slow} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	open := func(want int) {
		t.Helper()
		limit := time.Now().Add(patience)
		for s := r.status(); s.Journal.Open != want; s = r.status() {
			if time.Now().After(limit) {
				t.Fatalf("%d intents are open, want %d\n%s", s.Journal.Open, want, r.log)
			}
		}
	}
	open(2)
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	open(1)
	if err := slow.Wait(); err != nil {
		t.Error(err)
	}
	open(0)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	trust, err := receipt.LoadTrust(filepath.Join(p.dir, "state", "trust"))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := receipt.Audit(filepath.Join(p.dir, "state", "journal"), trust)
	if err != nil || rep.Outcomes[receipt.OutcomeUnknown] != 1 || rep.Outcomes[receipt.Executed] != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if strings.Contains(r.log.String(), "close intents") {
		t.Error(r.log)
	}
}
