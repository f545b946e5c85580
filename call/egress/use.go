package egress

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/fault"
)

// MaxUses is how many uses of secrets a call can have.
const MaxUses = 16

// Bounds of the parts of a use, in bytes.
const (
	maxVariable = 64
	maxRef      = 512
	maxPlace    = 64
	maxForm     = 32
)

// Use is a secret that palyra-egress puts into requests to one host, in place of a placeholder that
// the program has. Make one with ParseUse; the zero Use puts nothing anywhere.
type Use struct {
	Name    string   // variable of the environment that holds the placeholder
	Ref     string   // of the secret: "vault://global/npm"
	Place   Place    // of the request
	Methods []string // upper case, sorted, unique; empty: all
	Host    string   // an exact name
	Port    uint16
	Path    string // in normal form, "" for all: this path and those below it
	Form    string // the placeholder's beginning, for programs that look at it: "npm_"
	Keep    bool   // files that the call leaves may have the placeholder
	Revoke  bool   // a leak of the placeholder expires the secret's version
}

// Place is where in a request the placeholder stands.
type Place struct {
	Kind string // InHeader or InQuery
	Name string // of the header, in lower case, or of the query's parameter
}

// The kinds of places.
const (
	InHeader = "header"
	InQuery  = "query"
)

// String returns the canonical text: "header:authorization".
func (p Place) String() string { return p.Kind + ":" + p.Name }

// ParseUse reads NAME=REF PLACE [METHODS] HOST[:PORT][PATH] [form:PREFIX] [keep] [revoke], as
// people type it. Of the reference it checks the characters alone.
func ParseUse(text string) (Use, error) {
	u, err := parseUse(strings.Fields(text))
	if err != nil {
		return Use{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("use of a secret %q", clip(text)), err).
			WithHint("NAME=REF PLACE [METHODS] HOST[:PORT][/PATH]: \"TOKEN=vault://global/npm header:authorization GET packages.example:443\"")
	}
	return u, nil
}

func parseUse(words []string) (u Use, err error) {
	for _, word := range []struct {
		text string
		said *bool
	}{{"revoke", &u.Revoke}, {"keep", &u.Keep}} {
		if n := len(words) - 1; n >= 0 && words[n] == word.text {
			*word.said, words = true, words[:n]
		}
	}
	if n := len(words) - 1; n >= 0 && strings.HasPrefix(words[n], "form:") {
		if u.Form, err = form(words[n]); err != nil {
			return Use{}, err
		}
		words = words[:n]
	}
	if len(words) < 3 || len(words) > 4 {
		return Use{}, errors.New("want a name and reference, a place, and a host")
	}
	name, ref, ok := strings.Cut(words[0], "=")
	if u.Name, u.Ref = name, ref; !ok || !variable(name) {
		return Use{}, fmt.Errorf("variable %q: want 1 to %d letters, digits and '_', no digit in front", clip(name), maxVariable)
	}
	if err := checkRef(ref); err != nil {
		return Use{}, err
	}
	if u.Place, err = ParsePlace(words[1]); err != nil {
		return Use{}, err
	}
	in, err := parseInspect(words[2:])
	if err != nil {
		return Use{}, err
	}
	host, below := in.Host.Name()
	if below {
		return Use{}, errors.New("a secret goes to one host: an exact name")
	}
	u.Methods, u.Host, u.Port, u.Path = in.Methods, host, in.Host.port, in.Path
	return u, nil
}

func variable(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && !letterOrDigit(c) || i == 0 && c >= '0' && c <= '9' {
			return false
		}
	}
	return s != "" && len(s) <= maxVariable
}

// checkRef knows no scopes: who opens the secret reads the reference whole.
func checkRef(ref string) error {
	rest, ok := strings.CutPrefix(ref, "vault://")
	scope, key, slash := strings.Cut(rest, "/")
	if !ok || !slash || scope == "" || key == "" || len(ref) > maxRef {
		return errors.New("no reference: want vault://SCOPE/KEY")
	}
	for _, c := range []byte(scope + key) {
		if !letterOrDigit(c) && strings.IndexByte("._-:@+", c) < 0 {
			return fmt.Errorf("%q in a reference", rune(c))
		}
	}
	return nil
}

func form(word string) (string, error) {
	f := strings.TrimPrefix(word, "form:")
	for _, c := range []byte(f) {
		if !letterOrDigit(c) && strings.IndexByte("._-", c) < 0 {
			return "", fmt.Errorf("%q in the form of a placeholder", rune(c))
		}
	}
	if f == "" || len(f) > maxForm {
		return "", fmt.Errorf("the form of a placeholder has 1 to %d bytes", maxForm)
	}
	return f, nil
}

// framing are the headers that say where a request goes, where it ends and what a connection does.
var framing = []string{"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "keep-alive",
	"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

// ParsePlace reads "header:authorization" or "query:key".
func ParsePlace(word string) (Place, error) {
	kind, name, _ := strings.Cut(word, ":")
	p := Place{kind, name}
	characters := "-._~"
	switch kind {
	case InHeader:
		p.Name, characters = strings.ToLower(name), "-_" // not all of RFC 9110 §5.6.2
	case InQuery:
	default:
		return Place{}, fmt.Errorf("place %q: want header:NAME or query:NAME", clip(word))
	}
	for _, c := range []byte(p.Name) {
		if !letterOrDigit(c) && strings.IndexByte(characters, c) < 0 {
			return Place{}, fmt.Errorf("place %q: %q in a name", clip(word), rune(c))
		}
	}
	switch {
	case p.Name == "" || len(p.Name) > maxPlace:
		return Place{}, fmt.Errorf("place %q: a name has 1 to %d bytes", clip(word), maxPlace)
	case kind == InHeader && slices.Contains(framing, p.Name):
		return Place{}, fmt.Errorf("place %q: a header that rules the connection", clip(word))
	}
	return p, nil
}

// String returns the canonical text, which ParseUse reads as u.
func (u Use) String() string {
	words := []string{u.Name + "=" + u.Ref, u.Place.String()}
	if len(u.Methods) > 0 {
		words = append(words, strings.Join(u.Methods, ","))
	}
	words = append(words, u.Host+":"+strconv.Itoa(int(u.Port))+u.Path)
	if u.Form != "" {
		words = append(words, "form:"+u.Form)
	}
	if u.Keep {
		words = append(words, "keep")
	}
	if u.Revoke {
		words = append(words, "revoke")
	}
	return strings.Join(words, " ")
}

// Rule returns the rule that leads to the host of u.
func (u Use) Rule() Rule { return Rule{name: u.Host, port: u.Port} }

// Names reports whether u is about the requests to name, which is canonical, and port.
func (u Use) Names(name string, port uint16) bool {
	return u.Host != "" && u.Host == name && u.Port == port
}

// Matches reports whether the secret may go into this request; path as for [Inspect.Matches].
func (u Use) Matches(name string, port uint16, method, path string) bool {
	return u.Names(name, port) && matches(u.Methods, u.Path, method, path)
}

// ParseUses reads uses in any order, and drops those that are there twice. Uses of one variable are
// of one secret and have one placeholder.
func ParseUses(texts []string) ([]Use, error) {
	us, err := parseList("uses of secrets", MaxUses, texts, ParseUse)
	if err != nil {
		return nil, err
	}
	for i, u := range us {
		for _, o := range us[:i] {
			if u.Name == o.Name && (u.Ref != o.Ref || u.Form != o.Form || u.Keep != o.Keep || u.Revoke != o.Revoke) {
				return nil, fault.New(fault.Usage, "invalid_input", "uses of secrets", fmt.Errorf("%s would hold two secrets", u.Name)).
					WithHint("uses of one variable have the same reference, form, keep and revoke, and differ in place and host")
			}
		}
	}
	return us, nil
}

// ParseCanonicalUses reads uses that are canonical, sorted and unique.
func ParseCanonicalUses(texts []string) ([]Use, error) {
	return canonicalList("uses of secrets", texts, ParseUses)
}

// Inspection is what palyra-egress does with the requests of a call.
type Inspection struct {
	Rules []Inspect
	Uses  []Use
}

// ParseInspection reads canonical lists whose hosts rules names, spelled alike but for bounds.
func ParseInspection(rules Rules, inspect, uses []string) (Inspection, error) {
	var in Inspection
	var err error
	if in.Rules, err = ParseCanonicalInspects(inspect); err != nil {
		return Inspection{}, err
	}
	if in.Uses, err = ParseCanonicalUses(uses); err != nil {
		return Inspection{}, err
	}
	for _, r := range in.Hosts() {
		if !slices.ContainsFunc(rules.all, func(o Rule) bool { return o.Bare() == r }) {
			return Inspection{}, fault.New(fault.Usage, "invalid_input", "inspection", fmt.Errorf("no rule for %s", r))
		}
	}
	return in, nil
}

// Hosts returns the rules that lead to the hosts of the inspection; some may be there twice.
func (in Inspection) Hosts() []Rule {
	var out []Rule
	for _, r := range in.Rules {
		out = append(out, r.Host)
	}
	for _, u := range in.Uses {
		out = append(out, u.Rule())
	}
	return out
}

// Empty reports whether no host is inspected.
func (in Inspection) Empty() bool { return len(in.Rules)+len(in.Uses) == 0 }

// Names reports whether connections to name, which is canonical, and port are inspected.
func (in Inspection) Names(name string, port uint16) bool {
	return slices.ContainsFunc(in.Rules, func(r Inspect) bool { return r.Names(name, port) }) ||
		slices.ContainsFunc(in.Uses, func(u Use) bool { return u.Names(name, port) })
}

// Narrow reports whether rules or uses about name and port name methods, and whether they name
// paths.
func (in Inspection) Narrow(name string, port uint16) (methods, paths bool) {
	for _, r := range in.Rules {
		if r.Names(name, port) {
			methods, paths = methods || len(r.Methods) > 0, paths || r.Path != ""
		}
	}
	for _, u := range in.Uses {
		if u.Names(name, port) {
			methods, paths = methods || len(u.Methods) > 0, paths || u.Path != ""
		}
	}
	return methods, paths
}

// Sockets reports whether a request may become a WebSocket: a rule that says so matches it.
func (in Inspection) Sockets(name string, port uint16, method, path string) bool {
	return slices.ContainsFunc(in.Rules, func(r Inspect) bool { return r.Sockets && r.Matches(name, port, method, path) })
}

// Bodies returns the bounds of a request's body and of its answer's: the widest of each that rules
// which match it have, none if one has none.
func (in Inspection) Bodies(name string, port uint16, method, path string) (b Bounds) {
	first := true
	for _, r := range in.Rules {
		if !r.Matches(name, port, method, path) {
			continue
		}
		if first {
			b.Body, b.Answer, first = r.Body, r.Answer, false
			continue
		}
		b.Body, b.Answer = wider(b.Body, r.Body), wider(b.Answer, r.Answer)
	}
	return b
}

func wider(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// Pins returns the pins of the keys that a host may have, by all rules about it; none: any key.
func (in Inspection) Pins(name string, port uint16) (pins []string) {
	for _, r := range in.Rules {
		if r.Names(name, port) {
			pins = append(pins, r.Pins...)
		}
	}
	return pins
}

// Passes reports whether a request of an inspected connection passes: a rule about its host matches
// it, or the host is inspected for uses alone.
func (in Inspection) Passes(name string, port uint16, method, path string) bool {
	ruled := false
	for _, r := range in.Rules {
		if r.Matches(name, port, method, path) {
			return true
		}
		ruled = ruled || r.Names(name, port)
	}
	return !ruled && in.Names(name, port)
}

// Drawn is the length of a placeholder behind its form: 5 bits a byte.
const Drawn = 40

// alphabet is Crockford's base 32 in lower case: names of the DNS carry it as it is.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// NewPlaceholder draws the text that a program gets in place of a secret: form, and 200 random
// bits.
func NewPlaceholder(form string) string {
	var b [Drawn]byte
	rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return form + string(b[:])
}

// DrawnIn returns the parts of a text that may be what NewPlaceholder draws, in lower case whatever
// they are there.
func DrawnIn(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		text, run := strings.ToLower(text), 0
		for i := range len(text) {
			if run++; strings.IndexByte(alphabet, text[i]) < 0 {
				run = 0
			}
			if run >= Drawn && !yield(text[i+1-Drawn:i+1]) {
				return
			}
		}
	}
}

// CheckPlaceholder refuses a text that NewPlaceholder doesn't draw for form.
func CheckPlaceholder(form, text string) error {
	drawn, ok := strings.CutPrefix(text, form)
	if !ok || len(drawn) != Drawn || strings.Trim(drawn, alphabet) != "" {
		return errors.New("no placeholder of this form")
	}
	return nil
}
