// Package signal finds signs in text: that it gives orders to a model, that it hides something, and
// that it holds a secret.
//
//	found := signal.Orders(page)   // signs of instructions and of hidden text
//	found = signal.Secrets(output) // secrets, by the shape of their formats
//	p := signal.NewPseudonyms()
//	text, found := p.Redact(output) // "token: ⟦secret:github#1⟧"
//
// # Contract
//
// A [Finding] has byte offsets of the text as it was given. All that is here is a function of its
// arguments, or of the texts that a [Pseudonyms] has seen and their order. It takes time linear in
// the text, but for the short values that a rule looks at twice.
//
// Redact replaces findings of [Secrets] and no other byte. What it returns has no finding more:
// redacted again, it stays as it is. The same value has the same name in all texts of one
// Pseudonyms.
//
// # What it does not protect against
//
// A text can give orders in any words, and a secret can have any form. So no finding is no promise,
// and a finding is a reason to mark, to redact or to ask: what may follow is decided by labels
// (docs/formats/policy.md). Phrases are looked for in English, and a few in German, French,
// Spanish, Italian and Portuguese. Secrets that were given out by the vault are
// palyra/crypt/scrub's: it knows their values.
package signal

import (
	"cmp"
	"slices"
	"strings"
)

// The categories of findings.
const (
	Injection = "prompt_injection" // instructions to a model
	Hidden    = "hidden_text"      // text that people don't see
	Leak      = "secret_leak"      // a secret
)

// The severities of findings, lowest first.
const (
	Warning  = "warning"
	High     = "high"
	Critical = "critical"
)

// Finding is a part of a text that is a sign of something.
type Finding struct {
	// Code is the category, a dot and what was found: "prompt_injection.system_tag_spoof".
	Code     string `json:"code"`
	Severity string `json:"severity"`
	From     int    `json:"from"` // bytes of the text, from 0
	To       int    `json:"to"`   // behind its last byte
}

// Category returns the part of the code before its dot.
func (f *Finding) Category() string {
	name, _, _ := strings.Cut(f.Code, ".")
	return name
}

// Kind returns the part of the code behind its dot.
func (f *Finding) Kind() string {
	_, name, _ := strings.Cut(f.Code, ".")
	return name
}

// Codes returns the codes of findings, each once, the gravest first.
func Codes(found []Finding) (codes []string) {
	rank := []string{Critical, High, Warning}
	sorted := slices.Clone(found)
	slices.SortStableFunc(sorted, func(a, b Finding) int {
		return cmp.Compare(slices.Index(rank, a.Severity), slices.Index(rank, b.Severity))
	})
	for _, f := range sorted {
		if !slices.Contains(codes, f.Code) {
			codes = append(codes, f.Code)
		}
	}
	return codes
}

// byPlace sorts findings by where they begin, longer ones first.
func byPlace(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To))
	})
}
