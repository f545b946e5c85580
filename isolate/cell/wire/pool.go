package wire

import (
	"time"
)

// Pool bounds what palyra-cell makes ahead of calls. Anything that isn't ready, or doesn't fit
// a call, is made for the call at once: no call waits for the pool. Each thing in it serves one
// call and is then gone. The numbers bound its memory too: at most Cells × 440 KiB and Networks
// × 210 KiB. Cells wait for the kinds of calls that came last; kinds unused for 10 × MaxAge are
// dropped.
type Pool struct {
	// Cells bounds waiting cells. One takes some 110 KiB, 200 more with a network of its own
	// and 130 more in a cgroup.
	Cells int `json:"cells,omitempty"`
	// Networks bounds network namespaces for cells that aren't made ahead; each takes some 210
	// KiB.
	Networks int `json:"networks,omitempty"`
	// MaxAge is in ns; older things are thrown away. Default: a minute.
	MaxAge time.Duration `json:"max_age,omitempty"`
}

// Stats counts a palyra-cell's pool, and the calls of kinds that it makes cells ahead for.
type Stats struct {
	Waiting  int    `json:"waiting"`  // cells now
	Networks int    `json:"networks"` // network namespaces now, without those of cells
	Armed    uint64 `json:"armed"`    // cells made ahead
	Expired  uint64 `json:"expired"`  // cells thrown away for their age
	Warm     uint64 `json:"warm"`     // calls that found a cell
	Cold     uint64 `json:"cold"`     // calls that found none
}
