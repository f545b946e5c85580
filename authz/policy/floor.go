package policy

import (
	_ "embed"
	"errors"
	"slices"

	"palyra/internal/fault"
)

// FloorFile is the floor's name among the Texts of a set that has one. No directory may have a
// file of this name.
const FloorFile = "palyra-floor.cedar"

// The ids of the floor's policies.
const (
	FloorCertificate = "palyra.floor.certificate"
	FloorNetwork     = "palyra.floor.network"
)

//go:embed floor.cedar
var floorText []byte

// WithFloor returns the set with the floor that server profiles have: forbids, written like any
// other, for every call at a tier without a proven sandbox certificate, and in the host's network.
// It is in the digest, in explanations and in a Bundle. It isn't in the directory: tests and diffs
// are the directory's, and no fix makes an exception to it.
func (s *Set) WithFloor() (*Set, error) {
	if s.base != nil {
		return s, nil
	}
	files := slices.Clone(s.texts)
	for _, f := range files {
		if f.name == FloorFile {
			return nil, fault.New(fault.BadState, "policy_invalid", f.name, errors.New("this name is the floor's")).WithHint("give the file another name")
		}
	}
	files = append(files, file{FloorFile, kindPolicy, floorText})
	sortFiles(files)
	floored, err := compile(files)
	if err != nil {
		return nil, err
	}
	floored.base = s
	return floored, nil
}

// Floored reports whether the set has the floor.
func (s *Set) Floored() bool { return s.base != nil }

// directory returns the set without its floor.
func (s *Set) directory() *Set {
	if s.base != nil {
		return s.base
	}
	return s
}

// ofFloor reports whether a rule is the floor's. It goes by the file, because a restored set
// has no base.
func ofFloor(r *rule) bool { return r.file == FloorFile }
