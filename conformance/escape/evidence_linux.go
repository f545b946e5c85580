package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"palyra/isolate/evidence"
)

// evidenceCase is 90 once more: the tier that a receipt states is the one that
// the program itself finds, line by line. Its control shows that outside the
// program finds none.
func evidenceCase() attackCase {
	return attackCase{number: 90, variant: "evidence", name: "silent-no-sandbox", attack: "run, while the receipt says something else than what was in force",
		stopped: both("OPEN"), note: "OPEN: the program told what it found, and the receipt says the same", perTier: true,
		stage: func(s *stage) (scene, error) {
			receipt := filepath.Join(s.dir, "receipt.json")
			return scene{probe: "status", opt: options{receipt: receipt}, canary: func(o *outcome) (bool, string) {
				said, _ := o.main()
				found := make(map[string]string)
				if err := json.Unmarshal([]byte(said.Detail), &found); err != nil {
					return true, "the program told nothing: " + err.Error()
				}
				if why := unconfined(found); why != "" || !s.inside {
					return why != "", why
				}
				e, err := readEvidence(receipt)
				if err != nil {
					return true, err.Error()
				}
				why := disagreement(s.tier, e, found)
				return why != "", why
			}}, nil
		}}
}

// unconfined names a control of every tier that a process with these findings lacks, "" if none.
func unconfined(found map[string]string) string {
	for name, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"} {
		if found[name] != want {
			return fmt.Sprintf("%s is %q, want %q", name, found[name], want)
		}
	}
	return ""
}

// readEvidence takes the evidence out of a receipt, without verifying it.
func readEvidence(path string) (*evidence.Evidence, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var bundle struct {
		Envelope struct {
			Payload string `json:"payload"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(b, &bundle); err != nil {
		return nil, err
	}
	if b, err = base64.StdEncoding.DecodeString(bundle.Envelope.Payload); err != nil {
		return nil, err
	}
	var statement struct {
		Predicate struct {
			Evidence *evidence.Evidence `json:"evidence"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(b, &statement); err != nil {
		return nil, err
	}
	if statement.Predicate.Evidence == nil {
		return nil, fmt.Errorf("receipt %s holds no evidence", filepath.Base(path))
	}
	return statement.Predicate.Evidence, nil
}

// disagreement compares a receipt with the program's findings and the host's view of
// itself.
func disagreement(tier string, e *evidence.Evidence, found map[string]string) string {
	var out []string
	differ := func(what string, said, is any) {
		if fmt.Sprint(said) != fmt.Sprint(is) {
			out = append(out, fmt.Sprintf("%s: the receipt says %v, it is %v", what, said, is))
		}
	}
	differ("tier", e.Tier, tier)
	differ("no_new_privs", e.Process.NoNewPrivs, found["NoNewPrivs"])
	differ("seccomp", e.Process.Seccomp, found["Seccomp"])
	differ("cap_eff", e.Process.CapEff, found["CapEff"])
	for name, is := range found {
		kind, ok := strings.CutPrefix(name, "ns:")
		if !ok {
			continue
		}
		said, listed := e.Namespaces.Cell[kind]
		if listed {
			differ("namespace "+kind, strconv.FormatUint(said, 10), is)
		}
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		if host := strings.Trim(strings.TrimPrefix(link, kind+":"), "[]"); tier == "c" && (host == is || !listed) {
			out = append(out, "tier c without a namespace of its own: "+kind)
		}
	}
	return strings.Join(out, "; ")
}
