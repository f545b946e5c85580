package receipt

import (
	"errors"
	"fmt"
	"slices"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
)

// AuditReport is what Audit found in a sound journal.
type AuditReport struct {
	Journal  *journal.Report `json:"journal"`
	Intents  int             `json:"intents"`
	Results  int             `json:"results"`
	Outcomes map[string]int  `json:"outcomes"` // results by outcome
	Acts     int             `json:"acts"`     // administrative acts
	Orphans  []Orphan        `json:"orphans"`  // intents without a result, oldest first
	Keys     []KeyTerm       `json:"keys"`     // attestation keys, oldest first
	LogKeys  []KeyTerm       `json:"log_keys"` // the log's, likewise
}

// KeyTerm is a key of the journal. Introduced keys that never began aren't among them.
type KeyTerm struct {
	Hint    string `json:"hint"`
	From    uint64 `json:"from"`    // its first entry
	Trusted bool   `json:"trusted"` // known to the verifier before: not from the journal alone
}

// Orphan is an intent without a result: the call is running now, or what became
// of it is not known.
type Orphan struct {
	Index  uint64 `json:"index"`
	CallID string `json:"call_id"`
}

// intent is what Audit remembers of an intent.
type intent struct {
	call    string
	run     string
	capsule string
	result  bool
}

// Audit checks a whole journal and everything in it: the log itself
// (journal.Check), that every leaf is the record of the envelope kept beside
// it, every signature, every statement, and that results belong to intents: to
// an earlier one, of the same call, run and capsule, which has no other result.
// A signed yes is of a passkey that the journal has as its approver's. Audit
// follows the rotations in the journal from the oldest key of t, which may be
// older than they are, and holds them to those that t knows. An error is
// fault.Integrity and names the first entry that is wrong. Orphans and bad
// outcomes are no errors.
func Audit(dir string, t *Trust) (*AuditReport, error) {
	jr, keys, err := checkLog(dir, t)
	if err != nil {
		return nil, err
	}
	r, err := journal.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	a := &auditor{r: r, t: t.first(), known: t, intents: make(map[uint64]*intent), members: make(members),
		rep: &AuditReport{Journal: jr, Outcomes: make(map[string]int), Orphans: []Orphan{}}}
	// Entries that a running writer appended since the check are for next time.
	for rec, err := range r.Entries(0, jr.Size) {
		if err != nil {
			return nil, err
		}
		if err := a.entry(&rec); err != nil {
			return nil, broken("audit", fmt.Errorf("entry %d: %w", rec.Index, err))
		}
	}
	if err := a.keys(jr.Size, keys); err != nil {
		return nil, broken("audit", err)
	}
	for _, i := range a.order {
		if in := a.intents[i]; !in.result {
			a.rep.Orphans = append(a.rep.Orphans, Orphan{Index: i, CallID: in.call})
		}
	}
	return a.rep, nil
}

// CheckLog is journal.Check for the log of t. It follows the rotations in the journal, which t may
// be older than.
func CheckLog(dir string, t *Trust) (*journal.Report, error) {
	rep, _, err := checkLog(dir, t)
	return rep, err
}

// checkLog returns the keys, too, that it believed.
func checkLog(dir string, t *Trust) (*journal.Report, journal.Keys, error) {
	known := &Trust{logs: slices.DeleteFunc(slices.Clone(t.logs), func(k term) bool { return k.pending })}
	keys := known.LogKeys()
	r, err := journal.OpenReader(dir)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	if note := r.Checkpoint(); note != nil {
		if _, _, err := keys.Open(note); errors.Is(err, journal.ErrSigner) {
			if found, err := rotationsIn(r, t.first()); err == nil {
				keys = found.LogKeys()
			} // otherwise the checkpoint is what is wrong
		}
	}
	rep, err := journal.Check(dir, keys)
	return rep, keys, err
}

// rotationsIn follows the rotations in a journal that wasn't checked. It verifies the checkpoints
// by which the log's keys introduce each other, and no statement.
func rotationsIn(r *journal.Reader, t *Trust) (*Trust, error) {
	var pending []introduction
	for rec, err := range r.Entries(0, r.Size()) {
		if err != nil {
			return nil, err
		}
		a, err := rotationIn(&rec)
		if err != nil {
			return nil, err
		}
		if a == nil {
			continue
		}
		spki, err := SignedWith(rec.Leaf)
		if err != nil {
			return nil, err
		}
		var in introduction
		if a.Act == ActIntroduce {
			in, err = t.introduce(a, rec.Index, spki)
			pending = append(pending, in)
		} else {
			in, err = t.begin(a, rec.Index, spki, pending)
			pending = without(pending, in.subject)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

// first returns the trust in the first keys of t alone, for every entry.
func (t *Trust) first() *Trust {
	key, log := t.keys[0], t.logs[0]
	key.to, log.to = noEnd, noEnd
	return &Trust{keys: []term{key}, logs: []term{log}}
}

type auditor struct {
	r       *journal.Reader
	t       *Trust // as the journal has it so far
	known   *Trust // the verifier's
	pending []introduction
	rep     *AuditReport
	intents map[uint64]*intent
	order   []uint64
	members members
}

func (a *auditor) entry(rec *journal.Record) error {
	logged, err := entryOf(rec)
	if err != nil {
		return err
	}
	e := logged.envelope
	if !keyring.VerifyStatement(logged.spki, e.Payload, e.Signatures[0].Sig) {
		return errors.New("the statement's signature does not verify")
	}
	s, act, err := ParsePayload(e.Payload)
	if err != nil {
		return err
	}
	if act != nil && act.Act == ActBegin {
		var in introduction
		if in, err = a.t.begin(act, rec.Index, logged.spki, a.pending); err == nil {
			a.pending = without(a.pending, in.subject)
			err = a.handover(&in)
		}
	} else if _, err = a.t.at(logged.spki, rec.Index); err == nil && act != nil && act.Act == ActIntroduce {
		var in introduction
		if in, err = a.t.introduce(act, rec.Index, logged.spki); err == nil {
			a.pending = append(a.pending, in)
		}
	}
	if err != nil {
		return err
	}
	var seq uint64
	if act != nil {
		seq = act.Seq
	} else {
		seq = s.Predicate.Seq
	}
	if seq > rec.Index {
		return fmt.Errorf("seq %d is beyond the entry's own index", seq)
	}
	if act != nil {
		a.rep.Acts++
		a.members.note(act)
		yes, err := act.signedYes()
		if yes != nil {
			err = a.members.check(yes)
		}
		return err
	}
	if yes := s.Predicate.Approval; yes != nil {
		if err := a.members.check(yes.Signed...); err != nil {
			return err
		}
	}
	return a.pair(s, rec.Index)
}

// handover checks that the last checkpoint of a log's key, by which it gives way to another, is of
// this log.
func (a *auditor) handover(in *introduction) error {
	if in.log == nil {
		return nil
	}
	root, err := a.r.RootAt(in.last.Size)
	if err == nil && root != in.last.Root {
		err = fmt.Errorf("the key before signed another root of size %d", in.last.Size)
	}
	return err
}

// keys compares the keys of a journal of this size with those that the verifier knew, and with
// those of the log that its checkpoints were held to.
func (a *auditor) keys(size uint64, held journal.Keys) (err error) {
	if a.rep.Keys, err = a.compare(a.t.keys, a.known.keys, size); err != nil {
		return err
	}
	if a.rep.LogKeys, err = a.compare(a.t.logs, a.known.logs, size); err != nil {
		return err
	}
	for _, k := range a.t.LogKeys() {
		if !slices.ContainsFunc(held, func(h journal.Key) bool { return h.VKey == k.VKey && (h.To == k.To || k.To == 0) }) {
			return errors.New("the checkpoints aren't by the key of the log that the journal has in force")
		}
	}
	return nil
}

func (a *auditor) compare(found, trusted []term, size uint64) ([]KeyTerm, error) {
	terms := []KeyTerm{}
	for i := range found {
		k := &found[i]
		known := byHint(trusted, k.hint)
		if known != nil && !known.pending && known.from != k.from {
			return nil, fmt.Errorf("key %s is in force from entry %d on, and trusted from %d on", k.hint, k.from, known.from)
		}
		terms = append(terms, KeyTerm{Hint: k.hint, From: k.from, Trusted: known != nil})
	}
	for i := range trusted {
		k := &trusted[i]
		introduced := slices.ContainsFunc(a.pending, func(in introduction) bool { return in.term().hint == k.hint })
		if byHint(found, k.hint) == nil && !introduced && k.from < size {
			return nil, fmt.Errorf("trusted key %s isn't introduced by the journal", k.hint)
		}
	}
	return terms, nil
}

// pair keeps the books of intents and results.
func (a *auditor) pair(s *Statement, index uint64) error {
	p := &s.Predicate
	if s.IsIntent() {
		a.rep.Intents++
		a.intents[index] = &intent{call: p.CallID, run: p.RunID, capsule: p.Capsule.Digest.String()}
		a.order = append(a.order, index)
		return nil
	}
	a.rep.Results++
	a.rep.Outcomes[p.Outcome]++
	if p.Intent == nil {
		return nil
	}
	in, ok := a.intents[*p.Intent]
	switch {
	case !ok:
		return fmt.Errorf("result for entry %d, which is no earlier intent", *p.Intent)
	case in.result:
		return fmt.Errorf("second result for intent %d", *p.Intent)
	case in.call != p.CallID || in.run != p.RunID || in.capsule != p.Capsule.Digest.String():
		return fmt.Errorf("result for intent %d, which is of another call, run or capsule", *p.Intent)
	}
	in.result = true
	return nil
}
