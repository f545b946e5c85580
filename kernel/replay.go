package kernel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
)

// Decided is a recorded decision about a call.
type Decided struct {
	Index     uint64            // of the entry
	Statement receipt.Statement //

	size int // of the statement, in bytes
}

// ID returns the decision's id, 32 hexadecimal digits.
func (d *Decided) ID() string { return d.Statement.Predicate.Decision.ID }

// Entries reads the entries of a journal from one index up to but not including another.
type Entries func(from, to uint64) iter.Seq2[journal.Record, error]

// replayChunk is the number of entries read at once, from the newest backwards. Each may have a
// megabyte.
const replayChunk = 16

// Decisions returns the decisions in a journal of that size, newest first, each once: its
// result, or its intent if there is no result. It looks at the newest scan entries. It doesn't
// verify the statements: receipt.Audit does.
func Decisions(read Entries, size, scan uint64) iter.Seq2[Decided, error] {
	return func(yield func(Decided, error) bool) {
		seen := make(map[string]bool)
		for to, left := size, min(scan, size); left > 0; {
			n := min(left, replayChunk)
			var chunk []Decided
			for rec, err := range read(to-n, to) {
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

// FindDecision returns the newest decision whose id begins with id, of at least eight digits.
// It looks at the newest scan entries.
func FindDecision(read Entries, size, scan uint64, id string) (Decided, error) {
	op := fmt.Sprintf("look up decision %.40q", id)
	if _, err := hex.DecodeString(id[:len(id)&^1]); err != nil || len(id) < 8 || len(id) > 32 {
		return Decided{}, fault.New(fault.Usage, "invalid_input", op, errors.New("want 8 to 32 hexadecimal digits")).
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
	return Decided{}, fault.New(fault.NotFound, "not_found", op, fmt.Errorf("it is not in the newest %d entries of the journal", min(scan, size)))
}

// maxReplayed bounds the statements that Replayed holds, in bytes.
const maxReplayed = 8 << 20

// MaxReplay bounds the decisions that Replay makes again.
const MaxReplay = 10000

// Replayed is the result of Replay.
type Replayed struct {
	Decided int      // made again, by both sets
	Skipped int      // not recorded in full, or too long for the patterns of the second set
	Changed []Change // with another effect by the second set, newest first
	Same    int      // with the same effect, by other policies or for another reason
}

// Change is a decision that two sets make differently.
type Change struct {
	Decided
	Before, After policy.Decision // without id
}

// Replay makes the newest last decisions of a journal again, by two sets. It returns those that
// differ in effect, and counts those that differ only in reason or policies. Nothing runs and
// no person is asked: policy gets the same questions as before.
func Replay(ctx context.Context, read Entries, size uint64, last int, from, to *policy.Set) (Replayed, error) {
	const op = "decide recent calls again"
	out, bytes := Replayed{Changed: []Change{}}, 0
	if last < 1 || last > MaxReplay {
		return out, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("between 1 and %d calls are decided again", MaxReplay))
	}
	// Behind the newest decision there may be any number of acts, which are none.
	inTime := func(from, to uint64) iter.Seq2[journal.Record, error] {
		return func(yield func(journal.Record, error) bool) {
			for rec, err := range read(from, to) {
				if err == nil && ctx.Err() != nil {
					err = fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
				}
				if !yield(rec, err) {
					return
				}
			}
		}
	}
	for d, err := range Decisions(inTime, size, size) {
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
		case fault.KindOf(err) == fault.Unsupported, err == nil && !to.Matches(d.size):
			out.Skipped++
		case err != nil:
			return out, err
		default:
			out.Decided++
			before, after := from.Repeat(q), to.Repeat(q)
			switch {
			case before.Effect != after.Effect:
				if bytes += d.size; bytes > maxReplayed {
					return out, fault.New(fault.Usage, "too_large", op, fmt.Errorf("the calls that it changes have more than %d bytes of arguments", maxReplayed)).
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

// Fix returns a change that would have made a recorded decision better: from the record itself
// if it's an older one, else from set. It's empty if there is none. set must be the one that
// decided; it's an error if set can't be asked again.
func (d *Decided) Fix(set *policy.Set) (string, error) {
	p := &d.Statement.Predicate
	if p.Decision.Fix != "" || p.Decision.Effect == policy.Allow.String() {
		return p.Decision.Fix, nil
	}
	if set.Digest() != p.Decision.PolicySet {
		return "", otherSet(fmt.Sprintf("find the fix of decision %.12s", d.ID()), p, set)
	}
	q, err := QuestionOf(p)
	if err == nil {
		err = repeatable(&q, set)
	}
	if err != nil {
		return "", err
	}
	return set.Fix(q), nil
}

// ErrOtherSet is in the error of what only the policy set that made a decision can do.
var ErrOtherSet = errors.New("another policy set made it")

func otherSet(op string, p *receipt.Predicate, set *policy.Set) error {
	return fault.New(fault.NotFound, "not_found", op, fmt.Errorf("%w: %s, this is %s", ErrOtherSet, p.Decision.PolicySet, set.Digest())).
		WithHint("give the policy directory as it was then: --policy DIR")
}

// Export returns the bundle of a recorded decision. set must be the one that made it, and must
// still make it so.
func Export(d *Decided, set *policy.Set) (*policy.Bundle, error) {
	p := &d.Statement.Predicate
	op := fmt.Sprintf("export decision %.12s", d.ID())
	if set.Digest() != p.Decision.PolicySet {
		return nil, otherSet(op, p, set)
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
		return nil, fault.New(fault.Integrity, "changed", op, fmt.Errorf("made again it is %s %s by %v", a.Effect, a.Reason, a.Policies))
	}
	return b, nil
}
