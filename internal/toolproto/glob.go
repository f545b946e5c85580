package toolproto

import (
	"errors"
	"path"
	"strings"
)

// CheckGlob wants a pattern that MatchGlob can read: path.Match's, with ** for
// any number of folders.
func CheckGlob(glob string) error {
	if glob == "" {
		return errors.New("is empty")
	}
	for e := range strings.SplitSeq(glob, "/") {
		if e == "" {
			return errors.New("an element is empty: a slash at an end, or two together")
		}
		if _, err := path.Match(e, ""); err != nil {
			return err
		}
	}
	return nil
}

// MatchGlob reports whether a path below the searched folder, unescaped,
// matches. A glob without a slash is matched with the last element alone. It
// takes time proportional to the product of both lengths, whatever the pattern.
func MatchGlob(glob, name string) bool {
	if !strings.Contains(glob, "/") && glob != "**" {
		ok, err := path.Match(glob, path.Base(name))
		return ok && err == nil
	}
	pattern, parts := strings.Split(glob, "/"), strings.Split(name, "/")
	// can[j]: the elements of pattern so far match the first j parts.
	can := make([]bool, len(parts)+1)
	can[0] = true
	for _, p := range pattern {
		next := make([]bool, len(parts)+1)
		for j := range next {
			if p == "**" {
				next[j] = can[j] || j > 0 && next[j-1]
				continue
			}
			if j > 0 && can[j-1] {
				ok, err := path.Match(p, parts[j-1])
				next[j] = ok && err == nil
			}
		}
		can = next
	}
	return can[len(parts)]
}
