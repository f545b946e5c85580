package local

import (
	"testing"
	"time"

	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestDeviceStreamsEnd: what a device opened with a certificate doesn't outlive it, though its token
// and its connection do.
func TestDeviceStreamsEnd(t *testing.T) {
	host, c := clock.TestOnlyNew(time.Now())
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.Clock, cfg.TokenMaxAge = c, 720*time.Hour })
	ctx := t.Context()
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "session.read", "session.write", "run.start", "artifact.read")
	d, err := h.asDevice(chain)
	if err != nil {
		t.Fatal(err)
	}
	r := h.start(d, writeFile("a.txt", "1"))
	h.until(d, r.ID, hub.EventRunWaitingApproval)
	out, err := hub.ReadOutput.Do(ctx, h, d, hub.OutputQuery{Run: r.ID, Until: hub.UntilNow})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	host.Pass(ca.LeafLife - time.Hour)
	if err := h.MayFollow(d); err != nil {
		t.Fatal("before its end: ", err)
	}
	host.Pass(2 * time.Hour)
	if err := h.MayFollow(d); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a tape goes on: %v", err)
	}
	if p, err := out.Next(ctx); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("output goes on: %+v, %v", p, err)
	}
	if _, err := hub.ListRuns.Do(ctx, h, d, hub.RunQuery{}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a caller that was let in before: %v", err)
	}
	if v, err := hub.GetDevice.Do(ctx, h, h.owner, "laptop"); err != nil || v.State != hub.DeviceActive || len(v.Certificates) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}
