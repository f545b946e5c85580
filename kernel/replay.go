package kernel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// maxAsker bounds what a statement says of who asked, in bytes. Device and
// channel are a few words; a longer one leaves the question out of the record,
// and the decision cannot be repeated.
const maxAsker = 1024

// whoAsks is what question was given besides the capsule.
func whoAsks(who *Caller, s *sealed, certificate string) *receipt.Question {
	n := len(who.Device) + len(who.Channel)
	for _, r := range who.Principal.Roles {
		n += len(r)
	}
	for _, name := range s.envCode {
		n += len(name)
	}
	if n > maxAsker {
		return nil
	}
	if certificate == policy.CertificateNone {
		certificate = "" // absent, as in what was written before there were any
	}
	return &receipt.Question{Roles: slices.Clone(who.Principal.Roles), Device: who.Device, Channel: who.Channel, System: executable(s.capsule).System,
		Certificate: certificate, EnvOverridden: overridden(s.capsule), EnvCode: slices.Clone(s.envCode), Unpinned: unpinnedKinds(s.capsule)}
}

// overridden are the variables of every call's environment that have another value.
func overridden(c *capsule.Capsule) (names []string) {
	for _, e := range changedEnv(c.Env) {
		if builtName(capsule.Name(e)) {
			names = append(names, capsule.Name(e))
		}
	}
	return names
}

// QuestionOf is what policy was asked about the call of a statement, exactly, but
// for the values of variables: only their names are recorded. A statement without a Question, of an older version, is fault.Unsupported
// "question_not_recorded".
func QuestionOf(p *receipt.Predicate) (policy.Request, error) {
	const op = "rebuild the question of a call"
	if p.Question == nil {
		return policy.Request{}, fault.New(fault.Unsupported, "question_not_recorded", op, errors.New("the statement does not say who asked in full"))
	}
	kind, quoted, ok := strings.Cut(p.Principal, `::"`)
	id, err := strconv.Unquote(`"` + quoted)
	if !ok || err != nil {
		return policy.Request{}, fault.New(fault.Integrity, "bad_principal", op, fmt.Errorf("principal %q", p.Principal))
	}
	floor, err := tier.Parse(p.Capsule.TierFloor)
	if err != nil || len(p.Capsule.Argv) == 0 {
		return policy.Request{}, fault.New(fault.Integrity, "bad_capsule", op, errors.Join(err, errors.New("no tier or no arguments")))
	}
	s := p.Capsule
	c := &capsule.Capsule{
		Tool: p.Tool, Argv: s.Argv, Cwd: s.Cwd, TierFloor: floor, EgressHosts: s.EgressHosts, Network: s.Network,
		Capabilities: s.Capabilities, Sensitive: s.Sensitive, Executable: capsule.File{Path: s.Executable.Path, Digest: s.Executable.Digest},
		Limits: isolate.Limits{Wall: time.Duration(s.Limits.WallNS), CPU: time.Duration(s.Limits.CPUNS), Memory: s.Limits.Memory,
			PIDs: s.Limits.PIDs, Output: s.Limits.Output, FileSize: s.Limits.FileSize},
	}
	c.Stdin.Mode = s.Stdin.Mode
	if s.Script != nil {
		c.Scripts = append(c.Scripts, capsule.Script{File: capsule.File{Path: s.Script.Path, Digest: s.Script.Digest}})
	}
	if w := s.Workspace; w != nil {
		c.Workspace = &capsule.Workspace{Source: w.Source, ReadOnly: w.ReadOnly}
	}
	who := Caller{Principal: policy.Entity{Type: kind, ID: id, Roles: p.Question.Roles}, Device: p.Question.Device, Channel: p.Question.Channel}
	q := question(&who, &sealed{capsule: c, id: s.Digest}, &Proposal{SessionID: p.SessionID, RunID: p.RunID})
	q.Context.Executable.System, q.Context.Certificate = p.Question.System, orNone(p.Question.Certificate)
	q.Context.EnvNames, q.Context.EnvCode, q.Context.Unpinned = slices.Clone(p.Question.EnvOverridden), p.Question.EnvCode, p.Question.Unpinned
	for _, name := range s.EnvNames {
		if !builtName(name) {
			q.Context.EnvNames = append(q.Context.EnvNames, name)
		}
	}
	return q, nil
}

// repeatable refuses a question that a set cannot be asked again: it reads the
// values of variables, and they are not recorded.
func repeatable(q *policy.Request, sets ...*policy.Set) error {
	for _, s := range sets {
		if len(q.Context.EnvNames) > 0 && s.Reads("env") {
			return fault.New(fault.Unsupported, "environment_not_recorded", "rebuild the question of a call",
				errors.New("a policy reads values of the environment, and the record has only names"))
		}
	}
	return nil
}

// orNone is what policy was told of a certificate.
func orNone(certificate string) string {
	if certificate == "" {
		return policy.CertificateNone
	}
	return certificate
}

// Decided is a decision about a call, as the journal has it.
type Decided struct {
	Index     uint64            // of the entry
	Statement receipt.Statement //

	size int // of the statement, in bytes
}

// ID returns the decision's id, 32 hexadecimal digits.
func (d *Decided) ID() string { return d.Statement.Predicate.Decision.ID }

// Entries reads a part of a journal: its entries from one index up to but not
// including another.
type Entries func(from, to uint64) iter.Seq2[journal.Record, error]

// replayChunk is how many entries are read at once, from the newest backwards. Each
// may have a megabyte.
const replayChunk = 16

// Decisions returns the decisions in a journal of that size, newest first, each
// once: its result, or its intent while there is none. Of the newest entries it
// looks at most at scan; what was erased is left out. The statements are read
// and not verified: that is receipt.Audit's.
func Decisions(read Entries, size, scan uint64) iter.Seq2[Decided, error] {
	return func(yield func(Decided, error) bool) {
		seen := make(map[string]bool)
		for to, left := size, min(scan, size); left > 0; {
			n := min(left, replayChunk)
			var chunk []Decided
			for rec, err := range read(to-n, to) {
				if err == nil && rec.Erased {
					continue
				}
				var d *Decided
				if err == nil {
					d, err = decidedIn(&rec)
				}
				if err != nil {
					yield(Decided{}, err)
					return
				}
				if d != nil {
					chunk = append(chunk, *d)
				}
			}
			for _, d := range slices.Backward(chunk) {
				if seen[d.ID()] {
					continue
				}
				seen[d.ID()] = true
				if !yield(d, nil) {
					return
				}
			}
			to, left = to-n, left-n
		}
	}
}

// decidedIn returns the decision of an entry, nil of an administrative act.
func decidedIn(rec *journal.Record) (*Decided, error) {
	env, err := receipt.ParseEnvelope(rec.Content)
	if err != nil {
		return nil, err
	}
	st, act, err := receipt.ParsePayload(env.Payload)
	if err != nil || act != nil {
		return nil, err
	}
	return &Decided{rec.Index, *st, len(env.Payload)}, nil
}

// FindDecision returns the decision with an id, or with an id that begins so:
// at least eight digits. It looks at the newest scan entries.
func FindDecision(read Entries, size, scan uint64, id string) (Decided, error) {
	op := fmt.Sprintf("look up decision %.40q", id)
	if _, err := hex.DecodeString(id[:len(id)&^1]); err != nil || len(id) < 8 || len(id) > 32 {
		return Decided{}, fault.New(fault.Usage, "bad_decision_id", op, errors.New("want 8 to 32 hexadecimal digits")).
			WithHint("a denial names its decision; so does palyra journal show INDEX --json")
	}
	for d, err := range Decisions(read, size, scan) {
		switch {
		case err != nil:
			return Decided{}, err
		case strings.HasPrefix(d.ID(), id):
			return d, nil
		}
	}
	return Decided{}, fault.New(fault.NotFound, "no_such_decision", op, fmt.Errorf("it is not in the newest %d entries of the journal", min(scan, size)))
}

// maxReplayed bounds the statements that Replayed holds, in bytes.
const maxReplayed = 8 << 20

// MaxReplay is how many decisions Replay makes again at most.
const MaxReplay = 10000

// Replayed is what became of decisions that were made again.
type Replayed struct {
	Decided int      // made again, by both sets
	Skipped int      // that are not recorded in full
	Changed []Change // that have another effect by the second set, newest first
	Same    int      // that have the same effect, by other policies or for another reason
}

// Change is a decision that two sets make differently.
type Change struct {
	Decided
	Before, After policy.Decision // without id and fix
}

// Replay makes the newest last decisions of a journal again, by two sets, and
// says which differ in effect, and how many in nothing but why. Nothing runs and nobody is
// asked: policy is asked what it was asked then.
func Replay(ctx context.Context, read Entries, size uint64, last int, from, to *policy.Set) (Replayed, error) {
	const op = "decide recent calls again"
	out, bytes := Replayed{Changed: []Change{}}, 0
	if last < 1 || last > MaxReplay {
		return out, fault.New(fault.Usage, "bad_limit", op, fmt.Errorf("between 1 and %d calls are decided again", MaxReplay))
	}
	for d, err := range Decisions(read, size, size) {
		if err == nil && ctx.Err() != nil {
			err = fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
		}
		if err != nil {
			return out, err
		}
		q, err := QuestionOf(&d.Statement.Predicate)
		if err == nil {
			err = repeatable(&q, from, to)
		}
		switch {
		case fault.KindOf(err) == fault.Unsupported:
			out.Skipped++
		case err != nil:
			return out, err
		default:
			out.Decided++
			before, after := from.Repeat(q), to.Repeat(q)
			switch {
			case before.Effect != after.Effect:
				if bytes += d.size; bytes > maxReplayed {
					return out, fault.New(fault.Usage, "too_much_changed", op, fmt.Errorf("the calls that it changes have more than %d bytes of arguments", maxReplayed)).
						WithHint("ask for fewer calls")
				}
				out.Changed = append(out.Changed, Change{d, before, after})
			case before.Reason != after.Reason || !slices.Equal(before.Policies, after.Policies):
				out.Same++
			}
		}
		if out.Decided+out.Skipped == last {
			break
		}
	}
	return out, nil
}

// Export is the bundle of a recorded decision. set must be the one that made it,
// and must still make it so.
func Export(d *Decided, set *policy.Set) (*policy.Bundle, error) {
	p := &d.Statement.Predicate
	op := fmt.Sprintf("export decision %.12s", d.ID())
	if set.Digest() != p.Decision.PolicySet {
		return nil, fault.New(fault.NotFound, "policy_set_gone", op, fmt.Errorf("it was made by policy set %s, this is %s", p.Decision.PolicySet, set.Digest())).
			WithHint("give the policy directory as it was then: --policy DIR")
	}
	q, err := QuestionOf(p)
	if err == nil {
		err = repeatable(&q, set)
	}
	if err != nil {
		return nil, err
	}
	b, err := set.Bundle(q, d.ID())
	if err != nil {
		return nil, err
	}
	if a := b.Answer; a.Effect.String() != p.Decision.Effect || a.Reason != p.Decision.Reason || !slices.Equal(a.Policies, p.Decision.Policies) {
		return nil, fault.New(fault.Integrity, "decision_differs", op, fmt.Errorf("made again it is %s %s by %v", a.Effect, a.Reason, a.Policies))
	}
	return b, nil
}
