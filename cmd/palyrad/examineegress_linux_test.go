package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
)

// egress returns doctor's finding, and whether it is missed.
func (r *running) egress() (hub.Finding, bool) {
	r.t.Helper()
	var d hub.Doctor
	r.must(200, "GET", "/api/v1/doctor", "", &d)
	at := slices.IndexFunc(d.Findings, func(f hub.Finding) bool { return f.Name == "egress" })
	if at < 0 {
		r.t.Fatalf("no finding: %+v", d.Findings)
	}
	return d.Findings[at], slices.Contains(d.Missing, "egress")
}

// TestDoctorEgress: a palyra-egress that dies is there again, although palyrad can start nothing
// itself; without the process that starts it doctor says so. It ends with palyrad.
func TestDoctorEgress(t *testing.T) {
	p := newPlace(t, "")
	withEgress(t, p)
	r := p.start()
	if f, missing := r.egress(); f.Answer != "yes" || missing {
		t.Fatalf("%+v", f)
	}
	keeper, worker := 0, 0
	find := func() bool {
		keeper, worker = 0, 0
		for _, c := range r.children(r.cmd.Process.Pid) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c))
			if err == nil && string(line) == "palyra-egress\x00keep\x00" {
				keeper = c
			}
		}
		if keeper == 0 {
			t.Fatal("palyrad has no palyra-egress")
		}
		if w := r.children(keeper); len(w) == 1 {
			worker = w[0]
		}
		return worker != 0
	}
	for range 2 {
		for limit := time.Now().Add(patience); !find(); {
			if time.Now().After(limit) {
				t.Fatal("there is no palyra-egress to kill")
			}
		}
		if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		// The order may be the one that the dead one has taken.
		f, missing := r.egress()
		for limit := time.Now().Add(patience); f.Answer != "yes"; f, missing = r.egress() {
			if time.Now().After(limit) {
				t.Fatalf("%+v", f)
			}
		}
		if missing {
			t.Errorf("%+v is missing", f)
		}
	}
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f, missing := r.egress()
	for limit := time.Now().Add(patience); f.Answer == "yes"; f, missing = r.egress() {
		if time.Now().After(limit) {
			t.Fatal("doctor misses nothing")
		}
	}
	if !missing || f.Cost == "" || f.Fix == "" {
		t.Errorf("%+v, missing %v", f, missing)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	gone(t, p.bin, 0)
}

// TestDoctorNoEgress: a palyrad without palyra-egress, or with egress off, misses nothing, and says so.
func TestDoctorNoEgress(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	if f, missing := r.egress(); f.Answer != "no" || f.Fix == "" || missing {
		t.Errorf("%+v, missing %v", f, missing)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	off := newPlace(t, "egress.enabled = false\n")
	withEgress(t, off)
	r = off.start()
	if f, missing := r.egress(); f.Answer != "yes" || missing {
		t.Errorf("%+v, missing %v", f, missing)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	gone(t, off.bin, 0)
}
