package kernel

import (
	"testing"

	"palyra/authz/approval"
	vocabulary "palyra/call"
	"palyra/crypt/receipt"
)

// TestInputsDecide: policy sees what the session has read when the call is decided, the card says
// it, and a call whose answer would be another by the time that its program begins doesn't run.
func TestInputsDecide(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("a") permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.executable.name == "true" || context.approved };
@id("b") forbid (principal, action == Palyra::Action::"tool.execute", resource)
when { context.inputs.untrusted && context.executable.name == "true" };
@id("c") forbid (principal, action == Palyra::Action::"tool.execute", resource)
when { context.inputs.origins.contains("model") && context.executable.name == "cat" };
@id("d") permit (principal, action == Palyra::Action::"approval.self", resource);`, 0o644)
	put(t, dir+"/a.test.json", `{"version": 1,
"base": {"principal": {"type": "Palyra::User", "id": "u", "roles": []}, "action": "tool.execute", "resource": {"type": "Palyra::Tool", "id": "process.run"}, "context": {"tier": "c"}},
"tests": [
{"name": "b", "request": {"context": {"executable": {"path": "/bin/true"}, "inputs": ["web"]}}, "effect": "deny", "policies": ["b"]},
{"name": "c", "request": {"context": {"executable": {"path": "/bin/cat"}, "inputs": ["model"]}}, "effect": "deny", "policies": ["c"]}
]}`, 0o644)
	var label, later vocabulary.Inputs // at the decision, and from the person's answer on
	var card []string
	h := openHouse(t, Config{PolicyDir: dir, Approver: answer{yes: true, while: func(q approval.Request) {
		card, label = q.Call.Inputs.Origins(), later
	}}})
	reads := 0
	growing := func() vocabulary.Inputs { // a read of another call's, between decision and start
		if reads++; reads > 1 {
			return later
		}
		return label
	}
	web, model := vocabulary.Input{Origin: vocabulary.OriginWeb, Tool: "http.fetch"}, vocabulary.Input{Origin: vocabulary.OriginModel}
	for _, c := range []struct {
		name       string
		program    string
		at, start  vocabulary.Inputs
		want, code string
	}{
		{"nothing read", "true", nil, nil, receipt.Executed, ""},
		{"a model alone", "true", vocabulary.Inputs{model}, vocabulary.Inputs{model}, receipt.Executed, ""},
		{"from outside", "true", vocabulary.Inputs{web}, vocabulary.Inputs{web}, receipt.Denied, "forbidden"},
		{"from outside since", "true", nil, vocabulary.Inputs{web}, receipt.Refused, "policy_changed"},
		{"a model since", "true", nil, vocabulary.Inputs{model}, receipt.Executed, ""},
		{"approved, from outside", "cat", vocabulary.Inputs{web}, vocabulary.Inputs{web}, receipt.Executed, ""},
		{"approved, from outside since", "cat", nil, vocabulary.Inputs{web}, receipt.Executed, ""},
		{"approved, forbidden since", "cat", nil, vocabulary.Inputs{model}, receipt.Refused, "policy_changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			label, later, reads, card = c.at, c.start, 0, nil
			who := Caller{Principal: h.cfg.Principal, Approver: h.cfg.Approver, Read: growing}
			o, err := h.CallAs(t.Context(), who, *proposal(c.program), IO{})
			if err != nil {
				t.Fatal(err)
			}
			reason := ""
			if o.Error != nil {
				reason = o.Error.Reason
			}
			if o.Outcome != c.want || reason != c.code || (o.Intent != nil) != (c.want == receipt.Executed) {
				t.Errorf("got %s %q, intent %v, want %s %q", o.Outcome, reason, o.Intent, c.want, c.code)
			}
			if c.program == "cat" && len(card) != len(c.at) {
				t.Errorf("the card says %q, and the label was %q", card, c.at.Origins())
			}
			// The decision is the same when it's asked again from the receipt.
			p := &h.verify(o).Statement.Predicate
			q, err := QuestionOf(p)
			if err != nil {
				t.Fatal(err)
			}
			if d := h.PolicySet().Decide(q); d.Effect.String() != p.Decision.Effect {
				t.Errorf("asked again: %s, the receipt says %s", d.Effect, p.Decision.Effect)
			}
		})
	}
}
