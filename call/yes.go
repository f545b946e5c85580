package call

import "palyra/internal/canon"

// YesType is the type of every [Yes]: no other statement has it.
const YesType = "palyra/approval-yes/v1"

// Yes says to what a person says yes. Its maker is the hub that asks; its digest is the challenge
// that the person's passkey signs.
type Yes struct {
	Type      string       `json:"type"`     // YesType
	Origin    string       `json:"origin"`   // of the console's pages
	Approval  string       `json:"approval"` // the request, by id
	Version   int64        `json:"version"`  // of the request
	Capsule   canon.Digest `json:"capsule"`
	PolicySet canon.Digest `json:"policy_set"`
	Approver  string       `json:"approver"` // principal

	// How far it reaches.
	Scope   string       `json:"scope"`            // "once", "session" or "timed"
	For     int64        `json:"for_ns,omitempty"` // of "timed"
	Uses    int64        `json:"uses,omitempty"`   // 0: not bounded, or once
	Pattern canon.Digest `json:"pattern,omitzero"` // zero: the capsule alone
	Comment canon.Digest `json:"comment,omitzero"` // of the comment's bytes; zero: none
}

// Challenge returns the SHA-256 of the canonical JSON of y.
func (y *Yes) Challenge() ([]byte, error) {
	b, err := canon.Marshal(y)
	if err != nil {
		return nil, err
	}
	d := canon.Sum(b)
	return d[:], nil
}

// SignedYes is a [Yes] with the signature of its approver's passkey over it, as WebAuthn gives it.
// It verifies by itself (palyra/crypt/passkey). That the key is the approver's, its keeper says.
type SignedYes struct {
	Statement  Yes    `json:"statement"`
	Passkey    string `json:"passkey"`    // "psk_…"
	Credential []byte `json:"credential"` // its authenticator's id of it
	Key        []byte `json:"key"`        // SubjectPublicKeyInfo in DER
	Data       []byte `json:"data"`       // authenticatorData
	Client     []byte `json:"client"`     // clientDataJSON
	Signature  []byte `json:"signature"`
}
