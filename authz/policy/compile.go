package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy/internal/tree"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

type rule struct {
	id     string
	policy *cedar.Policy        // as written
	tail   func() *cedar.Policy // without its action scope, which the index has matched exactly
	quick  func() *cedar.Policy // tail as Decide evaluates it; nil if it takes a context (record.go)
	reads  attr
	ast    *ast.Policy
	file   string
	line   int
	reason string
	size   int      // bytes of text up to the next policy
	host   []string // the networks of the host's that a permit names
}

// hinges reports whether the rule looks at context.approved.
func (r *rule) hinges() bool { return r.reads.meets(attrApproved) }

func (r *rule) permits() bool { return r.policy.Effect() == cedar.Permit }

func (r *rule) info() Info {
	effect := "forbid"
	if r.permits() {
		effect = "permit"
	}
	return Info{ID: r.id, Effect: effect, File: r.file, Line: r.line, Reason: r.reason}
}

// fault names the rule in an error.
func (r *rule) fault(reason string, err error) *fault.Error {
	return fault.New(fault.BadState, reason, fmt.Sprintf("%s:%d: policy %q", r.file, r.line, r.id), err)
}

// idPattern keeps ids printable, greppable and short enough for a log line.
const idPattern = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"

// isID reports whether id matches idPattern. Compiling the pattern would take longer than
// compiling the built-in policies.
func isID(id string) bool {
	for i := range len(id) {
		c := id[i]
		letter := 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != ':' && c != '-') {
			return false
		}
	}
	return id != "" && len(id) <= 128
}

// compile parses the files of a directory into a Set that can decide. It refuses files that
// make deciding impossible or ambiguous; validate does the rest.
func compile(files []file) (*Set, error) { return compileFor(schemaText(), files) }

// compileFor is compile for policies that were written for a schema.
func compileFor(schema string, files []file) (*Set, error) {
	s := &Set{byID: make(map[string]*rule), schema: schema, digest: digestOf(schema, files), memo: newMemo()}
	for _, f := range files {
		switch f.kind {
		case kindPolicy:
			if err := s.addFile(f); err != nil {
				return nil, err
			}
			s.texts = append(s.texts, f)
		case kindHosts:
			if err := s.addHosts(f); err != nil {
				return nil, err
			}
			s.texts = append(s.texts, f)
		case kindTest:
			s.cases = append(s.cases, f)
		case kindSchema:
			if string(f.data) != schemaText() {
				return nil, fault.New(fault.BadState, "policy_invalid", f.name, errors.New("differs from the schema of this program")).
					WithHint("delete the file; the program brings its own schema")
			}
		}
	}
	if len(s.rules) == 0 {
		return nil, fault.New(fault.BadState, "policy_invalid", "policy directory", errors.New("no .cedar file with a policy"))
	}
	slices.SortFunc(s.rules, func(a, b *rule) int { return cmp.Compare(a.id, b.id) })
	s.index = newIndex(s.rules)
	var err error
	if s.implied, err = s.impliedChange(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Set) addFile(f file) error {
	if line, reason, err := checkDepth(f.data); err != nil {
		return fault.New(fault.BadState, reason, fmt.Sprintf("%s:%d", f.name, line), err)
	}
	list, err := cedar.NewPolicyListFromBytes(f.name, f.data)
	if err != nil {
		return syntaxError(f.name, err)
	}
	for i, p := range list {
		pos := p.Position()
		end := len(f.data)
		if i+1 < len(list) {
			end = list[i+1].Position().Offset
		}
		r := &rule{policy: p, ast: (*ast.Policy)(p.AST()), file: f.name, line: pos.Line, size: end - pos.Offset}
		notes := p.Annotations()
		r.host = namedNetworks(r.ast)
		r.id, r.reason = string(notes["id"]), string(notes["reason"])
		switch {
		case r.id == "":
			return fault.New(fault.BadState, "policy_invalid", fmt.Sprintf("%s:%d", f.name, r.line), errors.New("policy without @id"))
		case !isID(r.id):
			return r.fault("policy_invalid", errors.New("@id must match "+idPattern))
		case s.byID[r.id] != nil:
			first := s.byID[r.id]
			return r.fault("policy_invalid", fmt.Errorf("@id is already used at %s:%d", first.file, first.line))
		case len(s.rules) == maxPolicies:
			return r.fault("too_large", fmt.Errorf("more than %d policies", maxPolicies))
		}
		s.byID[r.id] = r
		s.rules = append(s.rules, r)
		// These compile on first use: most decisions need few rules, and most rules are never
		// evaluated as written.
		r.tail = sync.OnceValue(func() *cedar.Policy {
			tail := *r.ast
			tail.Action = ast.ScopeTypeAll{}
			return cedar.NewPolicyFromAST((*publicast.Policy)(&tail))
		})
		r.quick = sync.OnceValue(func() *cedar.Policy { return quicken(r.ast) })
		r.reads = mentions(r.ast)
		s.want = s.want.or(r.reads)
		s.permissions |= permissionsIn(r.ast)
	}
	return nil
}

// syntaxError turns the parser's "<input>:line:col" into file and line.
func syntaxError(name string, err error) error {
	msg := strings.TrimPrefix(err.Error(), "parser error: ")
	op := name
	if _, rest, ok := strings.Cut(msg, "<input>:"); ok {
		if pos, cause, ok := strings.Cut(rest, " "); ok {
			op, msg = name+":"+strings.TrimSuffix(pos, ":"), cause
		}
	}
	return fault.New(fault.BadState, "policy_invalid", op, fmt.Errorf("syntax: %s", msg))
}

// checkDepth bounds how deep a policy can drive cedar-go's recursive parser, compiler and
// evaluator: by brackets, and, through its length, by chains without brackets ("!!!…", "a || a
// || …"). cedar-go has no limit of its own, and a goroutine that runs out of stack takes the
// process with it. Names in a row ("context has a.a.…", "A::A::…") have a closer bound, because
// the parser's work on them is quadratic. checkDepth returns the line and the reason code of an
// error.
func checkDepth(text []byte) (line int, reason string, err error) {
	depth, size, names, line := 0, 0, 0, 1
	last, apart := byte(0), false // the byte before, and whether white space or a comment follows it
	for i := 0; i < len(text); i++ {
		start := i
		switch text[i] {
		case '\n':
			line++
		case 0: // the scanner refuses it too, but doesn't say where
			return line, "policy_invalid", errors.New("syntax: NUL character")
		case '(', '[', '{':
			if depth++; depth > maxNesting {
				return line, "policy_invalid", fmt.Errorf("nested deeper than %d", maxNesting)
			}
		case ')', ']', '}':
			depth--
		case ';':
			size = 0
		case '"': // brackets in strings are text
			for i++; i < len(text) && text[i] != '"'; i++ {
				switch text[i] {
				case '\\':
					i++
				case '\n':
					line++
				}
			}
		case '/':
			if i+1 < len(text) && text[i+1] == '/' {
				for i+1 < len(text) && text[i+1] != '\n' {
					i++
				}
				apart = true
				continue
			}
		}
		switch c := text[start]; {
		case c <= ' ':
			apart = true
			continue
		case c == ':' && last != ':' && start+1 < len(text) && text[start+1] == ':': // the first half of "::"
		case c == '.', c == ':' && last == ':':
			if names++; names > tree.MaxPath {
				return line, "policy_invalid", fmt.Errorf("more than %d names in a row", tree.MaxPath)
			}
		case !ofName(c), last != '.' && last != ':' && (apart || !ofName(last)): // a token that doesn't continue a name
			names = 0
		}
		last, apart = text[start], false
		if size += i + 1 - start; size > maxPolicy {
			return line, "too_large", fmt.Errorf("a policy of more than %d bytes", maxPolicy)
		}
	}
	return 0, "", nil
}

func ofName(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// digestOf hashes a label, the schema, and name and bytes of every policy file and list of hosts,
// each preceded by its length.
func digestOf(schema string, files []file) canon.Digest {
	h := sha256.New()
	put := func(b string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write([]byte(b))
	}
	put("palyra/policy-set/v1")
	put(schema)
	for _, f := range files { // sorted by name
		if f.kind == kindPolicy || f.kind == kindHosts {
			put(f.name)
			put(string(f.data))
		}
	}
	return canon.Digest(h.Sum(nil))
}
