package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// TestMemoryRestored: a state with memory that was saved and restored by the documented commands
// answers the same search; without the vault's key, or with another's, it answers none.
func TestMemoryRestored(t *testing.T) {
	p := newPlace(t, "")
	state, key, other, aged := filepath.Join(p.dir, "state"), filepath.Join(p.dir, "vault.key"), filepath.Join(p.dir, "other.key"), filepath.Join(p.dir, "age.key")
	command := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(p.bin, "palyra"), args...)
		cmd.Env = append(os.Environ(), "PALYRA_NO_INPUT=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("palyra %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	command("vault", "init", "--state", state, "--key", key)
	command("vault", "identity", other)
	with := func(identity string) string { return fmt.Sprintf("[vault]\nidentity = %q\n", identity) }
	post := func(r *running, path, body string) (m hub.MemoryResult, reason string) {
		t.Helper()
		resp, err := r.client().Post("http://localhost/api/v1/memory/"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || resp.StatusCode != 200 || len(m.Run.Steps) != 1 {
			t.Fatalf("%s: %d %+v, %v\n%s", path, resp.StatusCode, m, err, r.log)
		}
		return m, m.Run.Steps[0].Reason
	}
	search := func(r *running) (hub.MemoryResult, string) {
		t.Helper()
		return post(r, "search", `{"query":"what is the staging host called?"}`)
	}
	end := func(r *running) {
		t.Helper()
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("status %d\n%s", code, r.log)
		}
	}

	p.write(with(key))
	r := p.start()
	post(r, "add", `{"items":[{"text":"The staging host is called Brontosaurus.","tags":["hosts"]},{"text":"Releases are built by make dist."}]}`)
	before, reason := search(r)
	if reason != "" || len(before.Items) == 0 || !strings.Contains(before.Items[0].Text, "Brontosaurus") {
		t.Fatalf("%q, %+v", reason, before)
	}
	file := filepath.Join(p.dir, "backup.age")
	command("backup", "create", "--socket", p.sock, "--recipient", command("backup", "keygen", aged), file)
	post(r, "add", `{"items":[{"text":"The staging host was called something else after the backup."}]}`)
	end(r)
	if err := os.Rename(state, state+".was"); err != nil {
		t.Fatal(err)
	}
	command("backup", "verify", "--identity", aged, file)
	command("backup", "restore", "--identity", aged, file, state)
	if out, err := exec.Command("cp", "-a", filepath.Join(state+".was", "keys"), state).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	for name, config := range map[string]string{"no key": "", "another key": with(other)} {
		p.write(config)
		r = p.start()
		if m, reason := search(r); reason == "" || len(m.Items) != 0 || m.Count != 0 {
			t.Errorf("%s: %q, %+v", name, reason, m)
		}
		end(r)
	}
	p.write(with(key))
	r = p.start()
	after, reason := search(r)
	if reason != "" || !slices.EqualFunc(before.Items, after.Items, func(a, b hub.MemoryItem) bool {
		a.Score, b.Score = nil, nil
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		return string(x) == string(y)
	}) {
		t.Errorf("restored: %q\n%+v\nwant\n%+v", reason, after.Items, before.Items)
	}
	end(r)
}
