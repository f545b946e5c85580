package run

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"palyra/authz/approval"
	"palyra/hub/store"
	"palyra/internal/canon"
)

// TestCardBytes holds the request column of approvals to the bytes that older versions
// wrote and read: of a question with every member, and of one with nothing in it.
func TestCardBytes(t *testing.T) {
	sum := func(s string) canon.Digest { return canon.Sum([]byte(s)) }
	full := approval.Request{Decision: [16]byte{1}, Capsule: sum("capsule"), PolicySet: sum("set"), Call: approval.Call{
		Principal: `Palyra::User::"alice"`, Tool: "process.run", Why: []approval.Why{{Policy: "ask", Reason: "it <writes>", Where: "30-sensitive.cedar:29"}},
		Argv: []string{"./s.sh", "a&b"}, Executable: "/usr/bin/dash", Digest: sum("dash"), Called: []string{"sh", "-e"}, Script: "/workspace/s.sh", ScriptDigest: sum("script"),
		Readers: []approval.Operand{{Path: "/usr/bin/dash", Digest: sum("dash")}}, Operands: []approval.Operand{{Path: "/workspace/a", Digest: sum("a")}},
		EnvNames: []string{"PATH"}, EnvChanged: []string{"PATH=/workspace/bin"}, Cwd: "/workspace", Workspace: "/home/alice", ReadOnly: true, Stdin: "sealed",
		EgressHosts: []string{"example.org"}, Capabilities: []string{"process_exec"}, Tier: "c", Limits: "wall 30s",
		EnvDigest: sum("env"), StdinDigest: sum("in"), StdinSize: 2, StdinHead: "i\x1b", Network: "void",
		Bounds: approval.Limits{Wall: 1, CPU: 2, Memory: 3, PIDs: 4, Output: 5, FileSize: 6, OpenFiles: 7, Disk: 8, Inodes: 9},
		Kind:   "shell", System: true, Sensitive: true, Loose: []string{"/workspace/l"}, Absent: []string{"/workspace/n"}, Libraries: []string{"/workspace/lib"},
		Folders: []string{"/workspace/d"}, Named: []string{"", "file"}, Planted: []approval.Planted{{Path: ".git/hooks/x", Kind: "hook", Why: "git runs it"}},
	}}
	for name, q := range map[string]approval.Request{"full": full, "empty": {}} {
		want, err := os.ReadFile("testdata/card-" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(cardOf(&q)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\ngot  %s\nwant %s", name, err, got, want)
		}
		v, err := ApprovalOf(&store.Approval{Request: want})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again, err := json.Marshal(card{v.Card, v.Text}); err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s reads back as %s, %v", name, again, err)
		}
	}
}

// TestRecordBytes holds the output column of steps to the bytes that older versions wrote.
func TestRecordBytes(t *testing.T) {
	d := func(s string) string { return canon.Sum([]byte(s)).String() }
	for _, want := range []string{
		`{"index":0,"tool":"","state":"done","exit":0,"stdout":{"size":0},"stderr":{"size":0}}`,
		`{"index":0,"tool":"","state":"done","call_id":"call_1","capsule":"` + d("capsule") + `","outcome":"denied","exit":126,"reason":"forbidden","error":"e",` +
			`"denial":{"decision_id":"01","layer":"policy","reason":"forbidden","policies":["p"],"policy_set":"` + d("set") + `","capsule":"` + d("capsule") + `"},` +
			`"stdout":{"size":9000,"text":"a","artifact":"` + d("a") + `"},"stderr":{"size":1,"base64":"/w=="},"log_index":7}`,
	} {
		var r record
		if err := json.Unmarshal([]byte(want), &r); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(&r); err != nil || string(got) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
}
