package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestStatusHidden: what the caller may not see is not shown as zero.
func TestStatusHidden(t *testing.T) {
	status, out, errs := try(t, t.Context(), &fake{hidden: true}, "status")
	if status != 0 || !strings.Contains(out, "hidden") || !strings.Contains(out, "uid:7") {
		t.Errorf("%d\n%s%s", status, out, errs)
	}
	for _, word := range []string{"process", "journal", "retention", "for ever", "entries", "up 0s"} {
		if strings.Contains(out, word) {
			t.Errorf("%q in\n%s", word, out)
		}
	}
}

// TestDoctor: the exit status is 3 beside a no that costs something, wherever it was
// found, and 0 beside one that costs nothing.
func TestDoctor(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	works := hub.Finding{Name: "seccomp", Answer: "yes"}
	for name, c := range map[string]struct {
		d      hub.Doctor
		socket string
		err    error
		status int
		want   string
	}{
		"well":               {hub.Doctor{Healthy: true, Findings: []hub.Finding{works}}, sock, nil, 0, "yes  socket"},
		"a no without cost":  {hub.Doctor{Healthy: true, Findings: []hub.Finding{works, {Name: "certificate", Answer: "no"}}}, sock, nil, 0, "certificate"},
		"a no with a cost":   {hub.Doctor{Healthy: true, Missing: []string{"cgroup_v2"}, Findings: []hub.Finding{{Name: "cgroup_v2", Answer: "no", Cost: "much"}}}, sock, nil, 3, "missing: cgroup_v2"},
		"a tier is missing":  {hub.Doctor{Missing: []string{"landlock"}}, sock, nil, 3, "missing: landlock"},
		"no socket":          {hub.Doctor{}, sock + "x", fault.New(fault.Unavailable, "not_reachable", "connect", nil), 75, "start palyrad"},
		"something else":     {hub.Doctor{}, "/dev/null", fault.New(fault.Unavailable, "not_reachable", "connect", nil), 75, "is no socket"},
		"not answered there": {hub.Doctor{}, sock, fault.New(fault.Unavailable, "not_reachable", "connect", nil), 75, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := try(t, t.Context(), &fake{doctor: c.d, err: c.err}, "doctor", "--socket", c.socket)
			if status != c.status || !strings.Contains(out, c.want) {
				t.Errorf("status %d, want %d with %q:\n%s%s", status, c.status, c.want, out, errs)
			}
		})
	}
	if fi, err := os.Stat(sock); err != nil || membership(sock, fi)[0].Answer != "yes" {
		t.Errorf("one's own socket: %v", err)
	}
}

// TestDoctorKeys: without palyrad, doctor repeats who let the keys that palyra exec uses lie plain.
func TestDoctorKeys(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := plainKeys(dir); len(got) != 0 {
		t.Errorf("no word: %+v", got)
	}
	for how, answer := range map[string]string{"first_use": "no", "asked": "yes"} {
		if err := os.WriteFile(filepath.Join(keys, "plain.json"), []byte(`{"by":"ann","how":"`+how+`","time":"2026-01-02T03:04:05Z","version":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := plainKeys(dir); len(got) != 1 || got[0].Answer != answer || !strings.Contains(got[0].Detail, "ann") || (len(missing(got)) > 0) != (answer == "no") {
			t.Errorf("%s: %+v", how, got)
		}
	}
	if err := os.WriteFile(filepath.Join(keys, "plain.json"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := plainKeys(dir); len(got) != 1 || got[0].Answer != "unknown" {
		t.Errorf("damaged: %+v", got)
	}
}
