package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
	"palyra/internal/canon"
)

const formatVersion = 1

// The names that records, goals and tables share with selfbench. The first path of each set is
// the floor.
const (
	pathFloor      = selfbench.Floor
	pathCellC      = selfbench.CellC
	pathCellPooled = selfbench.CellPooled
	pathCellVoid   = selfbench.CellVoid
	pathCellWarm   = selfbench.CellWarm
	pathCellB      = selfbench.CellB
	pathCall       = selfbench.Call
	pathCallWarm   = selfbench.CallWarm
	pathFsync      = selfbench.Fsync
	pathExecC      = "palyra exec, tier c"
	pathExecB      = "palyra exec, tier b"
	pathBwrap      = measure.Bwrap
	pathCrun       = "crun"
	pathRunc       = "runc"
	pathFirejail   = "firejail"
	programNoop    = selfbench.Noop
	programTrue    = selfbench.True
	setCells       = selfbench.Cells
	setCall        = selfbench.Calls
	setOneShot     = "one-shot"
	patternBurst   = measure.Burst
	pattern8ms     = measure.Gap8ms
	pattern100ms   = measure.Gap100ms
	sustainedCell  = 4 // concurrency of the sustained runs
	callsAtOnce    = 8 // concurrency of the whole calls that share the journal's groups
)

// results is the file that a run writes and bench-compare reads.
type results struct {
	Version   int                 `json:"version"`
	Time      string              `json:"time"`   // RFC 3339, when the run began
	Commit    string              `json:"commit"` // of the source tree; "-dirty" if it was changed
	Full      bool                `json:"full"`   // make bench-full
	Machine   measure.Machine     `json:"machine"`
	Records   []measure.Record    `json:"records"`
	Sustained []measure.Sustained `json:"sustained"`
	Waiting   []selfbench.Waiting `json:"waiting"` // memory of waiting cells
	Parts     []selfbench.Parts   `json:"parts"`
	Absent    []measure.Absent    `json:"absent"` // paths that were not measured, and why
}

func (r *results) find(set, path, program, pattern string) *measure.Record {
	for i := range r.Records {
		x := &r.Records[i]
		if x.Set == set && x.Path == path && x.Program == program && x.Pattern == pattern {
			return x
		}
	}
	return nil
}

func (r *results) findSustained(path, program string, concurrency int) *measure.Sustained {
	for i := range r.Sustained {
		x := &r.Sustained[i]
		if x.Path == path && x.Program == program && x.Concurrency == concurrency {
			return x
		}
	}
	return nil
}

func (r *results) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func readResults(path string) (*results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r results
	if err := canon.Decode(b, &r, canon.Limits{Bytes: 8 << 20}); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if r.Version != formatVersion {
		return nil, fmt.Errorf("read %q: version %d, want %d", path, r.Version, formatVersion)
	}
	return &r, nil
}

func (r *results) before(other *results) (bool, error) {
	a, err := time.Parse(time.RFC3339, r.Time)
	if err != nil {
		return false, fmt.Errorf("time of a run: %w", err)
	}
	b, err := time.Parse(time.RFC3339, other.Time)
	if err != nil {
		return false, fmt.Errorf("time of a run: %w", err)
	}
	return a.Before(b), nil
}

// commit names the source tree, "unknown" outside of a clone.
func commit() string {
	b, err := exec.Command("git", "-c", "safe.directory=*", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
