package probe

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"

	"palyra/isolate/tier"
)

func TestControls(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range Controls() {
		if seen[c.Name] || !regexp.MustCompile(`^[a-z][a-z0-9_]+$`).MatchString(c.Name) {
			t.Errorf("name %q", c.Name)
		}
		seen[c.Name] = true
		if c.How == "" || c.Cost == "" || !regexp.MustCompile(`^\d+\.\d+$`).MatchString(c.Since) {
			t.Errorf("%s: a column is empty: %+v", c.Name, c)
		}
		// C is B and more.
		if slices.Contains(c.Needed, tier.B) && !slices.Contains(c.Needed, tier.C) {
			t.Errorf("%s: needed by B and not by C", c.Name)
		}
	}
}

func TestMissing(t *testing.T) {
	r := &Report{}
	if len(r.Missing(tier.C)) <= len(r.Missing(tier.B)) || len(r.Missing(tier.B)) == 0 {
		t.Error("an empty report misses nothing")
	}
	if got := r.Missing(tier.A); !slices.Equal(got, []string{"tier_a"}) {
		t.Errorf("tier A: %q", got)
	}
	for _, c := range Controls() {
		r.Findings = append(r.Findings, Finding{Name: c.Name, Answer: Yes})
	}
	if got := append(r.Missing(tier.C), r.Missing(tier.B)...); len(got) != 0 {
		t.Errorf("missing %q", got)
	}
	for _, a := range []Answer{No, Unknown, 7} {
		for i, c := range Controls() {
			if !slices.Contains(c.Needed, tier.C) {
				continue
			}
			r.Findings[i].Answer = a
			if got := r.Missing(tier.C); !slices.Equal(got, []string{c.Name}) {
				t.Errorf("%s %s: missing %q", c.Name, a, got)
			}
			r.Findings[i].Answer = Yes
		}
	}
}

func TestAnswer(t *testing.T) {
	for _, a := range []Answer{Unknown, No, Yes} {
		b, err := json.Marshal(Finding{Answer: a})
		var f Finding
		if err == nil {
			err = json.Unmarshal(b, &f)
		}
		if err != nil || f.Answer != a {
			t.Errorf("%s: %s, %v", a, b, err)
		}
	}
	a := Yes
	if err := json.Unmarshal([]byte(`"perhaps"`), &a); err != nil || a != Unknown {
		t.Errorf("perhaps is %s, %v", a, err)
	}
}
