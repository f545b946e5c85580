package hub

import "time"

// The states of a device.
const (
	DeviceActive  = "active"
	DeviceRevoked = "revoked"
	DeviceExpired = "expired" // its authority ended; pair it again
)

// Device is a device that was paired: it calls with a certificate, as its principal and within its
// scopes.
type Device struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Principal string     `json:"principal"`
	Kind      string     `json:"kind"` // "device"
	Key       string     `json:"key"`  // "sha256:…" of its public key
	Scopes    []string   `json:"scopes"`
	State     string     `json:"state"` // "active", "revoked" or "expired"
	Token     string     `json:"token"` // whose scopes and end are the device's; its text exists nowhere
	Version   int64      `json:"version"`
	Created   time.Time  `json:"created"`
	Expires   time.Time  `json:"expires"`
	Seen      *time.Time `json:"seen,omitempty"`
	Revoked   *time.Time `json:"revoked,omitempty"`
	// Certificates are those that it may use now; never null.
	Certificates []DeviceCertificate `json:"certificates"`
}

// DeviceCertificate is a certificate of a device.
type DeviceCertificate struct {
	Serial  string    `json:"serial"`
	Digest  string    `json:"digest"` // "sha256:…" of its DER
	Expires time.Time `json:"expires"`
}

// DeviceRenewal asks for the next certificate of the device that asks.
type DeviceRenewal struct {
	ID               string `json:"id" in:"path" as:"device"`
	DeviceKeyRequest `in:"body"`
}

// DeviceKeyRequest is a signing request for a device's own key.
type DeviceKeyRequest struct {
	CSR []byte `json:"csr"` // PKCS #10 in DER; base64
}

// DeviceChain is a device's certificate and whom it trusts, in DER.
type DeviceChain struct {
	Chain [][]byte `json:"chain"` // leaf, issuer; base64
	Roots [][]byte `json:"roots"` // base64
	// Links are certificates by which holders of older roots believe new ones; base64.
	Links [][]byte  `json:"links,omitempty"`
	Renew time.Time `json:"renew"` // when it asks for the next one
}
