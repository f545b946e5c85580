package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
)

// TestYesOfTerminal: a person at a terminal isn't asked for a yes that policy wouldn't take from
// them: one that a forbid has, that takes a passkey or another person, or that a set permits by name
// and not to them. A set that names no one's yes leaves it to them.
func TestYesOfTerminal(t *testing.T) {
	const answers = `@id("answers") permit (principal, action == Palyra::Action::"approval.resolve", resource);` + "\n"
	forbid := func(action, unless string) string {
		return `@id("no") @untested("here") forbid (principal, action == Palyra::Action::"` + action + `", resource) unless { ` + unless + " };\n"
	}
	const resolve, self = "approval.resolve", "approval.self"
	for _, c := range []struct{ policies, detail string }{ // "": asked, and executed
		{"", ""},
		{answers, ""},
		{`@id("all") permit (principal, action, resource) when { context.approved };` + "\n", ""},
		{`@id("none") @untested("here") forbid (principal, action, resource) unless { context.approved };` + "\n", ""},
		{answers + forbid(resolve, "context.passkey"), "takes a passkey"},
		{answers + forbid(resolve, "context.passkey && context.approvers >= 2"), "takes a passkey"},
		{answers + forbid(resolve, "context.passkey || context.channel == \"terminal\""), ""},
		{answers + forbid(resolve, "context.approvers >= 2"), "takes 2 people"},
		{forbid(resolve, "context.approvers >= 3"), "takes 3 people"},
		{answers + forbid(resolve, "context.passkey || context.approvers >= 2"), "takes 2 people"},
		{answers + forbid(resolve, "context.approver != context.requester"), "from the person at this terminal: forbidden no"},
		{forbid(resolve, "context.approver != context.requester"), "from the person at this terminal: forbidden no"},
		{answers + forbid(self, "false"), "from the person at this terminal: forbidden no"},
		{answers + forbid(self, "context.passkey"), "takes a passkey"},
		{answers + forbid(self, "context.channel == \"terminal\""), ""},
		{answers + forbid(resolve, "context.egress_hosts == [\"a.example:443\"] || context.tool == \"process.run\""), ""},
		{`@id("alice") permit (principal == Palyra::User::"alice", action == Palyra::Action::"approval.resolve", resource);` + "\n", "from the person at this terminal: not_permitted"},
		{`@id("owner") permit (principal in Palyra::Role::"owner", action in [Palyra::Action::"approval.resolve"], resource) when { context.scope == "once" };` + "\n", ""},
		{answers + forbid(resolve, "context.approvers + 9223372036854775807 > 0"), "from the person at this terminal: policy_error"},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, dir+"/all.cedar", `@id("asked") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.approved };`+"\n"+c.policies, 0o644)
		h := openHouse(t, Config{PolicyDir: dir, Approver: answer{yes: true}})
		o := h.call(proposal("/bin/true"), IO{})
		want := receipt.Executed
		if c.detail != "" {
			want = receipt.NotApproved
		}
		if o.Outcome != want || o.Approval == nil {
			t.Fatalf("%s: %s, %+v, %v", c.policies, o.Outcome, o.Approval, o.Error)
		}
		if !strings.Contains(o.Approval.Detail, c.detail) || c.detail != "" && !strings.Contains(o.Approval.Detail, "through palyrad") {
			t.Errorf("%s: %q", c.policies, o.Approval.Detail)
		}
	}
}

// TestYesOfTerminalPresets: the sets that ship take the yes of the person at the terminal, for a call
// with a host as well, but for strict, which takes two people's.
func TestYesOfTerminalPresets(t *testing.T) {
	for name, detail := range map[string]string{"": "", "coding": "", "strict": "takes 2 people"} {
		dir := "" // the built-in set
		if files, ok := policy.PresetFiles(name); ok && name != "" {
			dir = t.TempDir()
			for file, text := range files {
				put(t, filepath.Join(dir, file), string(text), 0o600)
			}
		}
		h := openHouse(t, Config{PolicyDir: dir})
		for _, can := range [][]string{{policy.CapProcessExec}, {policy.CapProcessExec, policy.CapNetwork, policy.CapSecretsUse}} {
			err := here{h.Kernel, h.cfg.Principal, answer{yes: true}}.refuses(&approval.Request{Call: approval.Call{Tool: ToolRun, Executable: "/usr/bin/curl", Capabilities: can, Tier: "c"}})
			if (err == nil) != (detail == "") || err != nil && !strings.Contains(err.Error(), detail) {
				t.Errorf("%q, %q: %v", name, can, err)
			}
		}
	}
}
