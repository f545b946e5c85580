package selfconfine

import (
	"os"
	"strings"
	"testing"
)

// FuzzThread: a status that says less than it must is an error, never a thread
// that seems confined.
func FuzzThread(f *testing.F) {
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(own))
	f.Add("NoNewPrivs:\t1\nSeccomp:\t2\nCapEff:\t0\nCapPrm:\t0\nCapBnd:\t0\n")
	f.Add("Seccomp:\t2\nSeccomp:\t0\nNoNewPrivs:\t1\nCapEff:\t0\nCapPrm:\t0\nCapBnd:\t0\n")
	f.Add("NoNewPrivs:\t1\nSeccomp:\tx\n")
	f.Fuzz(func(t *testing.T, status string) {
		th, err := parseThread(status)
		if err != nil {
			return
		}
		lines := 0
		for _, name := range []string{"NoNewPrivs:", "Seccomp:", "CapEff:", "CapPrm:", "CapBnd:"} {
			for line := range strings.Lines(status) {
				if strings.HasPrefix(line, name) {
					lines++
					break
				}
			}
		}
		if lines != 5 {
			t.Errorf("%q is taken for a thread: %+v", status, th)
		}
		if th.noNewPrivs && !strings.Contains(status, "1") {
			t.Errorf("%q has no no_new_privs", status)
		}
	})
}
