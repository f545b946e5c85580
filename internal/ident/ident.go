// Package ident makes and checks the ids of stored things: sessions, runs, approvals,
// tokens.
//
// An id is a prefix that says what it names, an underscore and 32 lower-case
// hexadecimal digits, 128 bits from crypto/rand:
//
//	ident.New(ident.Run) // "run_9f86d081884c7d659a2feaa0c55ad015"
//
// An id is a name and not a secret. Knowing one gives no right to anything.
package ident

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"palyra/internal/fault"
)

// The prefixes in use.
const (
	Session  = "ses"
	Run      = "run"
	Approval = "apr"
	Token    = "tok"
	Grant    = "grt" // a standing grant
	Pairing  = "par"
	Passkey  = "psk"
	Memory   = "mem" // an item of memory
)

const digits = 32

// New returns a new id with this prefix.
func New(prefix string) string {
	var b [digits / 2]byte
	_, _ = rand.Read(b[:]) // never fails; see crypto/rand.Read
	return prefix + "_" + hex.EncodeToString(b[:])
}

// Check returns fault.Usage with the reason "invalid_input" unless id is in the form
// that New(prefix) gives. It does not say whether the thing exists.
func Check(prefix, id string) error {
	rest, ok := strings.CutPrefix(id, prefix+"_")
	if ok = ok && len(rest) == digits; ok {
		for _, c := range []byte(rest) {
			ok = ok && (c >= '0' && c <= '9' || c >= 'a' && c <= 'f')
		}
	}
	if !ok {
		return fault.New(fault.Usage, "invalid_input", "parse id",
			fmt.Errorf("%.80q is not %q and %d hexadecimal digits", id, prefix+"_", digits)).
			WithHint("an id is what the command that lists such things prints, as a whole: ses_..., run_..., apr_..., tok_...")
	}
	return nil
}
