package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

//go:embed expect.json
var expectJSON []byte

// expectation is a control that is known not to succeed on some hosts.
type expectation struct {
	Case    string `json:"case"`    // "44", "9/char"; a number alone covers its variants
	Tier    string `json:"tier"`    // "b", "c" or "*"
	User    string `json:"user"`    // "root", "unprivileged" or "*"
	Control string `json:"control"` // the outcome outside; "*" any
	Reason  string `json:"reason"`
}

type expectations []expectation

func loadExpect() (expectations, error) {
	var file struct {
		Inconclusive expectations `json:"inconclusive"`
	}
	d := json.NewDecoder(bytes.NewReader(expectJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("parse expect.json: %w", err)
	}
	for _, e := range file.Inconclusive {
		if e.Case == "" || e.Tier == "" || e.User == "" || e.Control == "" || e.Reason == "" {
			return nil, fmt.Errorf("expect.json: %+v lacks a field", e)
		}
	}
	return file.Inconclusive, nil
}

// covers reports whether an inconclusive record is on the list.
func (es expectations) covers(r *record) bool {
	number, _, _ := strings.Cut(r.Case, "/")
	for _, e := range es {
		if (e.Case == r.Case || e.Case == number) && matches(e.Tier, r.Tier) && matches(e.User, r.User) && matches(e.Control, r.Control) {
			return true
		}
	}
	return false
}

func matches(pattern, s string) bool { return pattern == "*" || pattern == s }
