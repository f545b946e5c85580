package receipt

import (
	"errors"
	"fmt"
	"slices"

	"palyra/call"
	"palyra/crypt/passkey"
	"palyra/internal/canon"
)

// maxSigned bounds the signed yeses of an approval: policy asks for no more people.
const maxSigned = 8

// checkSigned holds each signed yes to its passkey's signature, and to the approval that it's in.
// The approval may reach less far than the yes, as where the journal didn't take its grant.
func (a *Approval) checkSigned() error {
	if len(a.Signed) > maxSigned || len(a.Signed) > 0 && a.Answer != "approved" {
		return errors.New("an approval with more signed yeses than there can be")
	}
	for i, s := range a.Signed {
		if s == nil {
			return errors.New("a signed yes is null")
		}
		st := &s.Statement
		first := slices.IndexFunc(a.Signed, func(o *call.SignedYes) bool { return o.Statement.Approver == st.Approver })
		switch {
		case st.Approval != a.ID || st.Capsule != a.Capsule || st.PolicySet != a.PolicySet:
			return errors.New("a signed yes is to another question")
		case first != i || st.Approver != a.Approver && !slices.Contains(a.Approvers, st.Approver):
			return fmt.Errorf("a signed yes of %q, who gave none, or another one", clip(st.Approver))
		case a.Grant != "" && (st.Scope != a.Scope || st.Pattern != a.Pattern):
			return errors.New("a signed yes reaches less far than the approval")
		}
		if err := passkey.VerifyYes(s); err != nil {
			return fmt.Errorf("signed yes: %w", err)
		}
	}
	return nil
}

// signedYes returns the signed yes in an act that is a person's, nil if there is none.
func (a *Act) signedYes() (*call.SignedYes, error) {
	text, ok := a.Detail["signed"]
	if !ok || a.Act != actGrant && a.Act != actConcur {
		return nil, nil
	}
	s := new(call.SignedYes)
	if err := canon.Decode([]byte(text), s, canon.Limits{Bytes: maxActText, Depth: 4}); err != nil {
		return nil, fmt.Errorf("signed yes: %w", err)
	}
	return s, nil
}

// Acts of people who say yes, and of passkeys.
const (
	actGrant  = "approval.grant"
	actConcur = "approval.concur"
	actAdd    = "passkey.add"
)

// checkSigned holds the signed yes in an act to the act.
func (a *Act) checkSigned() error {
	s, err := a.signedYes()
	if s == nil {
		return err
	}
	about := a.Subject
	if a.Act == actGrant {
		about = a.Detail["approval"]
	}
	st := &s.Statement
	if capsule := a.Detail["capsule"]; st.Approval != about || st.Approver != a.Principal || st.Scope != a.Detail["scope"] || capsule != "" && st.Capsule.String() != capsule ||
		a.Act == actGrant && patternOf(st) != a.Detail["pattern"] {
		return errors.New("the signed yes is to another question, or reaches less far")
	}
	return passkey.VerifyYes(s)
}

// members are the members of an audited journal whose passkeys are in it, by the key's digest.
type members map[string]string

// note remembers the passkey that an act adds.
func (m members) note(a *Act) {
	if a.Act == actAdd {
		m[a.Detail["key"]] = a.Detail["principal"]
	}
}

// check holds signed yeses to it: a passkey counts once the journal has it.
func (m members) check(all ...*call.SignedYes) error {
	for _, s := range all {
		if who, ok := m[canon.Sum(s.Key).String()]; !ok || who != s.Statement.Approver {
			return fmt.Errorf("a yes of %q is signed by a passkey that the journal doesn't have as theirs", clip(s.Statement.Approver))
		}
	}
	return nil
}

func patternOf(y *call.Yes) string {
	if y.Pattern.IsZero() {
		return ""
	}
	return y.Pattern.String()
}
