package run

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"palyra/hub"
)

// TestAccount: what the store tells of runs, whatever becomes of them, is within a
// factor of two of what its database grows by. With failed calls it was a
// thirteenth.
func TestAccount(t *testing.T) {
	const user, runs = "uid:7", 240
	for _, test := range []struct{ name, tool, state string }{
		{"fails before it is decided", "unknown", hub.RunFailed},
		{"denied", "deny", hub.RunFailed},
		{"made", "ok", hub.RunDone},
		{"prints", `print {"Bytes":3000}`, hub.RunDone},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := open(t, nil)
			size := func() int64 {
				t.Helper()
				h.stop() // which puts all of it into the one file
				fi, err := os.Stat(filepath.Join(h.dir, "palyra.db"))
				if err != nil {
					t.Fatal(err)
				}
				return fi.Size()
			}
			before := size()
			h.reopen(nil)
			var mu sync.Mutex
			told := make(map[string]int64)
			h.st.OnWritten(func(who string, n int64) {
				mu.Lock()
				defer mu.Unlock()
				told[who] += n
			})
			var callers sync.WaitGroup // whose commits are shared
			for range 6 {
				callers.Go(func() {
					for range runs / 6 {
						id, err := h.try(Request{User: user, Steps: steps(test.tool), Attended: true})
						if err == nil {
							err = h.Wait(t.Context(), id)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			if t.Failed() {
				return
			}
			if r := h.ended(h.start(Request{User: user, Steps: steps(test.tool)})); r.State != test.state {
				t.Errorf("a run is %s", r.State)
			}
			grown := size() - before
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%d bytes a run, accounted %d", grown/runs, told[user]/runs)
			if n := told[user]; n < grown/2 || n > 2*grown || len(told) != 1 {
				t.Errorf("the database grew by %d bytes, accounted %v", grown, told)
			}
		})
	}
}
