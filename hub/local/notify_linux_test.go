package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/hub"
	"palyra/kernel"
)

// TestNotifyTogether: what comes soon after a notification is one with the next, and what waits no
// more by then isn't told.
func TestNotifyTogether(t *testing.T) {
	policies := filepath.Join(t.TempDir(), "policy")
	if err := os.Mkdir(policies, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policies, "p.cedar"), []byte(`@id("all") permit (principal, action, resource) when { context.approved };
@id("rest") permit (principal, action, resource) unless { action == Palyra::Action::"tool.execute" };
`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(c *Config, kc *kernel.Config) {
		kc.PolicyDir = policies
		c.Notify = Notify{URL: "https://ntfy.example/", Every: 3 * time.Second}
	})
	ctx, end := context.WithCancel(t.Context())
	var over sync.WaitGroup
	over.Go(func() { h.Notify(ctx) })
	defer over.Wait()
	defer end()
	told := func(n int) string {
		t.Helper()
		for {
			p, err := hub.ListRuns.Do(t.Context(), h, h.owner, hub.RunQuery{Principal: daemonsOwn})
			if err != nil || len(p.Items) > n {
				t.Fatalf("%d notifications, want %d; %v", len(p.Items), n, err)
			}
			if len(p.Items) == n {
				return string(h.ended(h.owner, p.Items[0].ID).Steps[0].Input)
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatal(t.Context().Err())
			}
		}
	}
	ask := func() string {
		r := h.start(h.owner, argv("/usr/bin/stty"))
		h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
		return r.ID
	}
	first := ask()
	if in := told(1); !strings.Contains(in, `\"waiting\":1`) {
		t.Errorf("the first says %s", in)
	}
	gone := ask()
	ask()
	ask()
	for _, id := range []string{first, gone} {
		if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, id); err != nil {
			t.Fatal(err)
		}
	}
	if in := told(2); !strings.Contains(in, `\"waiting\":2`) {
		t.Errorf("the second says %s", in)
	}
	if h.Notified() == nil { // there is no palyra-fetch here
		t.Error("a failure isn't known")
	}
}
