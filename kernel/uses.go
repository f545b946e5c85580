package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	vocabulary "palyra/call"
	"palyra/call/egress"
	"palyra/crypt/receipt"
	"palyra/crypt/scrub"
	"palyra/crypt/vault"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/egress/client"
	sealing "palyra/isolate/egress/sealed"
	"palyra/isolate/evidence"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
	"palyra/kernel/internal/ring"
)

// A call can use secrets that its program never has: palyra-egress puts them into requests, in
// place of placeholders in the program's environment. The capsule names each use, with the version
// and record of its secret. The placeholders are drawn for one call and are in its spec alone, so
// that equal calls have equal capsules. A value is opened in the last step before the program,
// sealed for palyra-egress's key and that use, and wiped.
//
// A placeholder that is seen elsewhere is a tripwire: the call ends, its outcome is "failed" with
// "placeholder_leaked", and an act of the journal says where. palyra-egress looks at what goes to
// hosts; the output, files that are left (kept.go) and later proposals are looked at here. A use
// may let files keep the placeholder.

// blankPlaceholders returns variables as long as those with the placeholders of uses.
func blankPlaceholders(uses []vocabulary.EgressSecret) []string {
	return variables(drawPlaceholders(uses))
}

// placeholder is one use of a call's, with what the program has in place of the secret.
type placeholder struct {
	egress.Use
	vocabulary.EgressSecret
	text string
}

// drawPlaceholders draws one placeholder for each variable.
func drawPlaceholders(uses []vocabulary.EgressSecret) []placeholder {
	var all []placeholder
	for _, x := range uses {
		u, err := egress.ParseUse(x.Use)
		if err != nil {
			panic(fmt.Sprintf("kernel: internal error: the sealed use of a secret: %v", err))
		}
		p := placeholder{Use: u, EgressSecret: x}
		if i := slices.IndexFunc(all, func(o placeholder) bool { return o.Name == u.Name }); i >= 0 {
			p.text = all[i].text
		} else {
			p.text = egress.NewPlaceholder(u.Form)
		}
		all = append(all, p)
	}
	return all
}

// variables returns "NAME=PLACEHOLDER", each once.
func variables(all []placeholder) (env []string) {
	for _, p := range all {
		if e := p.Name + "=" + p.text; !slices.Contains(env, e) {
			env = append(env, e)
		}
	}
	return env
}

// withPlaceholders returns env with the variables of the call's placeholders, which the first call
// draws.
func (s *sealed) withPlaceholders(env []string) []string {
	if len(s.capsule.EgressSecrets) == 0 {
		return env
	}
	if s.placeholders == nil {
		s.placeholders = drawPlaceholders(s.capsule.EgressSecrets)
	}
	env = append(slices.Clip(env), variables(s.placeholders)...)
	slices.SortFunc(env, func(a, b string) int { return strings.Compare(capsule.Name(a), capsule.Name(b)) })
	return env
}

// orderUses are the uses as palyra-egress is told them.
func (s *sealed) orderUses() (uses []client.Use) {
	for _, p := range s.placeholders {
		uses = append(uses, client.Use{Use: p.EgressSecret.Use, Placeholder: p.text})
	}
	return uses
}

// giveSecrets opens the values of the call's uses and hands them to palyra-egress, each sealed for
// its use in this call.
func (c *call) giveSecrets(ctx context.Context, session *client.Session) error {
	if len(c.s.placeholders) == 0 {
		return nil
	}
	const op = "give palyra-egress its secrets"
	var boxes [][]byte
	if err := c.k.withVault(ctx, op, func(v *vault.Vault) error {
		for _, p := range c.s.placeholders {
			ref, err := vault.ParseRef(p.Ref)
			if err != nil {
				return err
			}
			value, err := v.GetRecord(ctx, ref, p.Version, p.Record)
			if err != nil {
				return err
			}
			var box []byte
			if err = c.k.cfg.Scrub.Add(budget.Owner{Name: c.who.Principal.ID, Reserve: c.who.Reserve}, ref.Key(), value.Bytes()); err == nil {
				box, err = sealing.Seal(session.Key(), c.s.id, client.Use{Use: p.EgressSecret.Use, Placeholder: p.text}, value.Bytes())
			}
			value.Wipe()
			if err != nil {
				return fault.New(orKind(err, fault.Refused), orReason(err, "invalid_input"), fmt.Sprintf("use secret %q", ref), err).WithHint(fault.HintOf(err))
			}
			boxes = append(boxes, box)
		}
		return nil
	}); err != nil {
		return err
	}
	return session.Give(ctx, boxes)
}

func orKind(err error, kind fault.Kind) fault.Kind {
	if fault.ReasonOf(err) != "" {
		return fault.KindOf(err)
	}
	return kind
}

func orReason(err error, reason string) string {
	if r := fault.ReasonOf(err); r != "" {
		return r
	}
	return reason
}

// authority is a file with the authority that palyra-egress made for the call.
func authority(session *client.Session) (*os.File, error) {
	f, err := pin.Bytes("palyra-authority", []byte(session.Authority()))
	if err != nil {
		return nil, sealFault("show the authority of a call", err)
	}
	return f, nil
}

// leakCall is where a placeholder is seen in a later proposal.
const leakCall = "call"

// tripwire finds the placeholders of one call where none belongs. A nil tripwire finds none.
type tripwire struct {
	marks *scrub.Registry
	end   context.CancelFunc // of the run

	mu    sync.Mutex
	leaks []evidence.Leak // guarded by mu; bounded by evidence.MaxLeaks
}

// markPrefix begins the name under which a placeholder is removed from text.
const markPrefix = "placeholder of "

// setTripwire has the call's placeholders looked for, until the call is over. The first that is
// seen ends the run.
func (c *call) setTripwire(ctx context.Context, end context.CancelFunc) error {
	if len(c.s.placeholders) == 0 {
		return nil
	}
	t := &tripwire{marks: scrub.NewOwn(), end: end}
	for _, p := range c.s.placeholders {
		if err := t.marks.Add(budget.Owner{}, markPrefix+p.Name, []byte(p.text)); err != nil {
			return err
		}
	}
	c.trip = t
	return c.remember(ctx)
}

// stream returns a stream that removes placeholders from a part of the output.
func (t *tripwire) stream(where string) *scrub.Stream {
	if t == nil {
		return nil
	}
	s := t.marks.Of("").Stream()
	s.Tell(func(mark string) { t.saw(evidence.Leak{Name: strings.TrimPrefix(mark, markPrefix), Where: where}) })
	return s
}

// name returns a name that a program chose without placeholders.
func (t *tripwire) name(name string) string {
	if t == nil {
		return name
	}
	return unnamed(t.marks.Of(""), name)
}

// look is name for one that mustn't have a placeholder.
func (t *tripwire) look(where, name string) string {
	if t == nil {
		return name
	}
	s := t.stream(where)
	s.Next([]byte(name))
	s.End()
	return t.name(name)
}

// saw notes leaks, each once, and ends the run.
func (t *tripwire) saw(leaks ...evidence.Leak) {
	if t == nil || len(leaks) == 0 {
		return
	}
	t.mu.Lock()
	for _, l := range leaks {
		if len(t.leaks) < evidence.MaxLeaks && !slices.Contains(t.leaks, l) {
			t.leaks = append(t.leaks, l)
		}
	}
	t.mu.Unlock()
	t.end()
}

func (t *tripwire) seen() []evidence.Leak {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.leaks)
}

// leaked returns the outcome of a call whose placeholder was seen, and outcome and cause for
// another. The act is durable when it returns, and a version that is to be revoked has expired.
func (c *call) leaked(ctx context.Context, outcome string, cause error) (string, error) {
	leaks := c.trip.seen()
	if len(leaks) == 0 {
		return outcome, cause
	}
	ctx = context.WithoutCancel(ctx)
	if r := c.out.Result; r != nil && r.Evidence != nil {
		r.Evidence.Egress.Leaks = leaks
	}
	var errs error
	var told []string
	for _, l := range leaks {
		if slices.Contains(told, l.Name) {
			continue
		}
		told = append(told, l.Name)
		errs = errors.Join(errs, c.k.tell(ctx, c.trapOf(l.Name), c.who.Principal.ID, l))
	}
	return receipt.Failed, leakFault("run", leaks[0], errs)
}

func leakFault(op string, l evidence.Leak, more error) error {
	hint := "the secret itself went nowhere else; only the requests that a use names may have what stands in the variable"
	if l.Where == evidence.LeakFile {
		hint += `, and files that the call leaves if the use ends in "keep"`
	}
	return fault.New(fault.Refused, "placeholder_leaked", op, errors.Join(fmt.Errorf("the placeholder of %s was seen in %s", l.Name, strings.TrimPrefix(l.String(), l.Name+" in ")), more)).
		WithHint(hint)
}

// trapOf is the trap of one of the call's variables.
func (c *call) trapOf(name string) trap {
	for _, p := range c.s.placeholders {
		if p.Name == name {
			return trap{call: c.out.CallID, run: c.run, placeholder: p}
		}
	}
	return trap{call: c.out.CallID, run: c.run, placeholder: placeholder{Use: egress.Use{Name: name}}} // palyra-egress names another
}

// tell records a leak, and has the version of the secret expire if the use says so.
func (k *Kernel) tell(ctx context.Context, t trap, principal string, l evidence.Leak) error {
	a := Act{Act: ActTripwire, Principal: principal, Subject: t.Ref, Detail: map[string]string{"call": t.call, "variable": l.Name, "where": l.Where}}
	if t.run != "" {
		a.Detail["run"] = t.run
	}
	if l.Host != "" {
		a.Detail["host"] = l.Host
		if l.Port != 0 {
			a.Detail["host"] += ":" + strconv.Itoa(int(l.Port))
		}
	}
	if l.Path != "" {
		a.Detail["path"] = l.Path
	}
	var err error
	if t.Revoke {
		a.Detail["version"] = strconv.FormatUint(t.Version, 10)
		a.Detail["revoked"] = "true"
		if err = k.revoke(ctx, t); err != nil {
			a.Detail["revoked"] = "false"
		}
	}
	_, rerr := k.record(ctx, a)
	return errors.Join(err, rerr)
}

// ActTripwire is the act of a placeholder that was seen where it doesn't belong. Its subject is the
// secret.
const ActTripwire = "secret.tripwire"

func (k *Kernel) revoke(ctx context.Context, t trap) error {
	const op = "revoke secret"
	ref, err := vault.ParseRef(t.Ref)
	if err != nil {
		return err
	}
	return k.withVault(ctx, op, func(v *vault.Vault) error { return v.Expire(ctx, ref, t.Version, t.Record) })
}

// trap is a placeholder that a call was given.
type trap struct {
	call, run string
	placeholder
}

// A proposal that has the placeholder of an earlier call says that it was passed on. So the newest
// are remembered, by their digests, in a file of the state directory that all its processes share:
// they are no secrets, and random enough that a digest says nothing of them.

// remembered is what the file has of one.
type remembered struct {
	Call    string       `json:"call"`
	Run     string       `json:"run,omitempty"`
	Name    string       `json:"name"`
	Ref     string       `json:"ref"`
	Version uint64       `json:"version"`
	Record  canon.Digest `json:"record"`
	Revoke  bool         `json:"revoke,omitempty"`
}

// remember keeps the call's placeholders for the calls that follow.
func (c *call) remember(ctx context.Context) error {
	var kept []string
	for _, p := range c.s.placeholders {
		if slices.Contains(kept, p.text) {
			continue
		}
		kept = append(kept, p.text)
		b, err := canon.Marshal(remembered{c.out.CallID, c.run, p.Name, p.Ref, p.Version, p.Record, p.Revoke})
		if err == nil {
			err = c.k.state.placeholders.Add(ctx, drawnKey(p.text[len(p.text)-egress.Drawn:]), b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func drawnKey(drawn string) ring.Key { return sha256.Sum256([]byte(drawn)) }

// findTrap returns the trap of the first placeholder that texts have, in either case, and what it's
// told by; nil if they have none.
func (s *state) findTrap(ctx context.Context, texts []string) (*trap, ring.Key, error) {
	keys := func(yield func(ring.Key) bool) {
		for _, text := range texts {
			for drawn := range egress.DrawnIn(text) {
				if !yield(drawnKey(drawn)) {
					return
				}
			}
		}
	}
	key, b, err := s.placeholders.Find(ctx, keys)
	if err != nil || b == nil {
		return nil, key, err
	}
	var r remembered
	if err := canon.Decode(b, &r, canon.Limits{Bytes: ring.MaxRecord}); err != nil {
		return nil, key, fault.New(fault.BadState, "state_io", "read a placeholder of an earlier call", err)
	}
	return &trap{r.Call, r.Run, placeholder{Use: egress.Use{Name: r.Name, Ref: r.Ref, Revoke: r.Revoke}, EgressSecret: vocabulary.EgressSecret{Version: r.Version, Record: r.Record}}}, key, nil
}

// tripped are the principals whose proposals of a placeholder the journal has from this process.
// Further ones are refused and tell nothing new: whoever has a placeholder can propose it for ever.
type tripped struct {
	mu sync.Mutex
	by map[ring.Key][]string // guarded by mu
}

const (
	maxTold       = ring.Slots // placeholders
	maxPrincipals = 16         // of one
)

// first reports whether a principal's proposal with a placeholder is the first.
func (t *tripped) first(key ring.Key, principal string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if by := t.by[key]; slices.Contains(by, principal) || len(by) == maxPrincipals {
		return false
	}
	if t.by == nil || len(t.by) == maxTold { // so many are few processes' lot
		t.by = make(map[ring.Key][]string)
	}
	t.by[key] = append(t.by[key], principal)
	return true
}

// undo undoes first.
func (t *tripped) undo(key ring.Key, principal string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if by, ok := t.by[key]; ok {
		t.by[key] = slices.DeleteFunc(by, func(p string) bool { return p == principal })
	}
}

// checkTraps refuses a proposal with the placeholder of another call. The journal has the first of
// a principal.
func (k *Kernel) checkTraps(ctx context.Context, who *Caller, p *Proposal) error {
	if k.state == nil {
		return nil
	}
	t, key, err := k.state.findTrap(ctx, slices.Concat([]string{string(p.Input)}, p.Argv, p.Env))
	if t == nil || err != nil {
		return err
	}
	l := evidence.Leak{Name: t.Name, Where: leakCall}
	if principal := who.Principal.ID; k.tripped.first(key, principal) {
		if err = k.tell(ctx, *t, principal, l); err != nil {
			k.tripped.undo(key, principal)
		}
	}
	return leakFault("check call", l, err)
}
