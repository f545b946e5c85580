package backend

import (
	"strings"
	"testing"

	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
	"palyra/internal/fault"
)

func newIdentity(t testing.TB) *seal.IdentityKey {
	t.Helper()
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func placed(t testing.TB, p record.Place, id *seal.IdentityKey) record.Place {
	t.Helper()
	pub, err := id.Recipient("owner")
	if err != nil {
		t.Fatal(err)
	}
	p.Recipient = pub.ID()
	return p
}

// same compares two identities by what they are.
func same(t *testing.T, got seal.Identity, want *seal.IdentityKey) {
	t.Helper()
	if a, b := string(got.(*seal.IdentityKey).Encode()), string(want.Encode()); a != b {
		t.Error("another identity came back")
	}
}

// wantReason wants a reason code or, after it and ": ", a text of the error, too.
func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	code, text, _ := strings.Cut(reason, ": ")
	if fault.ReasonOf(err) != code || text != "" && !strings.Contains(err.Error(), text) {
		t.Errorf("%v (%s), want %s", err, fault.ReasonOf(err), reason)
	}
}
