package hub

import "time"

// Pairing is a device's way to a certificate, as operators see it. The digits aren't in it: they
// are on the device's screen.
type Pairing struct {
	ID        string `json:"id"`        // "par_…"
	Principal string `json:"principal"` // who began it; the device will act as this principal
	// State is "open" until a device comes with the code, "begun" until it has shown its key,
	// "pending" until an operator answers, "approved" while the certificate is made, "issued"
	// until the device has it; and at last "completed", "refused", "cancelled", "expired" or
	// "failed".
	State string `json:"state"`
	End   string `json:"end,omitempty"` // why it failed
	// What the device asks for. Empty until it has come.
	Device string   `json:"device,omitempty"`
	Kind   string   `json:"kind,omitempty"`
	Scopes []string `json:"scopes"`
	Key    string   `json:"key,omitempty"` // SHA-256 of its public key
	// Known says that there is a device of this id. A yes must then say that it's replaced.
	Known   bool      `json:"known,omitempty"`
	Begun   time.Time `json:"begun"`
	Expires time.Time `json:"expires"`
}

// PairingCode is a new pairing with its code, which can't be had again.
type PairingCode struct {
	Pairing
	Code    string `json:"code"`    // for people
	URI     string `json:"uri"`     // the same, for a QR code
	Address string `json:"address"` // where devices find palyrad: as its configuration says, or for every address one of them
}

// PairingQuery names a pairing.
type PairingQuery struct {
	ID     string `json:"id" in:"path" as:"pairing"`
	Unlike string `json:"unlike,omitempty" in:"query" doc:"wait for up to 20 seconds until its state is another one"`
}

// PairingApproval is a yes to a pairing.
type PairingApproval struct {
	ID           string `json:"id" in:"path" as:"pairing"`
	PairingGrant `in:"body"`
}

// PairingGrant is what a device gets.
type PairingGrant struct {
	Digits string `json:"digits"` // the six that the device shows
	// Scopes are some of those that it asked for; null means all. None may be one that the
	// caller lacks.
	Scopes  *[]string `json:"scopes,omitempty"`
	Replace bool      `json:"replace,omitempty"` // the device of this id that there is
}

// Messages are those of one connection on which a device pairs; docs/formats/pair.md. Read and
// Write may be called at the same time.
type Messages interface {
	// Binding returns keying material that both ends of the connection have, and no one else.
	Binding() []byte
	// Read waits for a message until deadline; the zero one is no deadline.
	Read(deadline time.Time) ([]byte, error)
	Write(b []byte) error
	Close() error
}
