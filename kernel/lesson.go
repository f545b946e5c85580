package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"palyra/call/egress"
	"palyra/call/egress/reach"
	"palyra/crypt/receipt"
	"palyra/isolate/evidence"
)

// Lesson is a host that programs asked for and didn't get.
type Lesson struct {
	Rule     string   `json:"rule"`     // that would allow it
	Times    int64    `json:"times"`    // how often it was asked for
	Calls    int      `json:"calls"`    // how many calls asked for it
	Programs []string `json:"programs"` // first words of these calls' commands, four at most
	Entry    uint64   `json:"entry"`    // in the journal, of the newest
	// Why is "not_listed", or "forbidden" for an address, or a name in a network, that is no one's to
	// propose.
	Why string `json:"why"`
	// Guessed says that the program asked for the name alone: the port is 443 for want of another.
	Guessed bool `json:"guessed,omitempty"`
}

// Lessons finds what the newest last calls in a journal that are looked at were denied, each host
// once, the newest first.
func Lessons(ctx context.Context, read Entries, size uint64, last int, look func(*receipt.Predicate) bool) (lessons []*Lesson, calls int, err error) {
	byRule := make(map[string]*Lesson)
	for d, err := range Decisions(read, size, size) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, 0, err
		}
		p := &d.Statement.Predicate
		if !look(p) {
			continue
		}
		if calls == last {
			break
		}
		calls++
		seen := evidence.Decode(p.Evidence)
		if seen == nil {
			continue
		}
		asked := make(map[string]bool)
		for _, x := range seen.Egress.Denied {
			rule, why, ok := RuleFor(x)
			if !ok {
				continue
			}
			l := byRule[rule]
			if l == nil {
				l = &Lesson{Rule: rule, Entry: d.Index, Why: why, Guessed: x.Port == 0, Programs: []string{}}
				byRule[rule], lessons = l, append(lessons, l)
			}
			l.Times += x.Times
			l.Guessed = l.Guessed && x.Port == 0
			if asked[rule] {
				continue
			}
			asked[rule] = true
			l.Calls++
			if name := firstWord(p.Capsule.Argv[0]); len(l.Programs) < 4 && !slices.Contains(l.Programs, name) {
				l.Programs = append(l.Programs, name)
			}
		}
	}
	return lessons, calls, nil
}

// firstWord returns the first word of a command as a person is shown it: as it was said, since a
// program of a workspace can have any program's name behind its folder.
func firstWord(argv0 string) string {
	const most = 64 // bytes
	if len(argv0) > most {
		return strings.ToValidUTF8(argv0[:most], "") + "…"
	}
	return argv0
}

// RuleFor returns the rule that would have allowed what was denied, if a rule could, and why it was
// denied: an address that no rule has was looked at no further.
func RuleFor(x evidence.Denial) (rule, why string, ok bool) {
	if x.Why != evidence.DenyNotListed && x.Why != evidence.DenyForbidden {
		return "", "", false
	}
	host := x.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if x.Port != 0 {
		host = fmt.Sprintf("%s:%d", host, x.Port)
	}
	r, err := egress.ParseRule(host)
	if p := r.Prefix(); err == nil && p.IsValid() && reach.Check(p.Addr()) != nil {
		return r.Bare().String(), evidence.DenyForbidden, true
	}
	return r.Bare().String(), x.Why, err == nil
}
