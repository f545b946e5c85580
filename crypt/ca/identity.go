package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// The kinds of holders. A hub serves and presents its certificate as a server; the others are
// its clients.
const (
	Hub     = "hub"
	Device  = "device"
	Worker  = "worker"
	Browser = "browser" // the browser service
)

var kinds = []string{Hub, Device, Worker, Browser}

const scheme = "spiffe"

// maxID bounds the last part of a name, in bytes.
const maxID = 64

// Identity is the name in a leaf, spiffe://DOMAIN/KIND/ID.
type Identity struct {
	Domain string // the trust domain: a bare lower-case host name
	Kind   string // hub, device, worker or browser
	ID     string // 1 to 64 of a-z, 0-9, '-' and '_', beginning with a letter or digit
}

// ParseIdentity parses a name in its one spelling, that of String.
func ParseIdentity(s string) (Identity, error) {
	rest, ok := strings.CutPrefix(s, scheme+"://")
	f := strings.Split(rest, "/")
	if !ok || len(f) != 3 {
		return Identity{}, fmt.Errorf("parse name %.200q: want %s://DOMAIN/KIND/ID", s, scheme)
	}
	id := Identity{Domain: f[0], Kind: f[1], ID: f[2]}
	if err := id.check(); err != nil {
		return Identity{}, fmt.Errorf("parse name %.200q: %w", s, err)
	}
	return id, nil
}

// String returns the name as a URI.
func (id Identity) String() string { return scheme + "://" + id.Domain + "/" + id.Kind + "/" + id.ID }

func (id Identity) url() *url.URL {
	return &url.URL{Scheme: scheme, Host: id.Domain, Path: "/" + id.Kind + "/" + id.ID}
}

func (id Identity) check() error {
	if err := checkDomain(id.Domain); err != nil {
		return err
	}
	if !slices.Contains(kinds, id.Kind) {
		return fmt.Errorf("kind %.80q is none of %s", id.Kind, strings.Join(kinds, ", "))
	}
	return CheckID(id.ID)
}

// CheckID refuses what can't be the last part of a name.
func CheckID(id string) error {
	if len(id) == 0 || len(id) > maxID || id[0] == '-' || id[0] == '_' || strings.ContainsFunc(id, func(c rune) bool {
		return !lower(c) && c != '-' && c != '_'
	}) {
		return fmt.Errorf("id %.80q is not 1 to %d of a-z, 0-9, '-' and '_' that begin with a letter or digit", id, maxID)
	}
	return nil
}

// checkDomain accepts bare lower-case host names with a dot in them, as the origins of journals
// are. A number at the end would make it an address to some parsers of URIs.
func checkDomain(s string) error {
	labels := strings.Split(s, ".")
	if len(s) > 253 || len(labels) < 2 {
		return fmt.Errorf("trust domain %.80q is no host name of two parts or more", s)
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' ||
			strings.ContainsFunc(l, func(c rune) bool { return !lower(c) && c != '-' }) {
			return fmt.Errorf("trust domain %.80q is no bare lower-case host name", s)
		}
	}
	if c := labels[len(labels)-1][0]; c >= '0' && c <= '9' {
		return errors.New("trust domain ends in a number, as an address does")
	}
	return nil
}

func lower(c rune) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// usageOf returns the one use of a leaf's key.
func usageOf(kind string) x509.ExtKeyUsage {
	if kind == Hub {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}
