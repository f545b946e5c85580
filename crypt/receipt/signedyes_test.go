package receipt

import (
	"encoding/json"
	"strings"
	"testing"

	"palyra/call"
	"palyra/crypt/passkey"
	"palyra/crypt/passkey/passkeytest"
	"palyra/internal/canon"
)

var console = passkey.Site{RP: "localhost", Origin: "http://localhost:7142"}

// signedYes returns a yes of uid:1 to the capsule of predicate(), changed, and then signed.
func signedYes(t *testing.T, change func(*call.Yes)) *call.SignedYes {
	t.Helper()
	y := call.Yes{Type: call.YesType, Origin: console.Origin, Approval: "apr_1", Version: 1, Capsule: predicate().Capsule.Digest, PolicySet: canon.Sum([]byte("set")),
		Approver: "uid:1", Scope: "once"}
	change(&y)
	c, err := y.Challenge()
	if err != nil {
		t.Fatal(err)
	}
	k := passkeytest.New(t, console)
	a := k.Sign(c)
	return &call.SignedYes{Statement: y, Passkey: "psk_1", Credential: a.ID, Key: k.SPKI(), Data: a.Data, Client: a.Client, Signature: a.Signature}
}

func same(*call.Yes) {}

func approvedBy(s ...*call.SignedYes) Predicate {
	p := predicate()
	p.Decision.Effect = "needs_approval"
	p.Approval = &Approval{ID: "apr_1", Answer: "approved", Approver: "uid:1", Surface: "console", Scope: "once", Capsule: p.Capsule.Digest,
		PolicySet: canon.Sum([]byte("set")), Signed: s}
	return p
}

// TestSignedYes: a receipt says who signed a yes, and whoever verifies it verifies that signature.
func TestSignedYes(t *testing.T) {
	w := newWorld(t)
	p := approvedBy(signedYes(t, same))
	i, e := w.log(t, NewStatement(p, canon.Digest{}, canon.Digest{}))
	v, err := Verify(w.receipt(t, i, e), w.t)
	if err != nil {
		t.Fatal(err)
	}
	got := v.Statement.Predicate.Approval.Signed
	if len(got) != 1 || got[0].Statement != p.Approval.Signed[0].Statement {
		t.Fatalf("%+v", got)
	}
	if err := passkey.VerifyYes(got[0]); err != nil {
		t.Error(err)
	}
	p.Approval.Signed[0].Client = append([]byte(" "), p.Approval.Signed[0].Client...)
	if _, err := Sign(w.ring.Attestation(), NewStatement(p, canon.Digest{}, canon.Digest{})); err == nil {
		t.Error("a statement with a signature over other client data is signed")
	}
}

// TestSignedYesAudit: the journal must have had the passkey as the approver's before.
func TestSignedYesAudit(t *testing.T) {
	yes := signedYes(t, same)
	grant := act()
	grant.Act, grant.Subject, grant.Principal = "approval.concur", "apr_1", "uid:1"
	b, err := json.Marshal(yes)
	if err != nil {
		t.Fatal(err)
	}
	grant.Detail = map[string]string{"scope": "once", "signed": string(b)}
	for what, x := range map[string]struct {
		principal string
		key       []byte
		why       string
	}{
		"theirs":    {"uid:1", yes.Key, ""},
		"another's": {"uid:2", yes.Key, "as theirs"},
		"another":   {"uid:1", signedYes(t, same).Key, "as theirs"},
	} {
		for _, inAct := range []bool{false, true} {
			w := newWorld(t)
			add := act()
			add.Act, add.Subject, add.Detail = "passkey.add", "psk_1", map[string]string{"principal": x.principal, "key": canon.Sum(x.key).String()}
			w.logAct(t, add)
			if inAct {
				w.logAct(t, grant)
			} else {
				w.intent(t, approvedBy(yes))
			}
			if _, err := Audit(w.journalDir(), w.t); (err != nil) != (x.why != "") || err != nil && !strings.Contains(err.Error(), x.why) {
				t.Errorf("%s: %v, want an error with %q", what, err, x.why)
			}
		}
	}
}

// TestSignedYesRefused: neither a receipt nor an act is made of, or verifies with, a signed yes to
// something else.
func TestSignedYesRefused(t *testing.T) {
	other := canon.Sum([]byte("other"))
	for what, x := range map[string]struct {
		p   Predicate
		why string
	}{
		"another request":  {approvedBy(signedYes(t, func(y *call.Yes) { y.Approval = "apr_2" })), "another question"},
		"another capsule":  {approvedBy(signedYes(t, func(y *call.Yes) { y.Capsule = other })), "another question"},
		"another set":      {approvedBy(signedYes(t, func(y *call.Yes) { y.PolicySet = other })), "another question"},
		"another approver": {approvedBy(signedYes(t, func(y *call.Yes) { y.Approver = "uid:2" })), "who gave none"},
		"one twice":        {approvedBy(signedYes(t, same), signedYes(t, same)), "or another one"},
		"null":             {approvedBy(nil), "is null"},
		"no yes": {func() Predicate {
			p := approvedBy(signedYes(t, same))
			p.Approval.Answer = "denied"
			return p
		}(), "than there can be"},
		"a wider grant": {func() Predicate {
			p := approvedBy(signedYes(t, same))
			p.Approval.Scope, p.Approval.Grant = "session", "grt_1"
			return p
		}(), "less far"},
		"an older signature": {func() Predicate {
			s := signedYes(t, same)
			s.Signature = signedYes(t, same).Signature
			return approvedBy(s)
		}(), "isn't the passkey's"},
	} {
		if err := x.p.checkApproval(); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: %v, want an error with %q", what, err, x.why)
		}
	}
}

// TestSignedYesNarrower: where the journal didn't take the grant, the yes is to one call.
func TestSignedYesNarrower(t *testing.T) {
	p := approvedBy(signedYes(t, func(y *call.Yes) { y.Scope = "session" }))
	if err := p.checkApproval(); err != nil {
		t.Error(err)
	}
}

func TestSignedAct(t *testing.T) {
	grant := func(s *call.SignedYes) Act {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		a := act()
		a.Act, a.Subject, a.Principal = "approval.grant", "grt_1", "uid:1"
		a.Detail = map[string]string{"approval": "apr_1", "scope": "session", "capsule": predicate().Capsule.Digest.String(), "signed": string(b)}
		return a
	}
	session := func(y *call.Yes) { y.Scope = "session" }
	good := grant(signedYes(t, session))
	concur := grant(signedYes(t, session))
	concur.Act, concur.Subject = "approval.concur", "apr_1"
	for _, a := range []Act{good, concur} {
		if err := a.check(); err != nil {
			t.Error(err)
		}
	}
	for what, x := range map[string]struct {
		a   Act
		why string
	}{
		"another request": {grant(signedYes(t, func(y *call.Yes) { y.Scope, y.Approval = "session", "apr_2" })), "another question"},
		"once":            {grant(signedYes(t, same)), "another question"},
		"a pattern":       {grant(signedYes(t, func(y *call.Yes) { y.Scope, y.Pattern = "session", canon.Sum(nil) })), "another question"},
		"another's":       {grant(signedYes(t, func(y *call.Yes) { y.Scope, y.Approver = "session", "uid:2" })), "another question"},
		"no JSON":         {func() Act { a := grant(signedYes(t, session)); a.Detail["signed"] += " x"; return a }(), "signed yes"},
		"another signature": {func() Act {
			s := signedYes(t, session)
			s.Signature = signedYes(t, session).Signature
			return grant(s)
		}(), "isn't the passkey's"},
	} {
		if err := x.a.check(); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: %v, want an error with %q", what, err, x.why)
		}
	}
}
