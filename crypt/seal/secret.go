package seal

import (
	"fmt"
	"log/slog"

	"palyra/internal/locked"
)

// Mask stands for a secret wherever one is formatted.
const Mask = "[secret]"

// Secret is a value that must not be printed. Its owner calls Wipe. Copies share the value. The
// zero Secret is of no use.
type Secret struct {
	masked
	// m hides the bytes behind a function: where package fmt reaches an unexported field it
	// calls no method, and would follow a pointer for a verb that doesn't fit.
	m func() *locked.Memory
}

// masked is embedded by all that must not be printed. What embeds it can't be compared.
type masked struct{ _ [0]func() }

// String returns the mask.
func (masked) String() string { return Mask }

// Format implements fmt.Formatter with the mask, for every verb.
func (masked) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Mask)) }

// MarshalText implements encoding.TextMarshaler with the mask, and so JSON, too.
func (masked) MarshalText() ([]byte, error) { return []byte(Mask), nil }

// LogValue implements slog.LogValuer with the mask.
func (masked) LogValue() slog.Value { return slog.StringValue(Mask) }

// NewSecret copies b to a Secret. b stays the caller's to wipe.
func NewSecret(b []byte) *Secret {
	s := newSecret(len(b))
	copy(s.m().Bytes(), b)
	return s
}

func newSecret(n int) *Secret {
	m := locked.New(n)
	return &Secret{m: func() *locked.Memory { return m }}
}

// Bytes returns the value itself, valid until Wipe.
func (s Secret) Bytes() []byte { return s.m().Bytes() }

// Locked reports whether the value is kept out of swap.
func (s Secret) Locked() bool { return s.m().Locked() }

// Wipe overwrites the value and gives its memory back. It may be called again, and on nil.
func (s *Secret) Wipe() {
	if s == nil || s.m == nil {
		return
	}
	s.m().Wipe()
}
