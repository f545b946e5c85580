package toolproto

import "strings"

// The names by which git knows a repository.
const partHead, partObjects, partRefs, partCommon = 1, 2, 4, 8

// RepositoryPart returns which of them a name is, as a bit, 0 for none.
func RepositoryPart(name string) int {
	if len(name) > len("commondir") {
		return 0
	}
	switch strings.ToLower(name) {
	case "head":
		return partHead
	case "objects":
		return partObjects
	case "refs":
		return partRefs
	case "commondir":
		return partCommon
	}
	return 0
}

// IsRepository reports whether git would take a folder with these names for a
// repository or for what one's commondir leads to (is_git_directory in git's setup.c):
// its own configuration and hooks count then, without a folder called .git. A commondir's
// folder needs no HEAD, so objects and refs are enough, whoever leads to them. Whoever sets
// GIT_OBJECT_DIRECTORY on the host does without objects; that is not looked for.
func IsRepository(names []string) bool {
	have := 0
	for _, n := range names {
		have |= RepositoryPart(n)
	}
	return HasRepository(have)
}

// HasRepository is IsRepository for names of which only the parts are known, as the union of
// their bits.
func HasRepository(have int) bool {
	const own, linked = partObjects | partRefs, partHead | partCommon
	return have&own == own || have&linked == linked
}
