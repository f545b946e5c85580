package local

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/hub"
)

// TestThreatModelNames: the threat model has a row for each file of a state directory with a vault,
// devices, another root and another attestation key on the way.
func TestThreatModelNames(t *testing.T) {
	h := newVaultHouse(t, nil)
	h.executed(request(h, hub.SetSecret, h.owner, hub.SecretValue{Ref: "vault://global/token", Value: []byte(hush)}))
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	if _, err := hub.ReplaceRoot.Do(t.Context(), h, h.owner, hub.RootReplacement{}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{IntroduceOnly: true}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../docs/THREAT_MODEL.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string // patterns
	for line := range strings.Lines(string(b)) {
		if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| ") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
				named = append(named, m[1])
			}
		}
	}
	has := func(path string) bool {
		for _, p := range named {
			if ok, _ := filepath.Match(strings.TrimSuffix(p, "/"), path); ok {
				return true
			}
		}
		return false
	}
	seen := 0
	err = filepath.WalkDir(h.k.StateDir(), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(h.k.StateDir(), path)
		if err != nil || rel == "." {
			return err
		}
		seen++
		switch {
		case has(rel) && d.IsDir():
			return filepath.SkipDir
		case !has(rel) && !d.IsDir():
			t.Errorf("no row for %s", rel)
		}
		return nil
	})
	if err != nil || seen < 15 {
		t.Errorf("%d names, %v", seen, err)
	}
}
