package turn

import (
	"encoding/binary"
	"fmt"
	"math"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of a question for vectors, and of a vector.
const (
	MaxInputs     = 2048
	MaxDimensions = 4096
)

// Embed asks for the vectors of texts, in place of an answer. The answer is an event with a Vector
// for each text, in their order and of one length, and the End.
type Embed struct {
	Input      []string `json:"input"`                // 1 to MaxInputs, none empty
	Dimensions int64    `json:"dimensions,omitempty"` // of each vector; 0: as many as the model has
}

// checkEmbed checks a request for vectors, which has no other members.
func (r *Request) checkEmbed() error {
	bad := func(format string, a ...any) error {
		return fault.New(fault.Usage, "invalid_input", "read request to model", fmt.Errorf("embed: "+format, a...))
	}
	rest := *r
	rest.Embed = nil
	if b, err := canon.Marshal(rest); err != nil || string(b) != "{}" {
		return bad("a request for vectors has no other members")
	}
	if n := len(r.Embed.Input); n == 0 || n > MaxInputs {
		return bad("%d texts, want 1 to %d", n, MaxInputs)
	}
	for i, s := range r.Embed.Input {
		if s == "" {
			return bad("text %d is empty", i)
		}
	}
	if d := r.Embed.Dimensions; d < 0 || d > MaxDimensions {
		return bad("%d dimensions, want at most %d", d, MaxDimensions)
	}
	return nil
}

// Vector is the numbers of a vector, 4 bytes each: IEEE 754, little-endian.
type Vector []byte

// NewVector returns the vector of numbers.
func NewVector(of []float32) Vector {
	v := make(Vector, 0, 4*len(of))
	for _, x := range of {
		v = binary.LittleEndian.AppendUint32(v, math.Float32bits(x))
	}
	return v
}

// Numbers returns the numbers of a vector.
func (v Vector) Numbers() []float32 {
	of := make([]float32, len(v)/4)
	for i := range of {
		of[i] = math.Float32frombits(binary.LittleEndian.Uint32(v[4*i:]))
	}
	return of
}

// check returns what is wrong with a vector beside one of n bytes; 0: it's the first.
func (v Vector) check(n int) error {
	if len(v) == 0 || len(v)%4 != 0 || len(v) > 4*MaxDimensions || n > 0 && len(v) != n {
		return fmt.Errorf("a vector of %d bytes", len(v))
	}
	for _, x := range v.Numbers() {
		if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("a vector with %v in it", f)
		}
	}
	return nil
}
