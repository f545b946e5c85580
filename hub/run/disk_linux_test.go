package run

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/internal/fault"
)

// watch is a log that tells of errors as they come.
type watch struct {
	slog.Handler
	errors chan string
}

func (w watch) Enabled(context.Context, slog.Level) bool { return true }

func (w watch) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		select {
		case w.errors <- r.Message:
		default:
		}
	}
	return nil
}

// TestFullDisk: while nothing can be written down nothing more of a run happens;
// it goes on where it was when there is room, and reading works all the time.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skip("needs root with CAP_SYS_ADMIN: mounts a tmpfs")
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	full := watch{slog.DiscardHandler, make(chan string, 1)}
	h := &house{t: t, g: newGate(), dir: filepath.Join(dir, "store")}
	h.reopen(func(c *Config) { c.Log = slog.New(full) })
	s, err := session.Create(t.Context(), h.st, alice, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	h.sess = s.ID
	tools := []string{"hold"}
	for range 40 {
		tools = append(tools, `print {"Bytes":8000}`)
	}
	id := h.start(Request{Steps: steps(tools...)})
	h.until(id, hub.EventStepStarted)

	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	for _, n := range []int{64 << 10, 4 << 10} {
		for err = nil; err == nil; {
			_, err = ballast.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	h.g.free <- struct{}{}
	<-full.errors // it cannot write down what it did
	stuck := h.read(id)
	if stuck.State != hub.RunInProgress {
		t.Errorf("it is %s", stuck.State)
	}
	made := h.g.count()
	big := Request{User: alice, Steps: steps(`ok {"x":"` + strings.Repeat("x", MaxInput/2) + `"}`)}
	if _, err := h.try(big); fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != "disk_full" {
		t.Errorf("a new run on a full disk: %v", err)
	}
	if h.g.count() != made {
		t.Errorf("%d calls were made that are not on record", h.g.count()-made)
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r := h.ended(id)
	if r.State != hub.RunDone || h.g.count() != len(tools) {
		t.Errorf("%s %s after %d calls", r.State, r.Reason, h.g.count())
	}
}
