package passkey_test

import (
	"testing"

	"palyra/call"
	"palyra/crypt/passkey"
	"palyra/crypt/passkey/passkeytest"
	"palyra/internal/canon"
)

func yesTo(k *passkeytest.Key, st call.Yes) *call.SignedYes {
	c, err := st.Challenge()
	if err != nil {
		panic(err)
	}
	a := k.Sign(c)
	return &call.SignedYes{Statement: st, Passkey: "psk_1", Credential: a.ID, Key: k.SPKI(), Data: a.Data, Client: a.Client, Signature: a.Signature}
}

// TestYes: a signed yes holds as it was signed. With any member of its statement changed it doesn't.
func TestYes(t *testing.T) {
	st := call.Yes{Type: call.YesType, Origin: site.Origin, Approval: "apr_1", Version: 1, Capsule: canon.Sum([]byte("capsule")), PolicySet: canon.Sum([]byte("set")),
		Approver: "uid:1000", Scope: "timed", For: 600e9, Uses: 3, Comment: canon.Sum([]byte("fine"))}
	k := passkeytest.New(t, site)
	k.Count = 7
	signed := yesTo(k, st)
	if err := passkey.VerifyYes(signed); err != nil {
		t.Fatal(err)
	}
	other := canon.Sum([]byte("other"))
	for what, x := range map[string]struct {
		change func(*call.SignedYes)
		why    string
	}{
		"another type":          {func(s *call.SignedYes) { s.Statement.Type = "palyra/approval-yes/v2" }, "of type"},
		"another origin":        {func(s *call.SignedYes) { s.Statement.Origin = "http://localhost:7143" }, "of origin"},
		"an address":            {func(s *call.SignedYes) { s.Statement.Origin = "http://127.0.0.1:7142" }, "for names"},
		"another request":       {func(s *call.SignedYes) { s.Statement.Approval = "apr_2" }, "another challenge"},
		"another version":       {func(s *call.SignedYes) { s.Statement.Version = 2 }, "another challenge"},
		"another capsule":       {func(s *call.SignedYes) { s.Statement.Capsule = other }, "another challenge"},
		"another set":           {func(s *call.SignedYes) { s.Statement.PolicySet = other }, "another challenge"},
		"another approver":      {func(s *call.SignedYes) { s.Statement.Approver = "uid:1001" }, "another challenge"},
		"another scope":         {func(s *call.SignedYes) { s.Statement.Scope = "session" }, "another challenge"},
		"a longer time":         {func(s *call.SignedYes) { s.Statement.For++ }, "another challenge"},
		"more uses":             {func(s *call.SignedYes) { s.Statement.Uses = 0 }, "another challenge"},
		"a pattern":             {func(s *call.SignedYes) { s.Statement.Pattern = other }, "another challenge"},
		"another comment":       {func(s *call.SignedYes) { s.Statement.Comment = canon.Digest{} }, "another challenge"},
		"no passkey":            {func(s *call.SignedYes) { s.Passkey = "" }, "names its passkey"},
		"no credential":         {func(s *call.SignedYes) { s.Credential = nil }, "names its passkey"},
		"another key":           {func(s *call.SignedYes) { s.Key = passkeytest.New(t, site).SPKI() }, "isn't the passkey's"},
		"another signature":     {func(s *call.SignedYes) { s.Signature = yesTo(k, st).Signature }, "isn't the passkey's"}, // of a higher count
		"a person not verified": {func(s *call.SignedYes) { *s = *yesTo(flagged(t, 1<<0), st) }, "didn't verify"},
		"no person":             {func(s *call.SignedYes) { *s = *yesTo(flagged(t, 1<<2), st) }, "no person was there"},
		"a page of another port": {func(s *call.SignedYes) {
			*s = *yesTo(passkeytest.New(t, passkey.Site{RP: "localhost", Origin: "http://localhost:7143"}), st)
		}, "of origin"},
		"another host": {func(s *call.SignedYes) {
			*s = *yesTo(passkeytest.New(t, passkey.Site{RP: "palyra.example", Origin: site.Origin}), st)
		}, "another host"},
	} {
		s := *signed
		x.change(&s)
		refused(t, what, passkey.VerifyYes(&s), x.why)
	}
}

func flagged(t *testing.T, flags byte) *passkeytest.Key {
	k := passkeytest.New(t, site)
	k.Flags = flags
	return k
}

// TestYesIsSpelled: the spelling is part of what is signed; another one would void what is kept.
func TestYesIsSpelled(t *testing.T) {
	capsule, set := canon.Sum([]byte("capsule")), canon.Sum([]byte("set"))
	st := call.Yes{Type: call.YesType, Origin: "http://localhost:7142", Approval: "apr_1", Version: 1, Capsule: capsule, PolicySet: set, Approver: "uid:1000", Scope: "once"}
	got, err := canon.Marshal(&st)
	want := `{"approval":"apr_1","approver":"uid:1000","capsule":"` + capsule.String() + `","origin":"http://localhost:7142","policy_set":"` + set.String() +
		`","scope":"once","type":"palyra/approval-yes/v1","version":1}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
}
