package policy

import (
	"strings"
	"testing"

	"palyra/internal/fault"
)

// floorRequest is a request that the default set allows.
func floorRequest(certificate string) Request {
	return Request{Principal: Entity{Type: TypeUser, ID: "alice", Roles: []string{RoleOperator}}, Action: ToolExecute, Resource: Tool("process.run"),
		Context: Context{Executable: Executable{Path: "/usr/bin/true", System: true}, Tier: "c", Certificate: certificate}}
}

// TestFloor: a set with the floor decides as without, except that no call runs at an unproven
// tier, approved or not.
func TestFloor(t *testing.T) {
	plain := Default()
	floored, err := plain.WithFloor()
	if err != nil {
		t.Fatal(err)
	}
	if floored.Digest() == plain.Digest() {
		t.Error("the floor is not part of the digest")
	}
	if err := floored.validate(t.Context()); err != nil {
		t.Errorf("the floor is not valid against the schema: %v", err)
	}
	restored, err := Restore(floored.Texts(), "", floored.Digest())
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"/usr/bin/true", "/usr/bin/cc"} { // allowed, and allowed if approved
		for _, tier := range []string{"b", "c"} {
			for certificate, held := range map[string]bool{"": true, CertificateNone: true, CertificateRefuted: true, CertificateProven: false} {
				r := floorRequest(certificate)
				r.Context.Executable.Path, r.Context.Tier = program, tier
				want := plain.Decide(r)
				got := floored.Decide(r)
				if want.Effect == Deny {
					t.Fatalf("%s is denied without the floor", program)
				}
				switch {
				case held && (got.Effect != Deny || got.Reason != ReasonForbidden || len(got.Policies) != 1 || got.Policies[0] != FloorCertificate):
					t.Errorf("%s at %s with %q: %v %s by %v, want the floor to deny", program, tier, certificate, got.Effect, got.Reason, got.Policies)
				case held && !strings.Contains(floored.Fix(r), FloorCertificate), held && strings.HasPrefix(floored.Fix(r), "--- "):
					t.Errorf("%s with %q: the fix offers %q", program, certificate, floored.Fix(r))
				case held && restored.Fix(r) != floored.Fix(r):
					t.Errorf("%s with %q: restored, the set offers %q", program, certificate, restored.Fix(r))
				case !held && (got.Effect != want.Effect || got.Reason != want.Reason):
					t.Errorf("%s at %s with %q: %v %s, without the floor %v %s", program, tier, certificate, got.Effect, got.Reason, want.Effect, want.Reason)
				}
			}
		}
	}
	// The floor doesn't apply to requests that aren't calls.
	r := Request{Principal: floorRequest("").Principal, Action: "tool.list", Resource: Entity{Type: TypeWorkspace, ID: "/"}}
	if d := floored.Decide(r); d.Effect != Allow {
		t.Errorf("tool.list: %v %s %v", d.Effect, d.Reason, d.Errors)
	}
}

// TestFloorIsNotOfTheDirectory: tests, diffs and files are the directory's; the texts kept to
// explain old decisions include the floor.
func TestFloorIsNotOfTheDirectory(t *testing.T) {
	floored, err := Default().WithFloor()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := floored.WithFloor(); err != nil || again != floored {
		t.Errorf("a second floor: %v", err)
	}
	results := floored.RunTests()
	for _, res := range results {
		if !res.Passed {
			t.Errorf("test %q: %s", res.Name, res.Got)
		}
	}
	if len(results) == 0 || len(results) != len(Default().RunTests()) {
		t.Errorf("%d tests", len(results))
	}
	if floored.Files()[FloorFile] != nil || len(floored.Files()) != len(Default().Files()) {
		t.Error("the floor is among the files of the directory")
	}
	patched, err := floored.Patch([]byte("--- /dev/null\n+++ b/x.cedar\n@@ -0,0 +1 @@\n+@id(\"x\") permit (principal == Palyra::User::\"x\", action, resource);\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := floorRequest(CertificateNone)
	r.Principal = Entity{Type: TypeUser, ID: "x"}
	if d := patched.Decide(r); d.Effect != Deny || d.Policies[0] != FloorCertificate {
		t.Errorf("a patch takes the floor away: %v by %v", d.Effect, d.Policies)
	}
	restored, err := Restore(floored.Texts(), "", floored.Digest())
	if err != nil {
		t.Fatal(err)
	}
	if d := restored.Decide(floorRequest(CertificateNone)); d.Effect != Deny {
		t.Errorf("restored: %v", d.Effect)
	}
	if _, err := restored.WithFloor(); fault.ReasonOf(err) != "policy_invalid" || !strings.Contains(err.Error(), "is the floor's") {
		t.Errorf("a directory that has a file of the floor's name: %v", err)
	}
}
