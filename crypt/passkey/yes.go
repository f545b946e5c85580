package passkey

import (
	"errors"
	"fmt"

	"palyra/call"
)

// VerifyYes returns nil if a signed yes is what its passkey signed: on a page of the statement's
// origin, by a verified person. It needs nothing but s, so it holds whenever it's asked; counts of
// signatures are for those who take one.
func VerifyYes(s *call.SignedYes) error {
	st := &s.Statement
	if st.Type != call.YesType {
		return fmt.Errorf("a signed statement of type %.40q, want %q", st.Type, call.YesType)
	}
	if s.Passkey == "" || len(s.Credential) == 0 || len(s.Credential) > MaxID {
		return errors.New("a signed yes names its passkey")
	}
	site, err := SiteOf(st.Origin)
	if err != nil {
		return err
	}
	challenge, err := st.Challenge()
	if err != nil {
		return err
	}
	_, err = Verify(site, challenge, &Credential{ID: s.Credential, Key: s.Key}, Assertion{ID: s.Credential, Data: s.Data, Client: s.Client, Signature: s.Signature})
	return err
}
