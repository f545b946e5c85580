package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"palyra/internal/canon"
)

// summaryFile is the committed record of a run of every machine; docs/CONFORMANCE.md shows
// it.
const summaryFile = "conformance/lab/recorded.json"

// summary counts the checks of each machine.
type summary struct {
	Expect   string   `json:"expect"` // digest of what was expected
	Machines []summed `json:"machines"`
}

type summed struct {
	Machine string   `json:"machine"`
	Arch    string   `json:"arch"`
	Kernel  string   `json:"kernel"`
	Init    string   `json:"init"`
	Run     int      `json:"run"`
	Passed  int      `json:"passed"`
	Unsure  int      `json:"inconclusive"`
	Failed  int      `json:"failed"`
	Proofs  []unsaid `json:"unproven"` // the inconclusive checks
}

type unsaid struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// expectDigest names the expectations of all machines.
func expectDigest(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return "", err
	}
	var all bytes.Buffer
	for _, name := range names { // sorted
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s %d\n%s", filepath.Base(name), len(b), b)
	}
	return canon.Sum(all.Bytes()).String(), nil
}

// summarize makes the summary of the records of runs; the last one of each machine counts.
// If a machine was left out, or a check failed, there is no summary.
func summarize(files []string, expect string) (*summary, error) {
	last := make(map[string]played)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var r report
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, p := range r.Machines {
			last[p.Machine] = p
		}
	}
	s := &summary{Machines: []summed{}}
	var err error
	if s.Expect, err = expectDigest(expect); err != nil {
		return nil, err
	}
	for _, m := range append([]machine{{name: "archive"}}, machines...) {
		p, ok := last[m.name]
		if !ok {
			return nil, fmt.Errorf("%s was not played", m.name)
		}
		if p.Verdict != "ok" || p.Run == 0 || p.Failed > 0 || len(p.Missing) > 0 {
			return nil, fmt.Errorf("%s: %s, %d failed, %d missing", p.Machine, p.Verdict, p.Failed, len(p.Missing))
		}
		m := summed{Machine: p.Machine, Arch: p.Arch, Kernel: p.Kernel, Init: p.Init, Run: p.Run, Passed: p.Passed, Unsure: p.Unsure, Proofs: []unsaid{}}
		for _, c := range p.Checks {
			if c.Verdict == "inconclusive" {
				m.Proofs = append(m.Proofs, unsaid{c.Check, c.Reason})
			}
		}
		s.Machines = append(s.Machines, m)
	}
	return s, nil
}

func (s *summary) write(name string) error {
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
