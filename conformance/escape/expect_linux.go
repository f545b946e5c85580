package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
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

// likeCold says that a case in another mode is the same run as cold, or none at
// all, so that it is left out.
type likeCold struct {
	Case   string `json:"case"` // "90/sleep-cell", "98"; "*" any
	Mode   string `json:"mode"` // "warm", "void" or "*"
	With   string `json:"with"` // "workspace": only scenes that grant one, or a mount; "none to write": those that grant none to write; "hosts": those that may reach hosts; "" any
	Reason string `json:"reason"`
}

// loadSkips returns the scenes that need not run in each mode.
func loadSkips() (skips, error) {
	f, err := loadFile()
	return skips{f.Like, f.Only}, err
}

// loadExpect returns the inconclusive cases that are known.
func loadExpect() (expectations, error) {
	f, err := loadFile()
	return f.Inconclusive, err
}

// expectFile is expect.json.
type expectFile struct {
	Inconclusive expectations `json:"inconclusive"`
	Like         []likeCold   `json:"like_cold"`
	Only         []onlyThese  `json:"only"`
}

// onlyThese says that a mode can make a difference to these cases alone, by number, so that the
// others aren't run in it.
type onlyThese struct {
	Mode   string   `json:"mode"`
	Cases  []string `json:"cases"`
	Reason string   `json:"reason"`
}

// skips are the scenes that need not run in each mode.
type skips struct {
	like []likeCold
	only []onlyThese
}

func loadFile() (*expectFile, error) {
	var file expectFile
	d := json.NewDecoder(bytes.NewReader(expectJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return &file, fmt.Errorf("parse expect.json: %w", err)
	}
	for _, e := range file.Inconclusive {
		if e.Case == "" || e.Tier == "" || e.User == "" || e.Control == "" || e.Reason == "" {
			return &file, fmt.Errorf("expect.json: %+v lacks a field", e)
		}
	}
	for _, l := range file.Like {
		if l.Case == "" || l.Mode == "" || l.Reason == "" {
			return &file, fmt.Errorf("expect.json: %+v lacks a field", l)
		}
	}
	for _, o := range file.Only {
		if o.Mode == "" || len(o.Cases) == 0 || o.Reason == "" {
			return &file, fmt.Errorf("expect.json: %+v lacks a field", o)
		}
	}
	return &file, nil
}

// reason says why a scene of a case need not be run in a mode, "" if it must. Without a scene it
// says only what holds for each of the case.
func reason(s skips, c *attackCase, sc *scene, mode string) string {
	number, _, _ := strings.Cut(c.id(), "/")
	for _, o := range s.only {
		if o.Mode == mode && !slices.Contains(o.Cases, number) {
			return o.Reason
		}
	}
	for _, l := range s.like {
		if (matches(l.Case, c.id()) || l.Case == number) && matches(l.Mode, mode) && l.about(sc) {
			return l.Reason
		}
	}
	return ""
}

func (l *likeCold) about(sc *scene) bool {
	switch {
	case l.With == "":
		return true
	case sc == nil:
		return false
	case l.With == withHosts:
		return sc.opt.reaches()
	case l.With == withWorkspace:
		return sc.opt.workspace != "" || len(sc.opt.mounts) > 0
	}
	return sc.opt.workspace == "" || sc.opt.readOnly
}

// The values of likeCold.With but "".
const (
	withWorkspace = "workspace"
	withNone      = "none to write"
	withHosts     = "hosts"
)

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

// ofUser reports whether a case is on the list as one of the users.
func (es expectations) ofUser(c *attackCase) bool {
	number, _, _ := strings.Cut(c.id(), "/")
	return slices.ContainsFunc(es, func(e expectation) bool { return e.User != "*" && (e.Case == c.id() || e.Case == number) })
}

func matches(pattern, s string) bool { return pattern == "*" || pattern == s }
