package policy

import (
	"errors"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Texts returns the policy files of the set by name. The digest covers these and the schema.
func (s *Set) Texts() map[string]string {
	texts := make(map[string]string, len(s.texts))
	for _, f := range s.texts {
		texts[f.name] = string(f.data)
	}
	return texts
}

// Restore makes a set from its Texts, to explain its decisions. It runs no policy tests and
// none of Load's checks: the set passed them before it decided. Texts that aren't those of
// want, or were written for another schema, are fault.Integrity "store_corrupt".
func Restore(texts map[string]string, want canon.Digest) (*Set, error) {
	const op = "restore policy set"
	var files []file
	for name, text := range texts {
		kind, ignore, err := kindOf(name)
		if err != nil || ignore || kind != kindPolicy {
			return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("it holds what is no policy file"))
		}
		files = append(files, file{name, kind, []byte(text)})
	}
	sortFiles(files)
	s, err := compile(files)
	if err != nil {
		return nil, err
	}
	if s.digest != want {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("its digest is another"))
	}
	return s, nil
}
