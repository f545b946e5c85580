package receipt

import (
	"encoding/json"
	"errors"
	"fmt"

	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// ActType is the predicate type of administrative acts.
const ActType = "https://palyra.dev/attestation/administrative-act/v1"

// ActVersion is the version of Act.
const ActVersion = 1

// SubjectAct is the name of an act's only subject: its predicate.
const SubjectAct = "act"

// The bounds of an Act: bytes of each text, and members of Detail.
const (
	maxActName   = 64
	maxActText   = 4096
	maxActDetail = 64
)

// Act is something that was done to this installation and is no call: policies
// were loaded, a token was made, a question was answered. It is signed and
// logged as calls are. Secrets are never in it; what is, is in the journal for
// ever.
type Act struct {
	Version   int    `json:"version"` // ActVersion
	Act       string `json:"act"`     // "policy.reload": lower-case letters, digits, '.', '_' and '-'
	Seq       uint64 `json:"seq"`     // size of the journal when the statement was made
	Time      string `json:"time"`    // RFC 3339, UTC; a clock's claim, not evidence
	BootID    string `json:"boot_id"`
	Principal string `json:"principal"` // who did it
	Subject   string `json:"subject"`   // what it was done to; "" if to the whole
	// Detail says more, by name. It is never null.
	Detail map[string]string `json:"detail"`
}

// ActStatement is an in-toto Statement v1 about an Act. Its subject is the
// predicate itself, by the digest of its canonical JSON: a statement must have
// one, and an act has no artefact.
type ActStatement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Act       `json:"predicate"`
}

// SignAct checks an act and signs the statement about it.
func SignAct(k *keyring.AttestationKey, a Act) (*Envelope, error) {
	if a.Detail == nil {
		a.Detail = map[string]string{}
	}
	if err := a.check(); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "sign administrative act", err)
	}
	p, err := canon.Marshal(a)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "sign administrative act", err)
	}
	payload, err := canon.Marshal(ActStatement{Type: statementType, Subject: actSubject(p), PredicateType: ActType, Predicate: a})
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "sign administrative act", err)
	}
	return seal(k, payload)
}

// ActEntry is SignAct for the journal.
func ActEntry(k *keyring.AttestationKey, a Act) (*Entry, error) {
	env, err := SignAct(k, a)
	if err != nil {
		return nil, err
	}
	return env.Entry(k)
}

func actSubject(predicate []byte) []Subject {
	return []Subject{{Name: SubjectAct, Digest: SubjectDigest{SHA256: canon.Sum(predicate).Hex()}}}
}

func (a *Act) check() error {
	switch {
	case a.Version != ActVersion:
		return fmt.Errorf("act version %d, want %d", a.Version, ActVersion)
	case !actName(a.Act):
		return fmt.Errorf("act %q is no name of an act", clip(a.Act))
	case a.Principal == "":
		return errors.New("no principal")
	case a.Detail == nil || len(a.Detail) > maxActDetail:
		return fmt.Errorf("detail is null or has more than %d members", maxActDetail)
	}
	for name, text := range a.Detail {
		if !actName(name) || len(text) > maxActText {
			return fmt.Errorf("detail %q is no name or its text is longer than %d bytes", clip(name), maxActText)
		}
	}
	if max(len(a.Principal), len(a.Subject), len(a.BootID)) > maxActText {
		return fmt.Errorf("a text is longer than %d bytes", maxActText)
	}
	if err := a.checkSigned(); err != nil {
		return err
	}
	return checkTime(a.Time)
}

func actName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxActName
}

func clip(s string) string { return s[:min(len(s), maxActName)] }

// ParsePayload decodes the payload of one of our statements: it returns a statement
// about a call or an administrative act. It accepts the one spelling that
// signing gives and checks no signature.
func ParsePayload(payload []byte) (*Statement, *Act, error) {
	var head struct {
		PredicateType string `json:"predicateType"`
	}
	// Only to choose whose strict parser reads it.
	if err := json.Unmarshal(payload, &head); err != nil || head.PredicateType != ActType {
		s, err := parseStatement(payload)
		return s, nil, err
	}
	a, err := parseAct(payload)
	return nil, a, err
}

func parseAct(payload []byte) (*Act, error) {
	var s ActStatement
	if err := decodeExactly(payload, &s, maxPayload); err != nil {
		return nil, err
	}
	if s.Type != statementType || s.PredicateType != ActType {
		return nil, fmt.Errorf("statement of type %q about %q is none of ours", s.Type, s.PredicateType)
	}
	if err := s.Predicate.check(); err != nil {
		return nil, err
	}
	p, err := canon.Marshal(s.Predicate)
	if err != nil {
		return nil, err
	}
	if want := actSubject(p); len(s.Subject) != 1 || s.Subject[0] != want[0] {
		return nil, errors.New("the subject is not the act")
	}
	return &s.Predicate, nil
}
