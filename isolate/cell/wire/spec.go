package wire

import (
	"fmt"

	"palyra/internal/canon"
	"palyra/isolate"
)

// ParseSpec reads the JSON of a Spec, which has one reading (canon.Decode). The grant is bound
// to the digest of these bytes, so they are the canonical form.
func ParseSpec(b []byte) (*isolate.Spec, error) {
	s := new(isolate.Spec)
	if err := canon.Decode(b, s, canon.Limits{Bytes: MaxSpec}); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	return s, nil
}
