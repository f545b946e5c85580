package cell_test

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// TestCancelAnywhere: a call ends whenever it's cancelled, even while its cell is being made
// and palyra-cell, as root, traces the program's process to read its filter.
func TestCancelAnywhere(t *testing.T) {
	for _, pool := range []cell.Pool{{}, {Cells: 2}} {
		c := startPool(t, tier.C, pool)
		exe, err := os.Open("/usr/bin/sleep")
		if err != nil {
			t.Fatal(err)
		}
		defer exe.Close()
		s := benchSpec("/usr/bin/sleep", "")
		s.Argv = []string{"sleep", "600"}
		for n := range 250 {
			g := mint(t, testKey, s)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Duration(rand.IntN(4000))*time.Microsecond, cancel)
			res, err := c.Run(ctx, g, s, &isolate.Files{Exec: exe, Stdout: os.Stderr, Stderr: os.Stderr})
			cancel()
			if r := fault.ReasonOf(err); err != nil && r != "canceled" || err == nil && res.Outcome != isolate.Killed {
				t.Fatalf("call %d with pool %+v: %+v, %v; want killed or canceled", n, pool, res, err)
			}
		}
		if e := quick(t, c, "", limits()); e.Exit.Code != 0 {
			t.Errorf("after it: %+v", e.Exit)
		}
		c.Close()
	}
}
