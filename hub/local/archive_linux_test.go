package local

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestOldDecision: a decision of a set that is no longer in force can still be explained
// and exported, also after a restart. A kept set that was changed isn't believed; without a
// kept set the export says what is missing.
func TestOldDecision(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	if err := os.CopyFS(dir, policy.DefaultFS()); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.PolicyDir = dir })
	ctx := t.Context()
	more := func(id string) {
		t.Helper()
		text := fmt.Sprintf("@id(%q)\npermit (principal is Palyra::Device, action == Palyra::Action::\"tool.list\", resource);\n", id)
		if err := os.WriteFile(filepath.Join(dir, "90-more.cedar"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Reload.Do(ctx, h, h.owner, hub.None{}); err != nil {
			t.Fatal(err)
		}
	}
	more("first")
	old := h.k.PolicySet().Digest()
	r := h.call(h.owner, argv("/bin/sh", "-c", "id"))
	id := r.Steps[0].Denial.DecisionID
	more("second")
	h.stop()
	h.reopen(func(_ *Config, k *kernel.Config) { k.PolicyDir = dir })
	if h.k.PolicySet().Digest() == old {
		t.Fatal("the set is the same")
	}
	why, err := hub.GetDecision.Do(ctx, h, h.owner, id)
	if err != nil || why.PolicySet != old || len(why.Rules) != len(why.Policies) || len(why.Rules) == 0 || why.Rules[0].Line == 0 || !strings.HasPrefix(why.Fix, "--- ") {
		t.Errorf("%+v, %v", why, err)
	}
	b, err := hub.ExportDecision.Do(ctx, h, h.owner, id)
	var bundle policy.Bundle
	if err != nil || json.Unmarshal(b, &bundle) != nil || bundle.PolicySet != old || bundle.Policies["first"] == "" || bundle.Policies["second"] != "" ||
		bundle.Answer.Effect != policy.Deny {
		t.Errorf("%v: %.300s", err, b)
	}
	sets, err := hub.ListPolicySets.Do(ctx, h, h.owner, hub.None{})
	if err != nil || len(sets.Items) < 2 || !sets.Items[0].InForce || sets.Items[0].Digest != h.k.PolicySet().Digest().String() || sets.Items[0].Since == nil ||
		!slices.ContainsFunc(sets.Items[1:], func(s hub.KeptPolicySet) bool { return s.Digest == old.String() && !s.InForce && s.Since != nil }) {
		t.Errorf("kept sets %+v, %v", sets, err)
	}
	whole, err := hub.GetPolicySet.Do(ctx, h, h.owner, old.String())
	if err != nil || whole.InForce || !strings.Contains(whole.Files["90-more.cedar"], `@id("first")`) {
		t.Errorf("the kept set: %v, %d files", err, len(whole.Files))
	}
	for digest, want := range map[string]string{"sha256:x": "invalid_input", "../../x": "invalid_input", "sha256:" + strings.Repeat("0", 64): "not_found"} {
		if _, err := hub.GetPolicySet.Do(ctx, h, h.owner, digest); fault.ReasonOf(err) != want {
			t.Errorf("set %q: %v", digest, err)
		}
	}
	texts := h.setOf(old).Texts()
	texts["90-more.cedar"] += " "
	forged, err := json.Marshal(kept{keptVersion, policy.Schema(), texts})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"changed":  func() error { return os.WriteFile(h.setFile(old), forged, 0o600) },
		"not JSON": func() error { return os.WriteFile(h.setFile(old), []byte("{"), 0o600) },
		"not a file": func() error {
			return os.WriteFile(h.setFile(old), []byte(`{"../x": "permit(principal, action, resource);"}`), 0o600)
		},
		"of a later version": func() error {
			return os.WriteFile(h.setFile(old), []byte(`{"version":2,"schema":"","policies":{}}`), 0o600)
		},
		"gone": func() error { return os.Remove(h.setFile(old)) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.ExportDecision.Do(ctx, h, h.owner, id); fault.ReasonOf(err) != "not_found" {
			t.Errorf("%s: %v", name, err)
		}
		if why, err := hub.GetDecision.Do(ctx, h, h.owner, id); err != nil || len(why.Rules) != 0 || len(why.Policies) == 0 || why.Fix != "" {
			t.Errorf("%s: %+v, %v", name, why, err)
		}
		if err := os.WriteFile(h.setFile(old), forged, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeptSets: a set is kept with its schema, and one that was checked against another is read with
// that. Files of older versions have none: they are read as the program's, and written again with
// it when their set is in force.
func TestKeptSets(t *testing.T) {
	h := newHouse(t, nil)
	set := h.k.PolicySet()
	path := h.setFile(set.Digest())
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var k kept
	if err := json.Unmarshal(now, &k); err != nil || k.Version != keptVersion || k.Schema != policy.Schema() || !maps.Equal(k.Policies, set.Texts()) {
		t.Errorf("%v: %.300s", err, now)
	}
	before, err := json.Marshal(set.Texts())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	h.archive()
	if b, err := os.ReadFile(path); err != nil || string(b) != string(now) {
		t.Errorf("a set in force, kept by an older version: %v, %.300s", err, b)
	}

	more := set.Texts()
	more["99-more.cedar"] = `@id("more") permit (principal is Palyra::Device, action == Palyra::Action::"tool.list", resource);`
	other := policy.Schema() + "// of another version\n"
	for name, c := range map[string]struct {
		schema string
		file   any
		found  bool
	}{
		"with another schema":             {other, kept{keptVersion, other, more}, true},
		"without its schema":              {other, more, false},
		"older, of the program's schema":  {policy.Schema(), more, true},
		"with a schema that isn't its":    {other, kept{keptVersion, policy.Schema(), more}, false},
		"of a version that isn't written": {other, kept{keptVersion + 1, other, more}, false},
	} {
		b, err := json.Marshal(c.file)
		if err != nil {
			t.Fatal(err)
		}
		d := setDigest(c.schema, more)
		if err := os.WriteFile(h.setFile(d), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := h.setOf(d)
		if (s != nil) != c.found {
			t.Errorf("%s: found %v, want %v", name, s != nil, c.found)
		}
		if s == nil {
			continue
		}
		if at, ok := s.Policy("more"); !ok || at.Line != 1 || s.Digest() != d || s.Schema() != c.schema {
			t.Errorf("%s: %+v, %s", name, at, s.Digest())
		}
	}
}

// setDigest is the digest of a set as docs/formats/policy.md has it.
func setDigest(schema string, texts map[string]string) canon.Digest {
	parts := []string{"palyra/policy-set/v1", schema}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		parts = append(parts, name, texts[name])
	}
	var b []byte
	for _, p := range parts {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(p))), p...)
	}
	return canon.Sum(b)
}

// TestPruneSets: the bounds hold, the oldest go first, the newest stays.
func TestPruneSets(t *testing.T) {
	dir := t.TempDir()
	at := time.Now().Add(-time.Hour)
	put := func(n int) {
		t.Helper()
		name := filepath.Join(dir, fmt.Sprintf("%02d.json", n))
		if err := os.WriteFile(name, make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, at, at.Add(time.Duration(n)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	left := func() string {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		s := ""
		for _, n := range names {
			s += filepath.Base(n)[:2] + " "
		}
		return s
	}
	for n := range 10 {
		put(n)
	}
	for _, c := range []struct {
		sets int
		size int64
		want string
	}{{20, 2000, "00 01 02 03 04 05 06 07 08 09 "}, {8, 2000, "02 03 04 05 06 07 08 09 "}, {8, 350, "07 08 09 "}, {0, 0, "09 "}} {
		if err := pruneSets(dir, c.sets, c.size); err != nil || left() != c.want {
			t.Errorf("%d sets, %d bytes: %q, %v, want %q", c.sets, c.size, left(), err, c.want)
		}
	}
}
