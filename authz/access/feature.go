package access

import (
	"fmt"
	"slices"

	"palyra/internal/fault"
)

// Feature is a surface that an installation can turn off, for every caller and whatever
// they hold. It takes away and never gives.
type Feature string

// The features.
const (
	Tokens         Feature = "tokens"          // API tokens are minted and rotated
	HTTPApprovals  Feature = "http_approvals"  // approvals are answered through HTTP
	HTTPAdmin      Feature = "http_admin"      // members, policies and backups through HTTP
	StandingGrants Feature = "standing_grants" // a yes can stand for further calls
	PatternGrants  Feature = "pattern_grants"  // and for calls that fit a pattern
	MCP            Feature = "mcp"             // the tools at /mcp
	Console        Feature = "console"         // pages for browsers
	OpenAI         Feature = "openai"          // models and the agent at /v1/
)

// features is in the order of FeatureNames; the index is the bit, and append-only.
var features = [...]Feature{Tokens, HTTPApprovals, HTTPAdmin, StandingGrants, PatternGrants, MCP, Console, OpenAI}

// Features is the set of features that are off. In the zero value all are on: things that a
// feature guards still have their own permission.
type Features struct{ off uint32 }

// ParseFeatures returns the Features with these off, or fault.Usage "invalid_input".
func ParseFeatures(off []string) (f Features, err error) {
	for _, n := range off {
		i := slices.Index(features[:], Feature(n))
		if i < 0 {
			return Features{}, fault.New(fault.Usage, "invalid_input", "parse features", fmt.Errorf("%.40q is no feature", n))
		}
		f.off |= 1 << i
	}
	return f, nil
}

// FeatureNames returns the names of all features.
func FeatureNames() (names []string) {
	for _, n := range features {
		names = append(names, string(n))
	}
	return names
}

// Has reports whether a feature is on. An unknown one is off.
func (f Features) Has(n Feature) bool {
	i := slices.Index(features[:], n)
	return i >= 0 && f.off&(1<<i) == 0
}

// Off returns the names of the features that are off.
func (f Features) Off() []string { return f.list(false) }

// On returns the names of the features that are on.
func (f Features) On() []string { return f.list(true) }

func (f Features) list(on bool) []string {
	out := []string{}
	for _, n := range features {
		if f.Has(n) == on {
			out = append(out, string(n))
		}
	}
	return out
}
