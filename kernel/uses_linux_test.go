package kernel

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/call/egress"
	"palyra/crypt/receipt"
	"palyra/crypt/vault"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

const useNPM = "TOKEN=vault://global/npm header:authorization packages.example:443 form:npm_"

// using is a proposal with uses of secrets, found in no vault but made up.
func using(uses ...string) *Proposal {
	p := proposal("/bin/true")
	p.EgressSecrets = uses
	for _, u := range uses {
		p.uses = append(p.uses, vocabulary.EgressSecret{Use: u, Version: 3, Record: canon.Sum([]byte("a record"))})
	}
	return p
}

// TestUsesAreSealed: the capsule has the uses and the hosts that they need, no placeholder, and is the
// same for equal calls, whose programs have different placeholders.
func TestUsesAreSealed(t *testing.T) {
	var specs []string
	var ids []canon.Digest
	for range 2 {
		p := using("AGAIN=vault://global/npm query:key packages.example:8443", useNPM, "TOKEN=vault://global/npm header:authorization upload.example:443 form:npm_")
		p.EgressInspect, p.EgressHosts = []string{"get,head packages.example/simple/"}, []string{"plain.example:22"}
		s, err := seal(t.Context(), p, nil, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		c := s.capsule
		if want := []string{"packages.example:443", "packages.example:8443", "plain.example:22", "upload.example:443"}; !slices.Equal(c.EgressHosts, want) || c.Network != isolate.NetworkEgress {
			t.Errorf("hosts %q, want %q; network %q", c.EgressHosts, want, c.Network)
		}
		if want := []string{"GET,HEAD packages.example:443/simple/"}; !slices.Equal(c.EgressInspect, want) {
			t.Errorf("requests %q, want %q", c.EgressInspect, want)
		}
		if got := capsule.UseTexts(c.EgressSecrets); len(got) != 3 || !slices.IsSorted(got) {
			t.Errorf("uses %q", got)
		}
		if can := capabilities(c); !slices.Contains(can, policy.CapSecretsUse) || slices.Contains(can, policy.CapSecretsRead) {
			t.Errorf("capabilities %q", can)
		}
		x := s.spec()
		var token, again string
		for _, e := range x.Env {
			name, value, _ := strings.Cut(e, "=")
			switch name {
			case "TOKEN":
				token = value
			case "AGAIN":
				again = value
			}
		}
		if egress.CheckPlaceholder("npm_", token) != nil || egress.CheckPlaceholder("", again) != nil || len(x.Env) != len(c.Env)+2 {
			t.Errorf("the program has %q", x.Env)
		}
		if bytes.Contains(s.bytes, []byte(token)) || bytes.Contains(s.bytes, []byte(again)) {
			t.Error("the capsule has a placeholder")
		}
		for _, e := range isolate.RootsEnv() {
			if !slices.Contains(c.Env, e) || slices.ContainsFunc(changedEnv(c.Env, nil), rootsVariable) {
				t.Errorf("%s of %q, which policy sees as %q", e, c.Env, changedEnv(c.Env, nil))
			}
		}
		if !x.Egress.Roots || !slices.Equal(s.spec().Env, x.Env) {
			t.Errorf("a second spec is another: %+v", x.Egress)
		}
		order := s.orderUses()
		if len(order) != 3 || order[1].Placeholder != token || order[2].Placeholder != token || order[0].Placeholder != again || order[1].Use != useNPM {
			t.Errorf("palyra-egress is told %+v", order)
		}
		specs, ids = append(specs, token), append(ids, s.id)
	}
	if specs[0] == specs[1] || ids[0] != ids[1] {
		t.Errorf("two equal calls: placeholders %q, capsules %v", specs, ids)
	}
	s, err := seal(t.Context(), hostly("a.example"), nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if x := s.spec(); x.Egress.Roots || slices.ContainsFunc(x.Env, rootsVariable) || bytes.Contains(s.bytes, []byte("egress_inspect")) || bytes.Contains(s.bytes, []byte("egress_secrets")) {
		t.Errorf("a call without inspected hosts: %+v, %q, %s", x.Egress, x.Env, s.bytes)
	}
}

func rootsVariable(e string) bool { return rootsName(capsule.Name(e)) }

// TestUsesRefused: what can't be is refused before anything is asked or found.
func TestUsesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Proposal)
		reason string
	}{
		"tier b":                {func(p *Proposal) { p.TierFloor = tier.B }, "invalid_input"},
		"no use":                {func(p *Proposal) { p.EgressSecrets = []string{"TOKEN"} }, "invalid_input"},
		"an address":            {func(p *Proposal) { p.EgressInspect = []string{"192.0.2.1:443"} }, "invalid_input"},
		"void":                  {func(p *Proposal) { p.Network = isolate.NetworkVoid }, "invalid_input"},
		"the variable is set":   {func(p *Proposal) { p.Env = []string{"TOKEN=x"} }, "invalid_input"},
		"roots of the caller's": {func(p *Proposal) { p.Env = []string{"SSL_CERT_FILE=/workspace/ca.pem"} }, "invalid_input"},
		"roots of every call":   {func(p *Proposal) { *p = *using("SSL_CERT_FILE=vault://global/npm header:x a.example:443") }, "invalid_input"},
		"PATH":                  {func(p *Proposal) { *p = *using("PATH=vault://global/npm header:x a.example:443") }, "invalid_input"},
		"a loader's":            {func(p *Proposal) { *p = *using("LD_PRELOAD=vault://global/npm header:x a.example:443") }, "invalid_input"},
		"two versions": {func(p *Proposal) {
			*p = *using(useNPM, "TOKEN=vault://global/npm header:authorization z.example:443 form:npm_")
			p.uses[1].Version++
		}, "invalid_input"},
	} {
		p := using(useNPM)
		c.change(p)
		s, err := seal(t.Context(), p, nil, "", nil)
		if err == nil {
			s.close()
		}
		if fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v, want %s", name, err, c.reason)
		}
	}
	// A variable that leads to the authority of another call would be shown to no approver.
	p := proposal("/bin/true")
	p.Env = isolate.RootsEnv()[len(isolate.RootsEnv())-1:]
	if _, err := seal(t.Context(), p, nil, "", nil); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("%q: %v", p.Env, err)
	}
}

// TestTraps: later proposals that have a placeholder are refused, and one act of each principal says
// so, however often it comes and whoever only asks what would be decided. The version that the use
// named has expired. Another process on the state directory knows the placeholder, too, and one that
// is opened later.
func TestTraps(t *testing.T) {
	const ref = "vault://global/npm"
	user := vaultWith(t, map[string]string{ref: "the value of it"})
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	h := openHouse(t, Config{PolicyDir: dir, Vault: user})
	var info vault.Info
	var record canon.Digest
	find := func() {
		t.Helper()
		if err := user(t.Context(), h.VaultLedger(), func(v *vault.Vault) (err error) {
			r, err := vault.ParseRef(ref)
			if err == nil {
				info, record, err = v.Find(t.Context(), r, 0)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	find()
	earlier := func(use string) (string, *call) {
		p := using(use)
		p.uses[0].Version, p.uses[0].Record = info.Version, record
		s, err := seal(t.Context(), p, nil, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		s.spec()
		c := newCall(h.Kernel, &Caller{Principal: policy.LocalUser("uid:1")}, s, &Proposal{RunID: "run_1"}, nil)
		if err := c.setTripwire(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		return s.placeholders[0].text, c
	}
	kept, _ := earlier(useNPM)
	for _, p := range []Proposal{
		{Tool: ToolRun, Argv: []string{"echo", "it is " + kept + "!"}},
		{Tool: ToolRun, Argv: []string{"echo", strings.ToUpper(kept)}},
		{Tool: ToolRun, Argv: []string{"env"}, Env: []string{"A=xx" + kept[4:] + "yy"}},
		{Tool: "x", Input: []byte(`{"key":"` + kept + `"}`)},
	} {
		if o, err := h.Call(t.Context(), p, IO{}); fault.ReasonOf(err) != "placeholder_leaked" || o != nil || strings.Contains(err.Error(), kept) {
			t.Errorf("%q: %v, %v", p.Argv, o, err)
		}
	}
	again := Proposal{Tool: ToolRun, Argv: []string{"echo", kept}}
	for _, ask := range []func() error{
		func() error {
			_, _, err := h.Explain(t.Context(), Caller{Principal: h.cfg.Principal}, again, nil)
			return err
		},
		func() error {
			_, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("uid:2")}, again, IO{})
			return err
		},
	} {
		if err := ask(); fault.ReasonOf(err) != "placeholder_leaked" {
			t.Errorf("got %v", err)
		}
	}
	if o := h.call(&Proposal{Tool: ToolRun, Argv: []string{"/bin/echo", kept[:43], strings.Repeat("a0", 60)}}, IO{}); o.Outcome != receipt.Executed {
		t.Errorf("a part of it: %s", o.Outcome)
	}
	if find(); info.Expired() {
		t.Error("a leak without revoke expired the version")
	}
	beside := openHouse(t, Config{PolicyDir: dir, StateDir: h.dir}) // which was open when the next was drawn
	revoked, _ := earlier(useNPM + " revoke")
	later := openHouse(t, Config{PolicyDir: dir, Vault: user, StateDir: h.dir})
	for _, other := range []*house{beside, later} {
		if o, err := other.Call(t.Context(), again, IO{}); fault.ReasonOf(err) != "placeholder_leaked" || o != nil {
			t.Errorf("another process: %v, %v", o, err)
		}
	}
	if find(); info.Expired() {
		t.Error("the version has expired already")
	}
	if _, err := later.Call(t.Context(), Proposal{Tool: ToolRun, Argv: []string{"echo", revoked}}, IO{}); fault.ReasonOf(err) != "placeholder_leaked" {
		t.Errorf("got %v", err)
	}
	if find(); !info.Expired() {
		t.Error("the version hasn't expired")
	}
	acts := 0
	for rec, err := range h.JournalEntries(0, h.state.journal.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(rec.Content, []byte(kept)) || bytes.Contains(rec.Content, []byte(revoked)) {
			t.Error("the journal has a placeholder")
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			t.Fatal(err)
		}
		_, a, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if a == nil || a.Act != ActTripwire {
			continue
		}
		acts++
		if a.Subject != ref || a.Detail["where"] != "call" || a.Detail["variable"] != "TOKEN" || a.Detail["run"] != "run_1" || acts == 5 && a.Detail["revoked"] != "true" {
			t.Errorf("the act says %+v", a)
		}
	}
	if acts != 5 {
		t.Errorf("%d acts", acts)
	}
}

// TestTripwire: output is looked at in all spellings, whatever its parts, and what is passed on has
// none. The first that is seen ends the run.
func TestTripwire(t *testing.T) {
	s, err := seal(t.Context(), using(useNPM), nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.spec()
	h := openHouse(t, Config{})
	for name, text := range map[string]string{"as it is": "a %s b\n", "half": "%.30s\n", "base64": "Basic eDpucG1f\n", "upper": "nothing\n"} {
		c := newCall(h.Kernel, &Caller{Principal: policy.LocalUser("uid:1")}, s, new(Proposal), nil)
		ended := make(chan struct{}, 100)
		if err := c.setTripwire(t.Context(), func() { ended <- struct{}{} }); err != nil {
			t.Fatal(err)
		}
		token := s.placeholders[0].text
		if strings.Contains(text, "%") {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "%s", token), "%.30s", token[:30])
		}
		st := c.trip.stream(evidence.LeakStdout)
		var out bytes.Buffer
		for i := range text {
			out.Write(st.Next([]byte(text[i : i+1])))
		}
		out.Write(st.End())
		leaks := c.trip.seen()
		if name != "as it is" {
			if len(leaks) != 0 || len(ended) != 0 || out.String() != text {
				t.Errorf("%s: %q, %v", name, out.String(), leaks)
			}
			continue
		}
		if out.String() != "a [secret placeholder of TOKEN] b\n" || len(leaks) != 1 || leaks[0] != (evidence.Leak{Name: "TOKEN", Where: evidence.LeakStdout}) || len(ended) != 1 {
			t.Errorf("%s: %q, %v, %d", name, out.String(), leaks, len(ended))
		}
		outcome, err := c.leaked(t.Context(), receipt.Executed, nil)
		if outcome != receipt.Failed || fault.ReasonOf(err) != "placeholder_leaked" || fault.HintOf(err) == "" || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %s, %v", name, outcome, err)
		}
		c.over()
	}
	var none *tripwire
	if none.name("x") != "x" || none.look("planted", "x") != "x" || none.seen() != nil || none.stream("stdout") != nil {
		t.Error("a call without uses has a tripwire")
	}
	none.saw(evidence.Leak{})
}
