package hub

import "time"

// Authority is the certificate authority that names the hub and its devices.
type Authority struct {
	Domain string `json:"domain"`
	// Roots are those that count, oldest first.
	Roots []AuthorityRoot `json:"roots"`
	// BeginsAt is when the introduced root is put in force. Devices that haven't renewed by then have
	// no good certificate any more.
	BeginsAt *time.Time `json:"begins_at,omitempty"`
}

// AuthorityRoot is a root certificate.
type AuthorityRoot struct {
	Digest string `json:"digest"` // SHA-256 of its DER
	// State is "in_force", "introduced" (devices that renew are told of it) or "previous" (leaves
	// under it end within a day).
	State     string    `json:"state"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
}

// RootReplacement asks for another root.
type RootReplacement struct {
	AtOnce bool `json:"at_once,omitempty"` // devices that haven't renewed since its introduction pair again
}

// The certificate authority.
var (
	GetAuthority = define[None, Authority]("devices.getAuthority", "GET /authority", "journal.read",
		"Get the roots of the certificate authority")
	ReplaceRoot = define[RootReplacement, Authority]("devices.replaceRoot", "POST /authority/replace-root", "trust.operate",
		"Replace the root of the certificate authority", Operation{Doc: "The next root is introduced: devices that renew are told of it. A day later the hub puts it " +
			"in force by itself, and the old root's key is gone. At once: now, whether introduced before or not.", Effect: Mends})
)
