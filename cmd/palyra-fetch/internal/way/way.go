// Package way is how a program of palyra-fetch reaches the one server that its arguments name.
//
//	w, err := way.Parse("https://api.example/v1", []string{"header:x-team=blue", "secret:header:authorization=TOKEN"}, os.Getenv)
//
// The words behind the URL are headers to send, and places for what stands in a variable of the
// environment: a placeholder, for which palyra-egress puts a secret in. An Authorization gets the
// scheme Bearer in front.
//
// With such a place the requests are inspected, and all TLS is with the call's own authority: no
// other is trusted then. The host's roots take milliseconds to read, and vouch for nothing here.
//
// It doesn't protect against a server elsewhere: that is the cell's network.
package way

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"palyra/call/egress"
	"palyra/call/egress/target"
)

// Connect bounds the way to a server, not its answers.
const Connect = 30 * time.Second

// Way is where a server is, and what each request to it has.
type Way struct {
	At      target.Target
	Headers http.Header

	inspected bool
}

// Parse reads a URL and the words behind it. With an error it returns what it has read.
func Parse(url string, words []string, getenv func(string) string) (Way, error) {
	w := Way{Headers: http.Header{"User-Agent": {"palyra-fetch"}}}
	at, err := target.Parse(url)
	if err != nil {
		return w, err
	}
	u := at.URL()
	for _, word := range words {
		kind, rest, _ := strings.Cut(word, ":")
		name, value, ok := strings.Cut(rest, "=")
		if ok && kind == "secret" {
			variable := value
			if value = getenv(variable); value == "" {
				return w, fmt.Errorf("%s: the variable %.80q is empty", name, variable)
			}
			w.inspected = true
			kind, name, ok = strings.Cut(name, ":")
			if kind == egress.InHeader && strings.EqualFold(name, "authorization") {
				value = "Bearer " + value
			}
		}
		switch {
		case ok && kind == egress.InHeader:
			w.Headers.Set(name, value)
		case ok && kind == egress.InQuery:
			q := u.Query()
			q.Set(name, value)
			u.RawQuery = q.Encode()
		default:
			return w, fmt.Errorf("no argument of this program: %.80q", word)
		}
	}
	w.At, err = target.Parse(u.String())
	return w, err
}

// Client returns an HTTP client for the way, which follows nothing, knows no proxy and keeps no
// cookie. Answers aren't compressed, so that none grows. testOnlyRoots, if not nil, are the
// authorities that it trusts.
func (w *Way) Client(testOnlyRoots *x509.CertPool) *http.Client {
	roots := testOnlyRoots
	if roots == nil && w.inspected {
		roots = authority(egress.RootsFile)
	}
	dialer := &net.Dialer{Timeout: Connect}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: Connect, ForceAttemptHTTP2: true, DisableCompression: true,
			IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 8, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, MaxResponseHeaderBytes: 64 << 10},
	}
}

// authority returns the last certificate of a file, the call's own authority. It returns nil, for
// what any program trusts, where the file isn't: outside of a cell.
func authority(file string) *x509.CertPool {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	pool := x509.NewCertPool()
	if at := bytes.LastIndex(b, []byte("-----BEGIN CERTIFICATE-----")); at < 0 || !pool.AppendCertsFromPEM(b[at:]) {
		return nil
	}
	return pool
}
