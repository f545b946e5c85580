// Package policy decides requests with Cedar.
//
// A [Set] is a directory of Cedar files that was checked as a whole: [Load] refuses it on any
// doubt and [Default] is the one built in. [Set.Decide] answers a [Request] with a [Decision].
// [Set.Explain] shows why, policy by policy. docs/formats/policy.md has the directory format,
// the default rules and recipes.
//
//	set, err := policy.Load("/etc/palyra/policy.d")
//	if err != nil {
//		return err // names file, line and policy
//	}
//	d := set.Decide(policy.Request{
//		Principal: policy.LocalUser("alice"),
//		Action:    policy.ToolExecute,
//		Resource:  policy.Tool("process.run"),
//		Context:   policy.Context{Executable: policy.Executable{Path: "/usr/bin/true", System: true}},
//	})
//
// # Contract
//
// Decide is total: it never panics, and it denies, with a reason, a request that it can't
// decide. It's deterministic apart from Decision.ID: the order of files, policies and map
// iteration doesn't show. An evaluation error in any policy that was consulted denies and is
// recorded; no policy is skipped.
//
// A request needs approval if the set denies it with context.approved false and permits it with
// context.approved true. Nothing else turns a denial into a question, and no caller can set
// context.approved.
//
// Decide asks two questions about shells, interpreters, loaders and wrappers ([Classify]):
// whether some policy permits the action interpreter.run for that family, and then, with the
// answer in context.interpreter_permitted, the call itself. Both are plain Cedar requests that
// another engine can repeat. About a call with secrets it asks, besides, whether the principal may
// do vault.expose on each, and vault.use for each use of one that the program can't read.
//
// # What it does not protect against
//
// A user who can write the directory decides everything. A permit is as wide as it's written.
// Names of executables are a convenience; confinement is isolate's. A Decision here is plain
// data that any caller can fill in; authority travels as authz.Decision.
//
// This package and those below it are the home of cedar-go; no other package imports it.
// Analyses of policies are in palyra/authz/policy/lint, which no program that decides links.
// validate.go guards the validator in cedar-go's x/exp, and tests that don't trust the
// validator check it.
package policy

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"palyra/authz/access"
	"palyra/call/egress"
	"palyra/internal/canon"
)

// Effect is the answer of a decision. The zero Effect is Deny.
type Effect uint8

// The effects.
const (
	Deny Effect = iota
	NeedsApproval
	Allow
)

var effectNames = [...]string{"deny", "needs_approval", "allow"}

// String returns the effect's name in JSON: "deny", "needs_approval" or "allow".
func (e Effect) String() string {
	if int(e) < len(effectNames) {
		return effectNames[e]
	}
	return effectNames[Deny]
}

// ParseEffect is the inverse of String.
func ParseEffect(s string) (Effect, error) {
	if i := slices.Index(effectNames[:], s); i >= 0 {
		return Effect(i), nil
	}
	return Deny, fmt.Errorf("parse effect %q: want deny, needs_approval or allow", s)
}

// MarshalText implements encoding.TextMarshaler.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Effect) UnmarshalText(b []byte) (err error) {
	*e, err = ParseEffect(string(b))
	return err
}

// The reason codes of a Decision.
const (
	ReasonPermitted        = "permitted"         // allow: Policies are the permits
	ReasonApprovalRequired = "approval_required" // needs approval: Policies ask for it
	ReasonForbidden        = "forbidden"         // deny: Policies are the forbids, approval would not help
	ReasonNotPermitted     = "not_permitted"     // deny: no permit applies, approval would not help
	ReasonPolicyError      = "policy_error"      // deny: a policy could not be evaluated, see Errors
	ReasonBadRequest       = "bad_request"       // deny: the request is not one the schema knows, see Errors
)

// Decision is a Set's answer to one Request. The zero Decision denies.
type Decision struct {
	ID        [16]byte     // random; names this decision in logs and receipts
	Effect    Effect       //
	Reason    string       // one of the Reason codes
	Policies  []string     // ids of the policies that determined it, sorted
	Errors    []string     // evaluation errors, sorted; any error means deny
	PolicySet canon.Digest // of the Set that decided
	Capsule   canon.Digest // from the request
}

// Info describes one policy of a Set.
type Info struct {
	ID     string `json:"id"`
	Effect string `json:"effect"` // "permit" or "forbid"
	File   string `json:"file"`
	Line   int    `json:"line"`
	Reason string `json:"reason,omitempty"` // its @reason annotation, for people
}

// Set is a checked set of policies. It's safe for concurrent use, and immutable but for memo.
type Set struct {
	rules []*rule // sorted by id
	byID  map[string]*rule
	index index
	want  attr // context attributes that the rules mention
	// permissions are those that the rules name. implied is the permit that the set lacks if no
	// rule permits permission.use, else nil.
	permissions access.Set
	implied     *change
	schema      string    // that the policies were checked against
	unknown     byContext // the attributes that a restored set's schema lacks
	lost        string    // an attribute of a restored set that this program doesn't fill; "": none
	digest      canon.Digest
	memo        *memo
	cases       []file       // policy tests, read when they are run: Default doesn't pay for them
	texts       []file       // the policy files and lists of hosts
	hosts       egress.Lists // sorted by name
	tested      int          // the tests that check ran; 0 for sets that it didn't check
	base        *Set         // this set without its floor; nil if it has none
}

//go:embed default
var embedded embed.FS

// DefaultFS returns the directory of the default set, to copy and change.
func DefaultFS() fs.FS {
	sub, err := fs.Sub(embedded, "default")
	if err != nil {
		panic("policy: internal error: " + err.Error()) // the path is constant
	}
	return sub
}

// Default returns the built-in set. Its bytes are part of the program, so this package's tests
// make the checks of Load, and starting doesn't.
func Default() *Set { return defaultSet() }

var defaultSet = sync.OnceValue(func() *Set {
	files, err := readFS(DefaultFS())
	if err != nil {
		panic("policy: internal error: default set: " + err.Error())
	}
	s, err := compile(files)
	if err != nil {
		panic("policy: internal error: default set: " + err.Error())
	}
	return s
})

// Load reads a policy directory and checks it as a whole. Any finding refuses
// the directory; the error names file, line and policy. See docs/formats/policy.md.
func Load(dir string) (*Set, error) {
	files, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	return check(context.Background(), files)
}

// LoadFS is Load for a directory that isn't on a disk, such as an embedded one. It has no
// owners to check.
func LoadFS(fsys fs.FS) (*Set, error) { return LoadFSContext(context.Background(), fsys) }

// LoadFSContext is LoadFS. A done ctx ends it after the current policy or test.
func LoadFSContext(ctx context.Context, fsys fs.FS) (*Set, error) {
	files, err := readFS(fsys)
	if err != nil {
		return nil, err
	}
	return check(ctx, files)
}

// check compiles files and makes every check that can refuse the result.
func check(ctx context.Context, files []file) (*Set, error) {
	s, err := compile(files) // a file of maxFile takes some seconds at most
	if err != nil {
		return nil, err
	}
	if err := s.validate(ctx); err != nil {
		return nil, err
	}
	if err := s.runCases(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Digest identifies the set: the schema, and names and bytes of the policy files. Policy tests
// decide nothing and aren't in it.
func (s *Set) Digest() canon.Digest { return s.digest }

// Policies lists the set's policies, sorted by id.
func (s *Set) Policies() []Info {
	out := make([]Info, len(s.rules))
	for i, r := range s.rules {
		out[i] = r.info()
	}
	return out
}

// Policy returns the policy with that id.
func (s *Set) Policy(id string) (Info, bool) {
	r, ok := s.byID[id]
	if !ok {
		return Info{}, false
	}
	return r.info(), true
}
