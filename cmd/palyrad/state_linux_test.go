package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
)

// TestOlderStore: a store from before the newest change of tokens does not
// start.
func TestOlderStore(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	stop := func() {
		t.Helper()
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Fatalf("status %d\n%s", code, r.log)
		}
	}
	stop()
	now, old := filepath.Join(p.dir, "state", "store"), filepath.Join(p.dir, "old")
	if out, err := exec.Command("cp", "-a", now, old).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r = p.start()
	r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000000}`, nil)
	r.call(echo)
	stop()
	if err := os.Rename(now, now+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(old, now); err != nil {
		t.Fatal(err)
	}
	r = p.launch()
	if code := r.exit(); code != 8 || !strings.Contains(r.log.String(), "older copy") {
		t.Errorf("status %d with an older store\n%s", code, r.log)
	}
}

// TestRetention: what ended long enough ago is gone after a start, and status
// and journal say so.
func TestRetention(t *testing.T) {
	p := newPlace(t, "retention.runs = \"1ms\"\nlimits.requests_per_second = 0\n")
	r := p.start()
	id := r.call(echo).ID
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Fatalf("status %d\n%s", code, r.log)
	}
	r = p.start()
	limit := time.Now().Add(patience)
	var s hub.Status
	for s = r.status(); s.Retention.Last == nil; s = r.status() {
		if time.Now().After(limit) {
			t.Fatalf("no sweep: %+v\n%s", s.Retention, r.log)
		}
	}
	if s.Retention.RemovedRuns != 1 || s.Retention.Failed != "" || s.Retention.Runs != time.Millisecond {
		t.Errorf("status: %+v", s.Retention)
	}
	r.refused(404, "not_found", "GET", "/api/v1/runs/"+id, "")
	var j struct{ Items []hub.JournalEntry }
	r.must(200, "GET", "/api/v1/journal/entries", "", &j)
	if last := j.Items[len(j.Items)-1]; last.Act != "retention.sweep" {
		t.Errorf("the journal ends in %+v", last)
	}
}
