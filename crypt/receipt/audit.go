package receipt

import (
	"bytes"
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
// an earlier one, of the same call, run and capsule, which has no other result. It follows the
// rotations in the journal from the oldest key of t, which may be older than they are, and holds
// them to those that t knows. An
// error is fault.Integrity and names the first entry that is wrong. Orphans and
// bad outcomes are no errors.
func Audit(dir string, t *Trust) (*AuditReport, error) {
	jr, err := journal.Check(dir, t.VKey())
	if err != nil {
		return nil, err
	}
	r, err := journal.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	first := t.keys[0]
	first.to = noEnd
	a := &auditor{t: &Trust{keys: []term{first}, log: t.log}, known: t, intents: make(map[uint64]*intent),
		rep: &AuditReport{Journal: jr, Outcomes: make(map[string]int), Orphans: []Orphan{}, Keys: []KeyTerm{}}}
	// Entries that a running writer appended since the check are for next time.
	for rec, err := range r.Entries(0, jr.Size) {
		if err != nil {
			return nil, err
		}
		if err := a.entry(&rec); err != nil {
			return nil, broken("audit", fmt.Errorf("entry %d: %w", rec.Index, err))
		}
	}
	if err := a.keys(jr.Size); err != nil {
		return nil, broken("audit", err)
	}
	for _, i := range a.order {
		if in := a.intents[i]; !in.result {
			a.rep.Orphans = append(a.rep.Orphans, Orphan{Index: i, CallID: in.call})
		}
	}
	return a.rep, nil
}

type auditor struct {
	t       *Trust // as the journal has it so far
	known   *Trust // the verifier's
	pending []introduction
	rep     *AuditReport
	intents map[uint64]*intent
	order   []uint64
}

func (a *auditor) entry(rec *journal.Record) error {
	if rec.Erased {
		return nil // counted by journal.Check; the leaf is all that is left
	}
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
		if _, err = a.t.begin(act, rec.Index, logged.spki, a.pending); err == nil {
			a.pending = nil
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
		return nil
	}
	return a.pair(s, rec.Index)
}

// keys compares the keys of a journal of this size with those that the verifier knew.
func (a *auditor) keys(size uint64) error {
	for i := range a.t.keys {
		k := &a.t.keys[i]
		known := a.known.find(k.spki)
		if known != nil && !known.pending && known.from != k.from {
			return fmt.Errorf("key %s is in force from entry %d on, and trusted from %d on", k.hint, k.from, known.from)
		}
		a.rep.Keys = append(a.rep.Keys, KeyTerm{Hint: k.hint, From: k.from, Trusted: known != nil})
	}
	for i := range a.known.keys {
		k := &a.known.keys[i]
		introduced := slices.ContainsFunc(a.pending, func(in introduction) bool { return bytes.Equal(in.spki, k.spki) })
		if a.t.find(k.spki) == nil && !introduced && k.from < size {
			return fmt.Errorf("trusted key %s isn't introduced by the journal", k.hint)
		}
	}
	return nil
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
	case !ok && a.rep.Journal.Erased > 0 && *p.Intent < index:
		return nil // its intent may be among the erased
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
