package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/cmd/internal/paired"
	"palyra/crypt/pair"
	"palyra/hub"
	"palyra/internal/fault"
	tclient "palyra/transport/client"
	"palyra/transport/enrol"
	"palyra/transport/peer"
)

// visiting is a device that pairs with a palyrad.
type visiting struct {
	r    *running
	key  *ecdsa.PrivateKey
	conn *enrol.Conn
	d    *pair.Device
	sent [][]byte
}

func (r *running) beginPairing() (p hub.PairingCode) {
	r.t.Helper()
	r.must(200, "POST", "/api/v1/pairings", "", &p)
	return p
}

// peerAddress waits until the log says where devices are served: that's written after READY=1.
func (r *running) peerAddress() string {
	r.t.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); r.status() {
		_, after, ok := strings.Cut(r.log.String(), `"peer":"`)
		if at, _, whole := strings.Cut(after, `"`); ok && whole {
			return at
		}
	}
	r.t.Fatalf("the log does not say where devices are served:\n%s", r.log)
	return ""
}

// visit has a device come with a code, up to its digits.
func (r *running) visit(text, at, id string) (*visiting, error) {
	code, err := pair.ParseCode(text)
	if err != nil {
		return nil, err
	}
	v := &visiting{r: r}
	conn, hubKey, err := enrol.Dial(r.t.Context(), at, code.Names)
	if err != nil {
		return nil, err
	}
	v.conn = conn
	r.t.Cleanup(func() { conn.Close() })
	if v.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	v.d, err = pair.NewDevice(code, pair.Channel{HubKey: hubKey, Binding: conn.Binding()}, v.key,
		pair.Request{Device: id, Kind: "cli", Scopes: []string{"run.cancel", "run.start", "session.read", "session.write"}})
	if err != nil {
		return nil, err
	}
	reveal, err := v.exchange(v.d.Hello(), v.d.Offer)
	if err != nil {
		return nil, err
	}
	_, err = v.exchange(reveal, func(b []byte) ([]byte, error) { return nil, v.d.Wait(b) })
	return v, err
}

func (v *visiting) exchange(b []byte, next func([]byte) ([]byte, error)) ([]byte, error) {
	v.sent = append(v.sent, b)
	if err := v.conn.Write(b); err != nil {
		return nil, err
	}
	answer, err := v.conn.Read(time.Now().Add(patience))
	if err != nil {
		return nil, err
	}
	return next(answer)
}

// folder pairs a device to the end and returns its folder.
func (r *running) folder(id string) string {
	r.t.Helper()
	p := r.beginPairing()
	v, err := r.visit(p.Code, p.Address, id)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.approve(p.ID, v.d.Digits()); err != nil {
		r.t.Fatal(err)
	}
	b, err := v.conn.Read(time.Now().Add(patience))
	if err != nil {
		r.t.Fatal(err)
	}
	done, chain, err := v.d.Answer(b, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	dir := filepath.Join(r.dir, id)
	if err := errors.Join(v.conn.Write(done), os.Mkdir(dir, 0o700),
		paired.Write(r.t.Context(), dir, paired.About{Device: id, Domain: chain.Domain, Scopes: chain.Scopes, URL: "https://" + r.peerAddress()}, v.key, chain.Certificates, chain.Roots)); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

func (r *running) device(dir string) hub.Hub {
	r.t.Helper()
	h, err := paired.Dial(paired.Config{Dir: dir, URL: "https://" + r.peerAddress(), Warn: func(err error) { r.t.Error(err) }})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { h.Close() })
	return h
}

// owner is the hub as the test's user has it.
func (r *running) owner() hub.Hub {
	r.t.Helper()
	c, err := tclient.New(tclient.Config{Socket: r.sock})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *running) approve(id, digits string) error {
	_, err := hub.ApprovePairing.Do(r.t.Context(), r.owner(), hub.Caller{}, hub.PairingApproval{ID: id, PairingGrant: hub.PairingGrant{Digits: digits}})
	return err
}

func wantReason(t *testing.T, want string, err error) {
	t.Helper()
	if fault.ReasonOf(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// selfMade is a certificate that its holder signed.
func selfMade(t *testing.T) tls.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

const bothListen = "peer.listen = \"127.0.0.1:0\"\npairing.listen = \"127.0.0.1:0\"\n"

// TestPairingAttacked attacks the enrolment of a live palyrad: without a code, in the middle, with
// messages of another connection, with other digits, after the yes of a stop, and across a crash.
func TestPairingAttacked(t *testing.T) {
	r := newPlace(t, bothListen).start()
	p := r.beginPairing()
	at := p.Address

	// In the middle: the code names the hub's key, so nothing is sent to another.
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{selfMade(t)}, NextProtos: []string{enrol.Protocol}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan int, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			heard <- -1
			return
		}
		defer c.Close()
		n, _ := io.ReadFull(c, make([]byte, 1))
		heard <- n
	}()
	if _, err := r.visit(p.Code, l.Addr().String(), "laptop"); fault.ReasonOf(err) != "pairing_proof" {
		t.Errorf("in the middle: %v", err)
	}
	if n := <-heard; n != 0 {
		t.Errorf("the one in the middle heard %d bytes", n)
	}

	// Other digits end it, and the device learns that.
	v, err := r.visit(p.Code, at, "laptop")
	if err != nil {
		t.Fatal(err)
	}
	wrong := []byte(v.d.Digits())
	wrong[5] = '0' + (wrong[5]-'0'+1)%10
	wantReason(t, "pairing_over", r.approve(p.ID, string(wrong)))
	wantReason(t, "version_conflict", r.approve(p.ID, v.d.Digits()))
	if b, err := v.conn.Read(time.Now().Add(patience)); err == nil {
		if _, _, err := v.d.Answer(b, time.Now()); fault.ReasonOf(err) != "pairing_over" {
			t.Errorf("the device is told %v", err)
		}
	} else {
		t.Error(err)
	}
	// The listener is closed to all while nothing waits.
	if _, err := r.visit(p.Code, at, "laptop"); fault.ReasonOf(err) != "connection_lost" {
		t.Errorf("with a code that was used: %v", err)
	}

	// Messages of one connection are worth nothing on another: its binding is another.
	p = r.beginPairing()
	if v, err = r.visit(p.Code, at, "laptop"); err != nil {
		t.Fatal(err)
	}
	thief, _, err := enrol.Dial(t.Context(), at, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	if err := thief.Write(v.sent[0]); err != nil {
		t.Fatal(err)
	}
	b, err := thief.Read(time.Now().Add(patience))
	if err != nil || !bytes.Contains(b, []byte(`"end":"over"`)) {
		t.Errorf("a replayed hello: %q, %v", b, err)
	}
	var now hub.Pairing
	r.must(200, "GET", "/api/v1/pairings/"+p.ID, "", &now)
	if now.State != "failed" || now.End != "again" { // two have the code
		t.Errorf("%+v", now)
	}
	wantReason(t, "version_conflict", r.approve(p.ID, v.d.Digits()))

	// A stop lets no pairing go on that had begun before.
	p = r.beginPairing()
	if v, err = r.visit(p.Code, at, "laptop"); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Stop.Do(t.Context(), r.owner(), hub.Caller{}, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, "stopped", r.approve(p.ID, v.d.Digits()))
	r.refused(403, "stopped", "POST", "/api/v1/pairings", "")
	r.must(200, "POST", "/api/v1/resume", "", nil)

	// A crash ends it: the code names a key that is gone.
	r.signal(syscall.SIGKILL)
	r.exit()
	r = r.place.start()
	fresh := r.beginPairing()
	if _, err := r.visit(p.Code, fresh.Address, "laptop"); fault.ReasonOf(err) != "pairing_proof" {
		t.Errorf("with a code of before a crash: %v", err)
	}
	wantReason(t, "not_found", r.approve(p.ID, v.d.Digits()))
	var devices hub.Page[hub.Device]
	r.must(200, "GET", "/api/v1/devices", "", &devices)
	if len(devices.Items) != 0 {
		t.Errorf("there are devices: %+v", devices.Items)
	}
}

// TestDevicesAttacked attacks the listener for devices of a live palyrad: strangers, a device that
// wants more than it has, many that renew at once, and one that was revoked amid a stream.
func TestDevicesAttacked(t *testing.T) {
	r := newPlace(t, bothListen).start()
	dir := r.folder("laptop")
	h := r.device(dir)
	ctx := t.Context()
	status := func() (hub.Status, error) { return hub.GetStatus.Do(ctx, h, hub.Caller{}, hub.None{}) }
	s, err := status()
	if err != nil || s.Caller.User != fmt.Sprintf("uid:%d", os.Geteuid()) || s.Caller.Device != "laptop" || s.Caller.Surface != "http" || s.Caller.Token == "" {
		t.Fatalf("%+v, %v", s.Caller, err)
	}

	// Strangers get no further than the handshake: without a certificate, with one of their own, with
	// another protocol. The device of the folder does (control).
	own, stolen := selfMade(t), func() tls.Certificate { // the chain without its key
		c, err := tls.LoadX509KeyPair(filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}()
	good := stolen
	stolen.PrivateKey = own.PrivateKey
	get := func(proto string, cert *tls.Certificate, header http.Header) (int, error) {
		c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }}
		client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, "GET", "https://"+r.peerAddress()+"/api/v1/status", nil)
		if err != nil {
			return 0, err
		}
		req.Header = header
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	if code, err := get(peer.Protocol, &good, http.Header{}); err != nil || code != 200 {
		t.Fatalf("control: %d, %v", code, err)
	}
	for name, cert := range map[string]*tls.Certificate{"none": {}, "its own": &own, "a device's without the key": &stolen} {
		if code, err := get(peer.Protocol, cert, http.Header{}); err == nil {
			t.Errorf("a stranger with the certificate %s: %d", name, code)
		}
	}
	if code, err := get(enrol.Protocol, &good, http.Header{}); err == nil {
		t.Errorf("another protocol: %d", code)
	}
	if code, err := get(peer.Protocol, &good, http.Header{"Authorization": {"Bearer palyra_x"}}); err != nil || code != 401 {
		t.Errorf("with a token besides: %d, %v", code, err)
	}

	// Its scopes, its own certificate, its principal, and no more.
	for what, err := range map[string]error{
		"devices": second(hub.ListDevices.Do(ctx, h, hub.Caller{User: "uid:0", Role: "owner"}, hub.None{})),
		"pairing": second(hub.BeginPairing.Do(ctx, h, hub.Caller{}, hub.None{})),
		"token":   second(hub.CreateToken.Do(ctx, h, hub.Caller{}, hub.NewToken{Name: "x", Scopes: []string{"run.start"}, TTL: time.Hour})),
		"resume":  second(hub.Resume.Do(ctx, h, hub.Caller{}, hub.None{})),
		"another": second(hub.RenewDevice.Do(ctx, h, hub.Caller{}, hub.DeviceRenewal{ID: "phone", DeviceKeyRequest: hub.DeviceKeyRequest{CSR: request(t, good)}})),
		"members": second(hub.ListMembers.Do(ctx, h, hub.Caller{}, hub.None{})),
	} {
		if fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: %v", what, err)
		}
	}

	// Silent connections of strangers don't keep it out.
	for range 300 {
		c, err := net.Dial("tcp", r.peerAddress())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if _, err := status(); err != nil {
		t.Errorf("beside silent strangers: %v", err)
	}

	// Many that renew at once get three between them, as it has four at most.
	var wg sync.WaitGroup
	errs := make(chan error, 12)
	for range cap(errs) {
		wg.Go(func() {
			_, err := hub.RenewDevice.Do(ctx, h, hub.Caller{}, hub.DeviceRenewal{ID: "laptop", DeviceKeyRequest: hub.DeviceKeyRequest{CSR: request(t, good)}})
			errs <- err
		})
	}
	wg.Wait()
	renewed := 0
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			renewed++
		case fault.ReasonOf(err) != "too_many":
			t.Error(err)
		}
	}
	var d hub.Device
	r.must(200, "GET", "/api/v1/devices/laptop", "", &d)
	if renewed != 3 || len(d.Certificates) != 4 {
		t.Errorf("%d renewed, it has %d", renewed, len(d.Certificates))
	}

	// A crash takes nothing back. Revoked amid a stream it is cut off, and stays so after a crash and
	// when it was forgotten.
	r.signal(syscall.SIGKILL)
	r.exit()
	r = r.place.start()
	h = r.device(dir)
	ses, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, hub.NewSession{})
	if err != nil {
		t.Fatal("after a crash: ", err)
	}
	run, err := hub.StartRun.Do(ctx, h, hub.Caller{}, hub.NewRun{Session: ses.ID, Steps: []hub.Step{{Tool: "palyra.sleep", Input: []byte(`{"ms":60000}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	tape, err := hub.ReadTape.Do(ctx, h, hub.Caller{}, hub.TapeQuery{Run: run.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	for kind := ""; kind != hub.EventStepDecided; { // before that a refusal is the step's own failure
		e, err := tape.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		kind = e.Kind
	}
	r.must(200, "POST", "/api/v1/devices/laptop/revoke", "", nil)
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for err = nil; err == nil; {
		_, err = tape.Next(wait)
	}
	if wait.Err() != nil {
		t.Error("the tape goes on after the revocation")
	}
	seen, err := hub.ReadTape.Do(ctx, r.owner(), hub.Caller{}, hub.TapeQuery{Run: run.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	for err == nil { // until the run's end
		_, err = seen.Next(wait)
	}
	var ended hub.Run
	if r.must(200, "GET", "/api/v1/runs/"+run.ID, "", &ended); ended.State != hub.RunCancelled {
		t.Errorf("its run is %s", ended.State)
	}
	if _, err := status(); fault.KindOf(err) != fault.Denied {
		t.Errorf("revoked: %v", err)
	}
	r.must(204, "DELETE", "/api/v1/devices/laptop", "", nil)
	r.signal(syscall.SIGKILL)
	r.exit()
	r = r.place.start()
	h = r.device(dir)
	if _, err := status(); fault.KindOf(err) != fault.Denied {
		t.Errorf("revoked and forgotten: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func request(t *testing.T, c tls.Certificate) []byte {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, c.PrivateKey)
	if err != nil {
		t.Error(err)
	}
	return csr
}
