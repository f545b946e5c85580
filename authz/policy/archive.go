package policy

import (
	"errors"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Texts returns the policy files of the set by name: what its digest is of,
// beside the schema.
func (s *Set) Texts() map[string]string {
	texts := make(map[string]string, len(s.texts))
	for _, f := range s.texts {
		texts[f.name] = string(f.data)
	}
	return texts
}

// Restore makes a set of its Texts again, to explain what it decided. It has no
// policy tests and none of the checks of Load: those have been passed, or it would
// have decided nothing. Texts that are not those of want are fault.Integrity
// "policy_set_differs"; so is everything that was written for another schema.
func Restore(texts map[string]string, want canon.Digest) (*Set, error) {
	const op = "restore policy set"
	var files []file
	for name, text := range texts {
		kind, ignore, err := kindOf(name)
		if err != nil || ignore || kind != kindPolicy {
			return nil, fault.New(fault.Integrity, "policy_set_differs", op, errors.New("it holds what is no policy file"))
		}
		files = append(files, file{name, kind, []byte(text)})
	}
	sortFiles(files)
	s, err := compile(files)
	if err != nil {
		return nil, err
	}
	if s.digest != want {
		return nil, fault.New(fault.Integrity, "policy_set_differs", op, errors.New("its digest is another"))
	}
	return s, nil
}
