package pair

import (
	"bytes"
	"errors"
	"fmt"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The messages, in their order. Each is a line with the version and its name, and canonical JSON
// of exactly the members below. There is one spelling: what parses is what would be written.
const (
	version = "palyra-pair/1 "

	nameHello  = "hello"
	nameOffer  = "offer"
	nameReveal = "reveal"
	nameWait   = "wait"
	nameAnswer = "answer"
	nameDone   = "done"
)

// hello says which code the device has, what it asks for, and commits to its opening.
type hello struct {
	Code       canon.Digest `json:"code"`
	Commitment canon.Digest `json:"commitment"`
	Request    Request      `json:"request"`
}

// offer says who the hub is, and opens its nonce.
type offer struct {
	Domain string       `json:"domain"`
	Nonce  canon.Digest `json:"nonce"`
	Roots  canon.Digest `json:"roots"`
}

// opening is what the device committed to.
type opening struct {
	CSR   []byte       `json:"csr"` // PKCS #10
	Nonce canon.Digest `json:"nonce"`
}

// reveal opens the commitment, and shows that the device has the code and the key.
type reveal struct {
	Opening   opening      `json:"opening"`
	Proof     canon.Digest `json:"proof"`
	Signature []byte       `json:"signature"` // ECDSA P-256, ASN.1
}

// wait shows that the hub has the code. Both sides have the digits now.
type wait struct {
	Proof canon.Digest `json:"proof"`
}

// answer ends the exchange. A refusal has an end and nothing else: it needs no proof, as
// whoever can send it could as well close the connection.
type answer struct {
	Chain  [][]byte     `json:"chain"` // DER, the device's certificate first
	End    End          `json:"end"`   // "" of an approval
	Proof  canon.Digest `json:"proof"`
	Roots  [][]byte     `json:"roots"`
	Scopes []string     `json:"scopes"`
}

// done shows that the device has its certificate.
type done struct {
	Proof canon.Digest `json:"proof"`
}

func encode(name string, m any) []byte {
	b, err := canon.Marshal(m)
	if err != nil {
		panic("pair: internal error: " + err.Error()) // all fields were checked
	}
	return append([]byte(version+name+"\n"), b...)
}

// decode reads a message of this name, and refuses any other spelling of it.
func decode(b []byte, name string, m any) error {
	bad := func(err error) error {
		return fault.New(fault.Integrity, "pairing_proof", "read pairing message "+name, err)
	}
	if len(b) > MaxMessage {
		return bad(fmt.Errorf("it is longer than %d bytes", MaxMessage))
	}
	body, ok := bytes.CutPrefix(b, []byte(version+name+"\n"))
	if !ok {
		return bad(fmt.Errorf("it does not begin with %q", version+name))
	}
	if err := canon.Decode(body, m, canon.Limits{Bytes: MaxMessage, Depth: 4, Values: 256}); err != nil {
		return bad(errors.New(fault.ReasonOf(err))) // the text may quote what was sent
	}
	if !bytes.Equal(encode(name, m), b) {
		return bad(errors.New("it is not in canonical form"))
	}
	return nil
}
