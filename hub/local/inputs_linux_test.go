package local

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"palyra/authz/policy"
	"palyra/call"
	"palyra/hub"
	"palyra/isolate/egress"
	"palyra/isolate/egress/client"
	"palyra/kernel"
)

// broker is a way to hosts, through a palyra-egress in this process. No program of these tests uses
// it.
func broker(t *testing.T) *client.Listener {
	t.Helper()
	at := filepath.Join(t.TempDir(), "egress")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	b := client.Listen(l)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		egress.Serve(ctx, conn, egress.Config{})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		b.Close()
	})
	return b
}

// labelHouse is a house whose workspace src is staged, with a way to hosts and these policies.
func labelHouse(t *testing.T, files map[string][]byte) *house {
	t.Helper()
	h := &house{t: t, base: t.TempDir()}
	for _, d := range []string{h.work(), filepath.Join(h.base, "policy")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(h.base, "policy", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	way, set := broker(t), appliable(h.base, bin(t))
	h.set = func(c *Config, kc *kernel.Config) {
		set(c, kc)
		kc.Egress = way
	}
	h.reopen(h.set)
	return h
}

// codingWith is the preset coding with a list of hosts.
func codingWith(t *testing.T, hosts string) map[string][]byte {
	t.Helper()
	files, ok := policy.PresetFiles("coding")
	if !ok {
		t.Fatal("no preset")
	}
	files["some.hosts"] = []byte(hosts)
	return files
}

// away is a call that can reach a listed host, in a staged workspace.
var away = obj{"argv": []string{"/bin/sh", "-c", "echo fetched >page; echo x >>more"}, "workspace": "src", "egress_hosts": []string{"web.example"}}

// TestReachAfterOutside: the first call to a listed host runs unasked. From then on one asks, in the
// same session alone, also after a restart, and what the person is shown says why.
func TestReachAfterOutside(t *testing.T) {
	h := labelHouse(t, codingWith(t, "web.example\n"))
	ses := h.session(h.owner)
	begin := func(session string) hub.Run {
		t.Helper()
		r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: session, Staged: true, Steps: []hub.Step{step("process.run", away)}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := h.ended(h.owner, begin(ses).ID)
	if s := first.Steps[0]; s.Outcome != "executed" || s.Approval != "" {
		t.Fatalf("%s %q %s %s", s.Outcome, s.Approval, s.Reason, s.Error)
	}
	h.stop()
	h.reopen(h.set)
	if s, err := hub.GetSession.Do(t.Context(), h, h.owner, ses); err != nil || !s.Inputs.Has(call.OriginProject, call.OriginWeb) || len(s.Inputs) != 2 {
		t.Errorf("the session shows %+v, %v", s.Inputs, err)
	}
	again := begin(ses)
	h.until(h.owner, again.ID, hub.EventRunWaitingApproval)
	q := h.answer(false)
	if in := q.Card.Inputs.Outside(); len(in) != 1 || in[0].Origin != call.OriginWeb || in[0].Run != first.ID || in[0].Tool != "process.run" {
		t.Errorf("the card says %+v", q.Card.Inputs)
	}
	if !slices.ContainsFunc(q.Card.Why, func(w call.CardWhy) bool { return w.Policy == "reach_after_outside_unless_approved" }) {
		t.Errorf("asked because %+v", q.Card.Why)
	}
	if s := h.ended(h.owner, again.ID).Steps[0]; s.Outcome != "not_approved" {
		t.Errorf("%s", s.Outcome)
	}
	if s := h.ended(h.owner, begin(h.session(h.owner)).ID).Steps[0]; s.Outcome != "executed" || s.Approval != "" {
		t.Errorf("in another session: %s %s", s.Outcome, s.Reason)
	}
}

// TestForbidAfterOutside: a policy can deny what the default asks about.
func TestForbidAfterOutside(t *testing.T) {
	h := labelHouse(t, map[string][]byte{"p.cedar": []byte(`@id("all") permit (principal, action, resource);
@id("no") @untested("a test") forbid (principal, action == Palyra::Action::"tool.execute", resource)
when { context.inputs.untrusted && !context.egress_hosts.isEmpty() };
`)})
	ses := h.session(h.owner)
	r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, KeepGoing: true,
		Steps: []hub.Step{step("process.run", away), step("process.run", away), argv("/bin/true")}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range h.ended(h.owner, r.ID).Steps {
		got = append(got, s.Outcome)
	}
	if want := []string{"executed", "denied", "executed"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestApplyAfterOutside: small changes of a session are applied unasked, and after it has read from
// outside with a person's yes alone.
func TestApplyAfterOutside(t *testing.T) {
	h := labelHouse(t, codingWith(t, "web.example\n"))
	for _, test := range []struct {
		name  string
		input obj
		asks  bool
	}{
		{"files alone", obj{"argv": []string{"/bin/sh", "-c", "echo one >page"}, "workspace": "src"}, false},
		{"from outside", away, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			ses := h.session(h.owner)
			s := h.in(h.owner, ses, "process.run", string(step("process.run", test.input).Input), true)
			v := h.changes(h.owner, s.Layer)
			r, err := hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: v.Digest.String()}})
			if test.asks {
				h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
				q := h.answer(true)
				if len(q.Card.Why) != 1 || q.Card.Why[0].Policy != "apply_after_outside_unless_approved" {
					t.Errorf("asked because %+v", q.Card.Why)
				}
			}
			if got := h.did(r, err, "executed", ""); (got.Approval != "") != test.asks {
				t.Errorf("approval %q", got.Approval)
			}
		})
	}
	if h.has("page") != "fetched" {
		t.Errorf("page has %q", h.has("page"))
	}
}
