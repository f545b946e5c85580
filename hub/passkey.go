package hub

import (
	"context"
	"time"
)

// Passkey lets its member's browsers into the console.
type Passkey struct {
	ID        string     `json:"id"` // "psk_…"
	Name      string     `json:"name"`
	Principal string     `json:"principal"`
	State     string     `json:"state"` // "active", "halted" or "revoked"
	Created   time.Time  `json:"created"`
	LastUse   *time.Time `json:"last_use,omitempty"`
	// Halted says when it signed with a count that wasn't higher than the one before: there may be a
	// copy. It's good for nothing since.
	Halted *time.Time `json:"halted,omitempty"`
}

// Passkeys. They're added in the console alone: see Door.
var (
	ListPasskeys = define[None, Page[Passkey]]("access.listPasskeys", "GET /passkeys", "token.manage",
		"List the passkeys that let browsers into the console, oldest first")
	// RevokePasskey ends browsers, too.
	RevokePasskey = define[string, Passkey]("access.revokePasskey", "POST /passkeys/{passkey}/revoke", "token.manage",
		"End a passkey for good", Operation{Doc: "Its member's browsers leave the console, but for the one that asks for it.", Effect: Keeps})
)

// PasskeyRequest is what a browser needs to sign with a passkey or to make one.
type PasskeyRequest struct {
	RP        string // the host that passkeys are for
	Origin    string // of the pages that they work on
	Challenge []byte // good once, for two minutes, but an answer's

	// For a new one.
	User []byte // the handle of the member
	Name string // the member

	Known [][]byte // credentials of the member's, but at the door; those that can sign an answer
}

// PasskeyMade is a new passkey, as WebAuthn gives it.
type PasskeyMade struct {
	Challenge             []byte
	Name                  string // for people
	ID, Key, Data, Client []byte // Key is SubjectPublicKeyInfo, Client the client data
}

// PasskeySignature is a signature of a passkey, as WebAuthn gives it.
type PasskeySignature struct {
	Challenge []byte `json:"challenge,omitempty"` // of signing in
	ID        []byte `json:"id"`
	Data      []byte `json:"data"`
	Client    []byte `json:"client"`
	Signature []byte `json:"signature"`
	User      []byte `json:"user,omitempty"` // the handle, of signing in
}

// PasskeyDoor lets browsers in by passkeys of members.
type PasskeyDoor interface {
	// PasskeyOrigin returns the origin of the pages on which passkeys work, "" for none: browsers make
	// them for names alone.
	PasskeyOrigin() string
	// AskPasskey makes a challenge for the browser with nonce.
	AskPasskey(nonce string) (PasskeyRequest, error)
	// EnterByPasskey is Door.Enter for a signature over a challenge of AskPasskey's. One that isn't
	// good is fault.Denied "unauthenticated".
	EnterByPasskey(ctx context.Context, nonce, user string, s PasskeySignature) (TokenSecret, error)
	// OfferPasskey makes a challenge for a new passkey of the caller's, whose browser came in by a
	// code within five minutes; other callers get fault.Denied "permission_denied".
	OfferPasskey(ctx context.Context, c Caller) (PasskeyRequest, error)
	// AddPasskey adds what was made for a challenge of OfferPasskey's, under the same condition.
	AddPasskey(ctx context.Context, c Caller, m PasskeyMade) (Passkey, error)
	// AskAnswer returns what a passkey of the caller's signs for a yes, which is then the Resolution's
	// Signature; nil if policy wants none for it. The challenge follows from question and answer, so
	// another answer has another.
	AskAnswer(ctx context.Context, c Caller, r Resolution) (*PasskeyRequest, error)
}
