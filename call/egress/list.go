package egress

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// The bounds of a list of hosts.
const (
	MaxListed   = 1000 // rules
	maxListName = 32   // bytes of its name
)

// List is hosts that an operator lets calls reach, by a name of the operator's: "npm", "git". It's
// a file NAME.hosts in a policy directory, a rule a line, in any order; what follows a # is a
// comment. Its first line may be "version N", the operator's count of its changes.
type List struct {
	Name    string
	Version int    // 0: it has none
	Rules   []Rule // in the order of the file
}

// maxVersion bounds a list's version.
const maxVersion = 999_999

// versionWord begins the line of a list with its version.
const versionWord = "version "

// Digest identifies what the list lets calls reach, and its version: the SHA-256 of its version
// line, if it has one, and its rules in their one spelling, sorted by bytes, each with a newline.
func (l List) Digest() canon.Digest {
	lines := Strings(l.Rules)
	slices.Sort(lines)
	if l.Version > 0 {
		lines = append([]string{versionWord + strconv.Itoa(l.Version)}, lines...)
	}
	return canon.Sum([]byte(strings.Join(lines, "\n") + "\n"))
}

// NextVersion returns the text of a list with its version raised by one. Without one it's as it
// was, and an empty text gets the first.
func NextVersion(text string) string {
	if text == "" {
		return versionWord + "1\n"
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		rule, comment, _ := strings.Cut(line, "#")
		if strings.Trim(rule, " \t\r") == "" {
			continue
		}
		n, ok, err := version(strings.Trim(rule, " \t\r"))
		if !ok || err != nil || n == maxVersion {
			return text
		}
		lines[i] = versionWord + strconv.Itoa(n+1)
		if comment != "" {
			lines[i] += " #" + comment
		}
		return strings.Join(lines, "\n")
	}
	return text
}

// version reads the line of a list's version; ok says whether it is one.
func version(line string) (n int, ok bool, err error) {
	text, ok := strings.CutPrefix(line, versionWord)
	if !ok {
		return 0, false, nil
	}
	n, err = strconv.Atoi(text)
	if err != nil || n < 1 || n > maxVersion || strconv.Itoa(n) != text {
		return 0, true, fmt.Errorf("version %q: want 1 to %d", clip(text), maxVersion)
	}
	return n, true, nil
}

// ListName reports whether name can be a list's: lower-case letters, digits and inner hyphens, 32
// at most.
func ListName(name string) bool {
	letters := strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	return name != "" && len(name) <= maxListName && letters && name[0] != '-' && name[len(name)-1] != '-'
}

// ParseList reads the text of a list. Its errors name the line.
func ParseList(name, text string) (List, error) {
	l := List{Name: name}
	for n, line := range slices.All(strings.Split(text, "\n")) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.Trim(strings.ReplaceAll(line, "\t", " "), " \r"); line == "" {
			continue
		}
		v, is, err := version(line)
		if is && err == nil && l.Version == 0 && len(l.Rules) == 0 {
			l.Version = v
			continue
		}
		var r Rule
		if err == nil {
			r, err = parseRule(line)
		}
		switch {
		case err != nil:
			err = fmt.Errorf("%q: %w", clip(line), err)
		case slices.ContainsFunc(l.Rules, func(o Rule) bool { return o.Bare() == r.Bare() }):
			err = fmt.Errorf("%s is there twice", r.Bare())
		case len(l.Rules) == MaxListed:
			err = fmt.Errorf("more than %d rules", MaxListed)
		}
		if err != nil {
			return List{}, fmt.Errorf("line %d: %w", n+1, err)
		}
		l.Rules = append(l.Rules, r)
	}
	if len(l.Rules) == 0 {
		return List{}, errors.New("no rule")
	}
	return l, nil
}

// Covers reports whether r allows all that o does: o is the same rule, or about a name below r's,
// at the same port, and no bound of it is wider. Of networks it looks at no part.
func (r Rule) Covers(o Rule) bool {
	return o.bounds.within(r.bounds) && (r.Bare() == o.Bare() || r.port == o.port && r.below && o.name != "" && r.names(o.name))
}

// Lists are lists of hosts that are asked about rules. A question's cost doesn't grow with them.
// The zero Lists have none; Add makes them, and nothing changes them then.
type Lists struct {
	all   []List
	rules map[Rule][]Bounds // by the bare rule, those that lists have for it
}

// Add adds a list.
func (ls *Lists) Add(l List) {
	if ls.rules == nil {
		ls.rules = make(map[Rule][]Bounds)
	}
	ls.all = append(ls.all, l)
	for _, r := range l.Rules {
		ls.rules[r.Bare()] = append(ls.rules[r.Bare()], r.bounds)
	}
}

// All returns the lists in the order in which they were added. The caller must not change them.
func (ls *Lists) All() []List {
	if ls == nil {
		return nil
	}
	return ls.all
}

// Cover reports whether a rule of a list [Rule.Covers] o.
func (ls *Lists) Cover(o Rule) bool {
	if ls == nil {
		return false
	}
	has := func(r Rule) bool {
		return slices.ContainsFunc(ls.rules[r], o.bounds.within)
	}
	if has(o.Bare()) {
		return true
	}
	for name, below := o.name, true; ; {
		if _, name, below = strings.Cut(name, "."); !below {
			return false
		}
		if has(Rule{name: name, below: true, port: o.port}) {
			return true
		}
	}
}
