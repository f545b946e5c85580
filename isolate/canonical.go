package isolate

import "palyra/internal/canon"

// Canonical returns the canonical JSON of the Spec: the bytes that travel to the
// Runner, and that the grant is bound to.
func (s *Spec) Canonical() ([]byte, error) { return canon.Marshal(s) }

// Digest returns the digest of the Spec's canonical JSON, the second value that
// a grant is bound to.
func (s *Spec) Digest() (canon.Digest, error) {
	b, err := s.Canonical()
	if err != nil {
		return canon.Digest{}, err
	}
	return canon.Sum(b), nil
}
