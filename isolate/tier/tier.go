// Package tier names the isolation tiers and orders them.
//
// A tier is a floor: a call that asks for tier C runs at C or not at all. The
// zero Tier is None, which no runner offers, so a forgotten tier refuses.
package tier

import "fmt"

// Tier is an isolation tier. Larger is stricter, except that WASM stands
// beside the process tiers: it is not a weaker C, it runs something else.
type Tier uint8

// The tiers.
const (
	None Tier = iota // not a tier; no runner offers it
	A                // WASM
	B                // confined process without namespaces
	C                // OS sandbox with namespaces
)

// Parse reads "a", "b" or "c".
func Parse(s string) (Tier, error) {
	switch s {
	case "a":
		return A, nil
	case "b":
		return B, nil
	case "c":
		return C, nil
	}
	return None, fmt.Errorf("parse tier %q: want a, b or c", s)
}

// String is the inverse of Parse; None is "none".
func (t Tier) String() string {
	switch t {
	case A:
		return "a"
	case B:
		return "b"
	case C:
		return "c"
	}
	return "none"
}

// MarshalText implements encoding.TextMarshaler.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Tier) UnmarshalText(b []byte) (err error) {
	if string(b) == "none" {
		*t = None
		return nil
	}
	*t, err = Parse(string(b))
	return err
}

// Meets reports whether a runner at tier t satisfies the floor. None meets
// nothing and nothing but A meets a floor of A.
func (t Tier) Meets(floor Tier) bool {
	switch {
	case t == None || floor == None:
		return false
	case t == A || floor == A:
		return t == floor
	}
	return t >= floor
}
