package vault

import (
	"errors"
	"fmt"
	"strings"

	"palyra/internal/fault"
)

// Bounds of the parts of a reference, in bytes.
const (
	maxSegment = 256
	maxKey     = 128
)

// scheme begins every reference.
const scheme = "vault://"

// Ref names a secret: a scope and a key in it. ParseRef and String round-trip; the zero Ref names
// nothing. A Ref made by ParseRef is canonical.
type Ref struct{ scope, key string }

// ParseRef reads vault://SCOPE/KEY. SCOPE is global, principal:ID, channel:NAME:ACCOUNT or
// skill:ID. Nothing is trimmed, decoded or folded: a name has one spelling.
func ParseRef(s string) (Ref, error) {
	bad := func(format string, args ...any) (Ref, error) {
		return Ref{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("parse reference %q", clip(s)), fmt.Errorf(format, args...)).
			WithHint("vault://global/KEY, vault://principal:ID/KEY, vault://channel:NAME:ACCOUNT/KEY or vault://skill:ID/KEY")
	}
	rest, ok := strings.CutPrefix(s, scheme)
	scope, key, slash := strings.Cut(rest, "/")
	if !ok || !slash {
		return bad("want vault://SCOPE/KEY")
	}
	if err := checkScope(scope); err != nil {
		return bad("scope: %v", err)
	}
	if !made(key, maxKey, "._-") || key == "." || key == ".." {
		return bad("key: want 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'", maxKey)
	}
	return Ref{scope, key}, nil
}

func checkScope(scope string) error {
	kind, id, _ := strings.Cut(scope, ":")
	switch kind {
	case "global":
		if scope == kind {
			return nil
		}
		return errors.New("global has no id")
	case "principal", "skill":
		return segment(kind, id)
	case "channel":
		name, account, _ := strings.Cut(id, ":")
		return errors.Join(segment("name of channel", name), segment("account of channel", account))
	}
	return errors.New("want global, principal:ID, channel:NAME:ACCOUNT or skill:ID")
}

// segment checks an id, which may hold colons: "uid:1000".
func segment(what, s string) error {
	if !made(s, maxSegment, "._-:@+") {
		return fmt.Errorf("%s: want 1 to %d of A-Z, a-z, 0-9 and ._-:@+", what, maxSegment)
	}
	return nil
}

// made reports whether s is 1 to most letters, digits and characters of also.
func made(s string, most int, also string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(also, rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// Scope returns the scope: "global", "principal:uid:1000".
func (r Ref) Scope() string { return r.scope }

// Key returns the key within the scope.
func (r Ref) Key() string { return r.key }

// String returns the reference.
func (r Ref) String() string { return scheme + r.scope + "/" + r.key }

// MarshalText implements encoding.TextMarshaler.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Ref) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRef(string(b))
	return err
}

func (r Ref) compare(o Ref) int {
	if c := strings.Compare(r.scope, o.scope); c != 0 {
		return c
	}
	return strings.Compare(r.key, o.key)
}

func clip(s string) string { return s[:min(len(s), 64)] }
