package call

import (
	"slices"
	"strings"
	"time"
)

// The origins of what a session has read. Outside these there are none.
const (
	OriginMemory   = "memory"   // what an agent kept of earlier sessions
	OriginModel    = "model"    // the answer of a language model
	OriginOperator = "operator" // the operator's words, such as an agent's instructions
	OriginPerson   = "person"   // a person's words
	OriginProject  = "project"  // files of this host, which a program without hosts read
	OriginTool     = "tool"     // the answer of a server that isn't ours
	OriginWeb      = "web"      // the output of a program that could reach hosts
)

// Origins returns all origins, sorted.
func Origins() []string {
	return []string{OriginMemory, OriginModel, OriginOperator, OriginPerson, OriginProject, OriginTool, OriginWeb}
}

// outside are the origins of authors unknown here.
var outside = []string{OriginTool, OriginWeb}

// Untrusted reports whether any of these origins is outside.
func Untrusted(origins []string) bool {
	return slices.ContainsFunc(origins, func(o string) bool { return slices.Contains(outside, o) })
}

// Input is the entry of an origin into a session: the first call that brought it.
type Input struct {
	Origin string    `json:"origin"`
	Tool   string    `json:"tool"` // of the call
	Run    string    `json:"run"`
	Step   int       `json:"step"` // of the run, from 0
	Time   time.Time `json:"time"` // of the call's end, or, while it goes on, of its start
}

// Inputs is the label of what was read: an entry for each origin, sorted by it. nil is nothing.
type Inputs []Input

// Join returns in with the origins of more that it lacks. Nothing takes an origin out of a label,
// and an entry that is there stays as it is.
func (in Inputs) Join(more ...Input) Inputs {
	out := slices.Clone(in)
	for _, m := range more {
		if i, ok := slices.BinarySearchFunc(out, m.Origin, func(e Input, origin string) int { return strings.Compare(e.Origin, origin) }); !ok {
			out = slices.Insert(out, i, m)
		}
	}
	return out
}

// Has reports whether in has all of these origins.
func (in Inputs) Has(origins ...string) bool {
	for _, o := range origins {
		if !slices.ContainsFunc(in, func(e Input) bool { return e.Origin == o }) {
			return false
		}
	}
	return true
}

// Origins returns the origins of in, sorted; nil if there are none.
func (in Inputs) Origins() (names []string) {
	for _, e := range in {
		names = append(names, e.Origin)
	}
	return names
}

// Outside returns the entries of in that make it untrusted.
func (in Inputs) Outside() Inputs {
	return slices.DeleteFunc(slices.Clone(in), func(e Input) bool { return !slices.Contains(outside, e.Origin) })
}
