package main

import (
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub/config"
)

// TestFeaturesOff: each key of the configuration is a feature, and each feature a key.
func TestFeaturesOff(t *testing.T) {
	if got, want := featuresOff(&config.Features{}), access.FeatureNames(); !slices.Equal(got, want) {
		t.Errorf("all off is %q, want %q", got, want)
	}
	c, err := config.Parse("x", []byte("[features]\nhttp_approvals = false\n"), []string{"HOME=/home/a"})
	if err != nil {
		t.Fatal(err)
	}
	if got := featuresOff(&c.Features); !slices.Equal(got, []string{"http_approvals"}) {
		t.Errorf("%q", got)
	}
	var keys []string
	for _, k := range config.Keys() {
		if name, ok := strings.CutPrefix(k.Name, "features."); ok {
			keys = append(keys, name)
		}
	}
	if want := access.FeatureNames(); !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, the features %q", keys, want)
	}
}
