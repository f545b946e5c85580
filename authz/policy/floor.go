package policy

import (
	_ "embed"
	"errors"
	"slices"

	"palyra/internal/fault"
)

// FloorFile is the name of the floor among the Texts of a set that has one. No
// directory may have it.
const FloorFile = "palyra-floor.cedar"

// FloorCertificate is the id of the one policy of the floor.
const FloorCertificate = "palyra.floor.certificate"

//go:embed floor.cedar
var floorText []byte

// WithFloor returns the set with the floor that profiles of servers have: a
// forbid, written like any other, for every call at a tier for which there is no
// proven sandbox certificate. It is part of the digest and of what an explanation
// and a Bundle show. It is no part of the directory: the set's tests and diffs are
// those of the directory, and no fix makes an exception to it.
func (s *Set) WithFloor() (*Set, error) {
	if s.base != nil {
		return s, nil
	}
	files := slices.Clone(s.texts)
	for _, f := range files {
		if f.name == FloorFile {
			return nil, fault.New(fault.BadState, "policy_reserved_name", f.name, errors.New("this name is the floor's")).WithHint("give the file another name")
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

// directory is the set without its floor.
func (s *Set) directory() *Set {
	if s.base != nil {
		return s.base
	}
	return s
}

// ofFloor reports whether a rule of s is the floor's.
func (s *Set) ofFloor(r *rule) bool { return s.base != nil && r.file == FloorFile }
