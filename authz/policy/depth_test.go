package policy

import (
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"palyra/authz/policy/internal/policytest"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

// TestDepth: no policy drives its readers and evaluators so deep that a stack runs out, which
// would end the process beyond recovery.
func TestDepth(t *testing.T) {
	// A quarter of a process's stack, because callers have frames too.
	defer debug.SetMaxStack(debug.SetMaxStack(256 << 20))
	set := func(c policytest.Chain, size int) fstest.MapFS {
		return fstest.MapFS{"a.cedar": &fstest.MapFile{Data: []byte(permitAll + c.Forbid(size-len(permitAll)))}}
	}
	few := sample.Of(3, 1)
	for i, c := range policytest.Chains {
		if i%few != 0 {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if _, err := LoadFS(set(c, maxFile-100)); fault.KindOf(err) != fault.BadState || !strings.Contains(err.Error(), "names in a row") && fault.ReasonOf(err) != "too_large" {
				t.Errorf("of %d bytes: %v", maxFile, err)
			}
			files := set(c, maxPolicy)
			s, err := LoadFS(files)
			if err != nil && fault.KindOf(err) != fault.BadState {
				t.Errorf("of %d bytes: %v", maxPolicy, err)
			}
			if c.Rows() != (err != nil && strings.Contains(err.Error(), "names in a row")) {
				t.Errorf("of %d bytes: %v", maxPolicy, err)
			}
			if s == nil {
				return
			}
			r := benchRequest()
			s.Decide(r)
			s.Explain(r)
			if _, err := s.Bundle(r, "x"); err != nil {
				t.Errorf("bundle: %v", err)
			}
		})
	}
}
