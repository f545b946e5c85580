package isolate

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"

	"palyra/call/egress"
)

// A call whose TLS is inspected trusts a further certificate authority: its own, whose key only
// palyra-egress has. The program finds it beside the host's roots in one file, which the cell also
// shows in place of each bundle of the host. The cell is at tier C: the files are the call's own.
const (
	RootsDir  = "/etc/ssl/palyra" // holds RootsFile alone, as the program sees it
	RootsFile = egress.RootsFile  // the host's roots, then the authority
	MaxRoots  = 16 << 10          // bytes of the authority
	rootsType = "CERTIFICATE"     // of its PEM block
)

// RootsEnv returns "NAME=VALUE" of the variables by which programs that have roots of their own
// find RootsFile, sorted. They are the same for each call.
func RootsEnv() (env []string) {
	for _, name := range rootsVariables {
		env = append(env, name+"="+RootsFile)
	}
	return env
}

// rootsVariables are sorted. Node reads no bundle of the host; copies of git, curl, pip and others
// that aren't the host's have one of their own. Each name is needed by those that heed no other of
// these.
var rootsVariables = []string{
	"GIT_SSL_CAINFO",      // git
	"NODE_EXTRA_CA_CERTS", // node, npm, deno
	"REQUESTS_CA_BUNDLE",  // requests, pip, aws
	"SSL_CERT_FILE",       // Go, OpenSSL, so Python, Ruby and PHP; curl, cargo
}

// CheckRoots returns an error unless b is one certificate in PEM, as encoding/pem writes it, and
// nothing else: what a program is shown there holds no key.
func CheckRoots(b []byte) error {
	if len(b) > MaxRoots {
		return fmt.Errorf("authority of a call: %d bytes, at most %d", len(b), MaxRoots)
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != rootsType || len(block.Headers) > 0 || len(block.Bytes) == 0 || len(rest) > 0 ||
		!bytes.Equal(pem.EncodeToMemory(block), b) {
		return errors.New("authority of a call: want one certificate in PEM and nothing else")
	}
	return nil
}
