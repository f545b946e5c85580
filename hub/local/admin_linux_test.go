package local

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
	"palyra/kernel"
)

func copyPolicies(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	names, err := fs.Glob(policy.DefaultFS(), "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := fs.ReadFile(policy.DefaultFS(), n)
		if err != nil {
			t.Fatal(err)
		}
		all[n] = string(b)
		if err := os.WriteFile(filepath.Join(dir, n), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestPolicy(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	s := argv("/bin/sh")
	x, err := hub.ExplainPolicy.Do(ctx, h, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input})
	if err != nil || x.Effect != "deny" || x.Kind != "shell" || x.Fix == "" || len(x.Traces) == 0 || x.Capsule.IsZero() {
		t.Errorf("%+v, %v", x, err)
	}
	st, err := hub.GetJournal.Do(ctx, h, h.owner, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	before := st.Size
	h.call(h.owner, argv("/bin/true"))
	h.call(h.owner, argv("/usr/bin/seq", "2"))
	h.call(h.owner, argv("/no/such/program"))
	candidate := hub.PolicySet{Files: copyPolicies(t, t.TempDir())}
	if rep, err := hub.TestPolicy.Do(ctx, h, h.owner, hub.PolicyTestRequest{Candidate: &candidate}); err != nil || rep.Tests == 0 || len(rep.Failures) > 0 || rep.Digest != h.policyInfo().Digest {
		t.Errorf("%+v, %v", rep, err)
	}
	if rep, err := hub.TestPolicy.Do(ctx, h, h.owner, hub.PolicyTestRequest{Candidate: nil}); err != nil || rep.Tests == 0 || len(rep.Failures) > 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	if d, err := hub.DiffPolicy.Do(ctx, h, h.owner, hub.PolicyDiffQuery{Candidate: candidate}); err != nil || d.Replayed != 2 || d.Skipped != 0 || len(d.Changed) > 0 {
		t.Errorf("%+v, %v", d, err)
	}
	candidate.Files["95-no-seq.cedar"] = "@id(\"no_seq\")\n@reason(\"test\")\nforbid (principal, action == Palyra::Action::\"tool.execute\", resource)\nwhen { context.executable.name == \"seq\" };\n"
	candidate.Files["no-seq.test.json"] = `{"version":1,"tests":[{"name":"seq","effect":"deny","policies":["no_seq"],"request":{
		"principal":{"type":"Palyra::User","id":"u","roles":["owner"]},"action":"tool.execute","resource":{"type":"Palyra::Tool","id":"process.run"},
		"context":{"executable":{"path":"/usr/bin/seq","system":true},"tier":"c","stdin":"none","capabilities":["process_exec"]}}}]}`
	d, err := hub.DiffPolicy.Do(ctx, h, h.owner, hub.PolicyDiffQuery{Candidate: candidate, Last: 10})
	if err != nil || len(d.Changed) != 1 || d.Changed[0].Before.Effect != "allow" || d.Changed[0].After.Effect != "deny" || d.From == d.To ||
		!slices.Equal(d.Changed[0].Argv, []string{"/usr/bin/seq", "2"}) || d.Changed[0].Run == "" {
		t.Errorf("%+v, %v", d, err)
	}
	bad := hub.PolicySet{Files: map[string]string{"../x.cedar": "permit (principal, action, resource);"}}
	if rep, err := hub.TestPolicy.Do(ctx, h, h.owner, hub.PolicyTestRequest{Candidate: &bad}); err != nil || len(rep.Failures) == 0 || rep.Digest != "" {
		t.Errorf("%+v, %v", rep, err)
	}
	if _, err := hub.DiffPolicy.Do(ctx, h, h.owner, hub.PolicyDiffQuery{Candidate: bad}); err == nil {
		t.Error("a candidate with a path was taken")
	}
	if st, _ := hub.GetJournal.Do(ctx, h, h.owner, hub.None{}); st.Size != before+4 {
		t.Errorf("asking wrote to the journal: %d entries, want %d", st.Size, before+4)
	}
}

func TestJournal(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	h.call(h.owner, argv("/bin/true"))
	st, err := hub.GetJournal.Do(ctx, h, h.owner, hub.None{})
	if err != nil || st.Size < 3 || st.Checkpoint == "" || len(st.Open) != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	var all []hub.JournalEntry
	for from := uint64(0); ; {
		p, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{From: from, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Items...)
		if p.Next == "" {
			break
		}
		from += 2
	}
	last := all[len(all)-1]
	if uint64(len(all)) != st.Size || all[0].Act != "access.bootstrap" || last.Outcome != "executed" || *last.Closes != last.Index-1 || len(last.Statement) == 0 {
		t.Errorf("%d entries, %+v", len(all), last)
	}
	p, err := hub.ProveJournalEntry.Do(ctx, h, h.owner, last.Index)
	if err != nil || p.Size != st.Size || len(p.Leaf) == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, index := range []uint64{st.Size, 1 << 63} {
		if _, err := hub.ProveJournalEntry.Do(ctx, h, h.owner, index); fault.KindOf(err) != fault.NotFound {
			t.Errorf("proof of %d: %v", index, err)
		}
		if _, err := hub.GetReceipt.Do(ctx, h, h.owner, index); fault.KindOf(err) != fault.NotFound {
			t.Errorf("receipt of %d: %v", index, err)
		}
	}
	if c, err := hub.ProveJournalConsistency.Do(ctx, h, h.owner, hub.JournalSince{Old: 1}); err != nil || c.Old != 1 || c.Size != st.Size {
		t.Errorf("%+v, %v", c, err)
	}
	for _, old := range []uint64{0, st.Size + 1} {
		if _, err := hub.ProveJournalConsistency.Do(ctx, h, h.owner, hub.JournalSince{Old: old}); fault.KindOf(err) != fault.Usage {
			t.Errorf("consistency with %d: %v", old, err)
		}
	}
	note, err := hub.GetCheckpoint.Do(ctx, h, h.owner, hub.None{})
	if err != nil || string(note) != st.Checkpoint {
		t.Errorf("%s, %v", note, err)
	}
	for _, name := range []string{"checkpoint", "../keys/x", "tile/../../keys", "wal", ""} {
		if _, err := hub.GetTile.Do(ctx, h, h.owner, name); fault.KindOf(err) != fault.NotFound {
			t.Errorf("tile %q: %v", name, err)
		}
	}
}

func TestStatus(t *testing.T) {
	asked := 0
	h := newHouse(t, func(c *Config, _ *kernel.Config) {
		c.Version, c.Profile, c.AllowSelf = "1.2", "local", true
		c.Pool = hub.Pool{Cells: 3}
		c.Confinement = func() hub.Confinement { return hub.Confinement{Enforced: true, Controls: []hub.ConfinedControl{}} }
		c.Settings = func() []hub.Setting { return []hub.Setting{{Key: "profile", Value: "local"}} }
		c.Probe = func(context.Context) (*probe.Report, error) {
			asked++
			return &probe.Report{Kernel: "6.18", Findings: []probe.Finding{
				{Name: "seccomp", Answer: probe.Yes, Needed: []tier.Tier{tier.C}},
				{Name: "landlock", Answer: probe.No, Needed: []tier.Tier{tier.C}, Cost: "much", Hint: "boot with lsm=landlock"},
			}}, nil
		}
	})
	ctx := t.Context()
	h.start(h.owner, argv("true"))
	s, err := hub.GetStatus.Do(ctx, h, h.owner, hub.None{})
	if err != nil || s.Version != "1.2" || s.Profile != "local" || s.PID != os.Getpid() || !s.Confinement.Enforced || s.Pool.Cells != 3 ||
		s.Counts.SessionsOpen != 1 || s.Journal.Size == 0 || s.Mode != "normal" || len(s.Warnings) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	// A caller who may not see the values is told so, and gets no false ones.
	s, err = hub.GetStatus.Do(ctx, h, hub.Caller{User: "uid:4242", Surface: "unix"}, hub.None{})
	if b, jerr := json.Marshal(s); err != nil || jerr != nil || s.StatusDetail != nil || !s.Hidden ||
		string(b) != `{"version":"1.2","mode":"normal","deny_new":false,"hidden":true,"caller":{"user":"uid:4242","surface":"unix"}}` {
		t.Errorf("%s, %v", b, err)
	}
	d, err := hub.GetDoctor.Do(ctx, h, h.owner, hub.None{})
	if err != nil || d.Healthy || len(d.Findings) != 2 || !slices.Equal(d.Missing, []string{"landlock"}) || d.Findings[1].Fix != "boot with lsm=landlock" || d.Findings[1].Answer != "no" || asked != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if c, err := hub.GetConfig.Do(ctx, h, h.owner, hub.None{}); err != nil || len(c.Items) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if tools, err := hub.ListTools.Do(ctx, h, h.owner, hub.ToolQuery{}); err != nil || len(tools.Items) == 0 {
		t.Errorf("%+v, %v", tools, err)
	}
}

func TestBackup(t *testing.T) {
	h := newHouse(t, nil)
	h.call(h.owner, argv("true"))
	var b bytes.Buffer
	v, err := hub.Backup.Do(t.Context(), h, h.owner, hub.BackupTo{BackupRequest: hub.BackupRequest{Recipients: []string{"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}}, W: &b})
	if err != nil || v.Bytes != int64(b.Len()) || v.Digest != digestOf(b.Bytes()) || v.Files == 0 || !bytes.HasPrefix(b.Bytes(), []byte("age-encryption.org/v1")) {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := hub.Backup.Do(t.Context(), h, h.owner, hub.BackupTo{BackupRequest: hub.BackupRequest{}, W: &b}); err == nil {
		t.Error("a backup for nobody")
	}
}
