package serve

import (
	"bytes"
	"testing"
	"testing/fstest"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/tier"
)

// TestOtherForms: a grant is for the canonical form of a Spec. Another text that reads the same
// has none.
func TestOtherForms(t *testing.T) {
	spec := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte("capsule")), Tier: tier.C, Argv: []string{"<&>"}, Env: []string{}, Cwd: "/workspace", Stdin: "none",
		Limits: isolate.Limits{Wall: 1, CPU: 1, Memory: 1, PIDs: 1, Output: 1, FileSize: 1, OpenFiles: 1, Disk: 1, Inodes: 1}}
	good, err := spec.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.LoadFS(fstest.MapFS{"all.cedar": {Data: []byte("@id(\"all\") permit (principal, action, resource);\n")}})
	if err != nil {
		t.Fatal(err)
	}
	key := grant.NewKey()
	a := authz.New(set, key)
	for _, c := range []struct{ from, to, want string }{
		{"", "", ""},
		{`{"argv"`, ` {"argv"`, "grant_invalid"},
		{`"workspace":null}`, `"workspace":null} `, "grant_invalid"},
		{`"<&>"`, `"\u003c&>"`, "grant_invalid"},
		{`"operands"`, `"network":"","operands"`, "grant_invalid"},
		{`"cwd":"/workspace"`, `"cwd_inode":"","cwd":"/workspace"`, "grant_invalid"},
		{`"version":1`, `"version":1,"version":1`, "cell_protocol"},
		{`"version":1`, `"Version":1`, "cell_protocol"},
	} {
		d := a.Decide(policy.Request{Principal: policy.LocalUser("test"), Action: policy.ToolExecute,
			Resource: policy.Tool("process.run"), Context: policy.Context{CapsuleDigest: spec.Capsule}})
		g, err := a.Grant(d, nil, spec.Capsule, canon.Sum(good), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		gb, err := g.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		text := bytes.Replace(good, []byte(c.from), []byte(c.to), 1)
		if c.from != "" && bytes.Equal(text, good) {
			t.Fatalf("%s is not in %s", c.from, good)
		}
		s := &server{tier: tier.C, verifier: grant.NewVerifier(key)}
		r := &wire.Request{Grant: gb, Spec: text}
		got, digest, _, err := s.admit("test", r, []int{0, 1, 2})
		if err == nil {
			err = s.permitted("test", r, got, digest)
		}
		if fault.ReasonOf(err) != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s: %v, want %q", text, err, c.want)
		}
	}
}
