package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/hub/config"
)

// TestMan: each page that a unit names is written, and palyrad.toml(5) has every key.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	var out, errs strings.Builder
	p := &program{stdout: &out, stderr: &errs}
	if status := p.run(t.Context(), []string{"man", dir}); status != 0 || strings.Count(out.String(), "\n") != 3 {
		t.Fatalf("status %d, %s%s", status, &out, &errs)
	}
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`man:([a-z.-]+)\((\d)\)`)
	for _, u := range units {
		b, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(b), -1) {
			if m[2] == "1" { // palyra's own
				continue
			}
			page, err := os.ReadFile(filepath.Join(dir, "man"+m[2], m[1]+"."+m[2]))
			if err != nil || !strings.HasPrefix(string(page), ".TH ") || !strings.Contains(string(page), ".SH NAME\n") {
				t.Errorf("%s names %s: %v", u, m[0], err)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "man5", "palyrad.toml.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range config.Keys() {
		if !strings.Contains(string(page), "\n    "+k.Name+" ") {
			t.Errorf("palyrad.toml(5) has no %s", k.Name)
		}
	}
	errs.Reset()
	if status := p.run(t.Context(), []string{"man", "/dev/null"}); status != 75 || !strings.Contains(errs.String(), "hint: ") {
		t.Errorf("status %d: %s", status, &errs)
	}
}
