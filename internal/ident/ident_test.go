package ident

import (
	"strings"
	"testing"

	"palyra/internal/fault"
)

func TestIDs(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := New(Run)
		if seen[id] {
			t.Fatalf("%s came twice", id)
		}
		seen[id] = true
		if err := Check(Run, id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	good := New(Run)
	for _, id := range []string{"", "run", "run_", good[4:], good + "0", good[:len(good)-1], strings.ToUpper(good),
		"ses" + good[3:], good[:len(good)-1] + "g", " " + good, good + "\n", "run_" + strings.Repeat("é", 16)} {
		if err := Check(Run, id); fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%q: %v, want bad_id", id, err)
		}
	}
}
