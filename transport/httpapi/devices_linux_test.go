package httpapi

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/local"
	"palyra/transport/client"
	tlspeer "palyra/transport/peer"
)

// devices is a real hub that serves paired devices.
type devices struct {
	t     testing.TB
	hub   *local.Hub
	addr  string
	owner hub.Caller
}

func newDevices(t testing.TB) *devices {
	t.Helper()
	h, _ := newHouse(t)
	d := &devices{t: t, hub: h}
	d.serve()
	uid := uint32(os.Geteuid())
	var err error
	if d.owner, err = h.Authenticate(t.Context(), hub.Credential{PeerUID: &uid, Surface: "unix"}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *devices) serve() {
	d.t.Helper()
	s, err := New(Config{Hub: d.hub, Check: d.hub.MayFollow, Limits: Limits{Rate: -1, Drain: 300 * time.Millisecond}})
	if err != nil {
		d.t.Fatal(err)
	}
	d.hub.OnDeviceEnd(s.Cut)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	d.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, Listener{Listener: l, TLS: tlspeer.Server(d.hub.PeerCertificate, d.hub.VerifyPeer), Devices: true})
	}()
	d.t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			d.t.Error(err)
		}
	})
}

// pair enrols a device of the owner and returns its side of TLS.
func (d *devices) pair(id string, scopes ...string) *tls.Config {
	d.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		d.t.Fatal(err)
	}
	_, chain, _, err := d.hub.TestOnlyEnrol(d.t.Context(), d.owner, local.Enrolment{ID: id, Scopes: scopes, CSR: csr})
	if err != nil {
		d.t.Fatal(err)
	}
	return tlspeer.Client(func() (*tls.Certificate, error) { return &tls.Certificate{Certificate: chain, PrivateKey: key}, nil },
		func(chain [][]byte) error {
			c, err := x509.ParseCertificate(chain[0])
			if err == nil && (len(c.URIs) != 1 || !strings.HasSuffix(c.URIs[0].String(), ".palyra.local/hub/main")) {
				err = fmt.Errorf("names %v", c.URIs)
			}
			return err
		})
}

func (d *devices) dial(c *tls.Config) *tls.Conn {
	d.t.Helper()
	conn, err := tls.Dial("tcp", d.addr, c)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs fails
	return conn
}

// ask sends a request over a connection and reads the answer's head.
func (d *devices) ask(conn *tls.Conn, r *bufio.Reader, path string, headers ...string) (*http.Response, error) {
	text := "GET /api/v1" + path + " HTTP/1.1\r\nHost: anything\r\n"
	for _, h := range headers {
		text += h + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		return nil, err
	}
	return http.ReadResponse(r, &http.Request{Method: "GET"})
}

func (d *devices) status(conn *tls.Conn, r *bufio.Reader, path string, headers ...string) int {
	d.t.Helper()
	resp, err := d.ask(conn, r, path, headers...)
	if err != nil {
		d.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestRevokedDeviceIsCut: a device follows a tape, has a second connection at rest and makes
// requests. When it's revoked all of that ends, and it comes no further than the handshake. Another
// device, which isn't revoked, goes on.
func TestRevokedDeviceIsCut(t *testing.T) {
	d := newDevices(t)
	lost, kept := d.pair("laptop", "session.read", "session.write", "run.start", "artifact.read"), d.pair("phone", "session.read")
	c, err := client.New(client.Config{URL: "https://" + d.addr, TLS: lost})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ses, err := hub.CreateSession.Do(t.Context(), c, hub.Caller{}, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := hub.GetStatus.Do(t.Context(), c, hub.Caller{}, hub.None{})
	if err != nil || st.Caller.Device != "laptop" || st.Caller.User != d.owner.User || st.Caller.Surface != "http" {
		t.Fatalf("%+v, %v", st.Caller, err)
	}
	run, err := hub.StartRun.Do(t.Context(), c, hub.Caller{}, hub.NewRun{Session: ses.ID, Steps: []hub.Step{
		{Tool: "fs.write_file", Input: []byte(`{"workspace":"src","path":"a.txt","mode":"create","content":"hi"}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	type open struct {
		conn *tls.Conn
		r    *bufio.Reader
	}
	begin := func(cfg *tls.Config) open {
		conn := d.dial(cfg)
		return open{conn, bufio.NewReader(conn)}
	}
	tapes := map[string]open{"laptop": begin(lost), "phone": begin(kept)}
	bodies := map[string]*bufio.Reader{}
	for name, o := range tapes {
		resp, err := d.ask(o.conn, o.r, "/runs/"+run.ID+"/tape", "Accept: application/x-ndjson")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		bodies[name] = bufio.NewReader(resp.Body)
		for line := ""; !strings.Contains(line, hub.EventApprovalRequested); { // the run waits for a person
			if line, err = bodies[name].ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	rest, other := begin(lost), begin(kept)
	for _, o := range []open{rest, other} {
		if got := d.status(o.conn, o.r, "/sessions"); got != 200 {
			t.Fatalf("status %d", got)
		}
	}
	if _, err := hub.RevokeDevice.Do(t.Context(), d.hub, d.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	// Its run was cancelled, too: the other's tape says so, and ends by itself.
	if b, err := io.ReadAll(bodies["phone"]); err != nil || !strings.Contains(string(b), "token_revoked") {
		t.Errorf("the other device's tape: %q, %v", b, err)
	}
	if b, err := io.ReadAll(bodies["laptop"]); err == nil && strings.Contains(string(b), hub.EventRunDone) {
		t.Errorf("the revoked device read its tape to the end: %q", b)
	}
	if _, err := rest.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection at rest: %v", err)
	}
	if got := d.status(other.conn, other.r, "/sessions"); got != 200 {
		t.Errorf("the other device: status %d", got)
	}
	again, err := tls.Dial("tcp", d.addr, lost)
	if err == nil { // in TLS 1.3 a client hears later that its certificate was refused
		_ = again.SetDeadline(time.Now().Add(time.Minute))
		_, err = again.Read(make([]byte, 1))
		again.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "bad certificate") {
		t.Errorf("a new connection: %v", err)
	}
}

// TestDeviceCredential: on the devices' listener the certificate is the credential, and nothing else.
func TestDeviceCredential(t *testing.T) {
	d := newDevices(t)
	cfg := d.pair("laptop", "session.read")
	conn := d.dial(cfg)
	r := bufio.NewReader(conn)
	if s := conn.ConnectionState(); s.CurveID != tls.X25519MLKEM768 || s.Version != tls.VersionTLS13 || s.NegotiatedProtocol != tlspeer.Protocol {
		t.Errorf("%v, version %x, protocol %q", s.CurveID, s.Version, s.NegotiatedProtocol)
	}
	if got := d.status(conn, r, "/sessions"); got != 200 {
		t.Errorf("status %d", got)
	}
	if got := d.status(conn, r, "/members"); got != 403 {
		t.Errorf("beyond its scopes: status %d", got)
	}
	made, err := hub.CreateToken.Do(t.Context(), d.hub, d.owner, hub.NewToken{Name: "x", Scopes: []string{"session.read"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.status(conn, r, "/sessions", "Authorization: Bearer "+made.Secret); got != 401 {
		t.Errorf("with a token beside the certificate: status %d", got)
	}
	for name, change := range map[string]func(*tls.Config){
		"no certificate":   func(c *tls.Config) { c.GetClientCertificate = nil },
		"another protocol": func(c *tls.Config) { c.NextProtos = []string{"h2"} },
		"no protocol":      func(c *tls.Config) { c.NextProtos, c.VerifyConnection = nil, nil },
		"TLS 1.2":          func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
	} {
		c := cfg.Clone()
		change(c)
		nc, err := tls.Dial("tcp", d.addr, c)
		if err == nil {
			_ = nc.SetDeadline(time.Now().Add(time.Minute))
			_, err = nc.Read(make([]byte, 1))
			nc.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkHandshake makes connections, one after the other, until the hub has judged the client. The
// second lets each client in that has a certificate, whatever it is.
func BenchmarkHandshake(b *testing.B) {
	d := newDevices(b)
	cfg := d.pair("laptop", "session.read")
	own, err := d.hub.PeerCertificate()
	if err != nil {
		b.Fatal(err)
	}
	for name, verify := range map[string]func([][]byte) error{"checked": d.hub.VerifyPeer, "unchecked": func([][]byte) error { return nil }} {
		b.Run(name, func(b *testing.B) {
			server := tlspeer.Server(func() (*tls.Certificate, error) { return own, nil }, verify)
			for b.Loop() {
				near, far := net.Pipe()
				done := make(chan error, 1)
				go func() { done <- tls.Server(far, server).Handshake() }()
				if err := errors.Join(tls.Client(near, cfg).Handshake(), <-done); err != nil {
					b.Fatal(err)
				}
				near.Close()
				far.Close()
			}
		})
	}
}
