package paired

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/hub/local"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/transport/httpapi"
	"palyra/transport/peer"
)

// house is a real hub that serves devices.
type house struct {
	t     *testing.T
	hub   *local.Hub
	url   string
	owner hub.Caller
	state string
	// lies, if not nil, is what witnesses see of the journal.
	lies atomic.Pointer[func(hub.JournalWatch) (hub.JournalView, error)]
}

// lie has the hub show witnesses another view; nil: the true one.
func (h *house) lie(view func(hub.JournalWatch) (hub.JournalView, error)) {
	if view == nil {
		h.lies.Store(nil)
		return
	}
	h.lies.Store(&view)
}

func (h *house) trust() *receipt.Trust {
	h.t.Helper()
	t, err := receipt.LoadTrust(filepath.Join(h.state, "trust"))
	if err != nil {
		h.t.Fatal(err)
	}
	return t
}

func newHouse(t *testing.T) *house {
	t.Helper()
	base := t.TempDir()
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: filepath.Join(base, "state")})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(base, "store"), store.Options{})
	if err != nil {
		t.Fatal(errors.Join(err, k.Close()))
	}
	h, err := local.Open(t.Context(), local.Config{Kernel: k, Store: st, Gateway: gateway.New(gateway.Config{Store: st})})
	if err != nil {
		t.Fatal(errors.Join(err, st.Close(), k.Close()))
	}
	house := &house{t: t, hub: h, state: filepath.Join(base, "state")}
	s, err := httpapi.New(httpapi.Config{Hub: served{h, house}, Limits: httpapi.Limits{Rate: -1}})
	if err != nil {
		t.Fatal(err)
	}
	h.OnDeviceEnd(s.Cut)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, httpapi.Listener{Listener: l, TLS: peer.Server(h.PeerCertificate, h.VerifyPeer), Devices: true})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, h.Close(ctx), st.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	uid := uint32(os.Geteuid())
	owner, err := h.Authenticate(t.Context(), hub.Credential{PeerUID: &uid, Surface: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	house.url, house.owner = "https://"+l.Addr().String(), owner
	return house
}

// served is the hub as devices reach it.
type served struct {
	*local.Hub
	house *house
}

func (s served) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	if view := s.house.lies.Load(); view != nil && op == hub.WatchJournal.Operation {
		return (*view)(in.(hub.JournalWatch))
	}
	return s.Hub.Do(ctx, c, op, in)
}

// pair makes a device and its folder.
func (h *house) pair(id string) string {
	h.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		h.t.Fatal(err)
	}
	_, chain, roots, err := h.hub.TestOnlyEnrol(h.t.Context(), h.owner, local.Enrolment{ID: id, Scopes: []string{"session.read"}, CSR: csr})
	if err != nil {
		h.t.Fatal(err)
	}
	dir := h.t.TempDir()
	os.Chmod(dir, 0o700)
	parse := func(ders [][]byte) (list []*x509.Certificate) {
		for _, der := range ders {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				h.t.Fatal(err)
			}
			list = append(list, c)
		}
		return list
	}
	root := parse(roots)
	if err := Write(h.t.Context(), dir, About{Device: id, Domain: root[0].URIs[0].Host, URL: h.url}, key, parse(chain), root); err != nil {
		h.t.Fatal(err)
	}
	return dir
}

func (h *house) dial(dir string) (*Hub, *[]error) {
	h.t.Helper()
	warned := new([]error)
	p, err := Dial(Config{Dir: dir, Warn: func(err error) { *warned = append(*warned, err) }})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { p.Close() })
	return p, warned
}

func status(t *testing.T, p *Hub) (hub.Status, error) {
	return hub.GetStatus.Do(t.Context(), p, hub.Caller{}, hub.None{})
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRenew: a certificate that is due is renewed once, for the same key, before a request, and is
// in the folder; one that isn't due stays. What can't be renewed warns, and the request goes on.
func TestRenew(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	p, warned := h.dial(dir)
	first, key := read(t, dir, chainFile), read(t, dir, KeyFile)
	if s, err := status(t, p); err != nil || s.Caller.Device != "laptop" {
		t.Fatalf("%+v, %v", s.Caller, err)
	}
	if !bytes.Equal(read(t, dir, chainFile), first) {
		t.Fatal("renewed before it was due")
	}
	old := p.now.Load().leaf.Serial
	p.due = func(id *identity) bool { return id.leaf.Serial == old }
	for range 2 {
		if _, err := status(t, p); err != nil {
			t.Fatal(err)
		}
	}
	next := read(t, dir, chainFile)
	d, err := hub.GetDevice.Do(t.Context(), h.hub, h.owner, "laptop")
	if err != nil || len(d.Certificates) != 2 || bytes.Equal(next, first) || !bytes.Equal(read(t, dir, KeyFile), key) || len(*warned) != 0 {
		t.Errorf("%d certificates at the hub, %v; warned %v", len(d.Certificates), err, *warned)
	}
	// Another process finds what this one renewed, and doesn't ask.
	q, _ := h.dial(dir)
	if q.now.Load().leaf != p.now.Load().leaf {
		t.Error("the folder has another certificate than the process that renewed it")
	}
	// The hub keeps four at a time: the fifth can't be had, is told once, and requests go on.
	p.due = func(*identity) bool { return true }
	for range 5 {
		if _, err := status(t, p); err != nil {
			t.Fatal(err)
		}
	}
	if len(*warned) != 1 || fault.ReasonOf((*warned)[0]) != "too_many" {
		t.Errorf("warned %v", *warned)
	}
}

// TestRenewTogether: processes that share a folder, and find at once that their certificate is due,
// renew it once. None of them fails a request, and the folder is whole.
func TestRenewTogether(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 6 {
		p, err := Dial(Config{Dir: dir, Warn: func(err error) { t.Error("warned: ", err) }})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		first := p.now.Load().leaf
		p.due = func(id *identity) bool { return id.leaf == first }
		wg.Go(func() {
			<-begin
			for range 5 {
				if _, err := status(t, p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	d, err := hub.GetDevice.Do(t.Context(), h.hub, h.owner, "laptop")
	if err != nil || len(d.Certificates) != 2 {
		t.Errorf("%d certificates, %v; want the first and one more", len(d.Certificates), err)
	}
	if _, err := load(dir); err != nil {
		t.Error(err)
	}
}

// TestRenewAgain: a renewal that fails is tried again after a pause, by the same process: one that
// lives for days isn't cut off by a minute without the hub.
func TestRenewAgain(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	p, warned := h.dial(dir)
	first := p.now.Load().leaf
	p.due = func(id *identity) bool { return id.leaf == first }
	lock := filepath.Join(dir, lockFile)
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := status(t, p); err != nil || p.now.Load().leaf != first || len(*warned) != 1 || !time.Now().Before(p.again) {
			t.Fatalf("%v, warned %v, again at %v", err, *warned, p.again)
		}
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if _, err := status(t, p); err != nil || p.now.Load().leaf != first {
		t.Errorf("before the pause was over: %v", err)
	}
	p.again = time.Time{}
	if _, err := status(t, p); err != nil || p.now.Load().leaf == first {
		t.Errorf("it isn't renewed: %v", err)
	}
}

// TestReplaceRoot: a device that was told of the next root goes on when it is in force, and then
// trusts it alone. One that wasn't told doesn't take the hub for its own.
func TestReplaceRoot(t *testing.T) {
	h := newHouse(t)
	told, away := h.pair("laptop"), h.pair("phone")
	p, warned := h.dial(told)
	first := read(t, told, rootsFile)
	replace := func(atOnce bool) hub.Authority {
		t.Helper()
		a, err := hub.ReplaceRoot.Do(t.Context(), h.hub, h.owner, hub.RootReplacement{AtOnce: atOnce})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	renew := func() {
		t.Helper()
		if _, err := p.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := status(t, p); err != nil { // the hub makes its certificate
		t.Fatal(err)
	}
	if a := replace(false); len(a.Roots) != 2 || a.Roots[1].State != "introduced" || a.BeginsAt == nil {
		t.Fatalf("%+v", a)
	}
	renew()
	both := read(t, told, rootsFile)
	if !bytes.HasPrefix(both, first) || len(both) <= len(first) {
		t.Error("the device wasn't told of the next root")
	}
	if a := replace(true); len(a.Roots) != 2 || a.Roots[0].State != "previous" || a.BeginsAt != nil {
		t.Fatalf("%+v", a)
	}
	if _, err := status(t, p); err != nil { // its certificate is of the old root
		t.Fatal(err)
	}
	renew()
	if got := read(t, told, rootsFile); !bytes.Equal(append(bytes.Clone(first), got...), both) {
		t.Error("the device still trusts the old root")
	}
	if q, _ := h.dial(told); q != nil {
		if _, err := status(t, q); err != nil {
			t.Error(err)
		}
	}
	if len(*warned) != 0 {
		t.Errorf("warned %v", *warned)
	}
	q, _ := h.dial(away)
	if _, err := status(t, q); fault.ReasonOf(err) != "peer_certificate_invalid" {
		t.Errorf("a device that wasn't told: %v", err)
	}
}

// TestRevoked: after a revocation each attempt is refused, with a reason, over whichever way the
// connection ended.
func TestRevoked(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	p, _ := h.dial(dir)
	if _, err := status(t, p); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RevokeDevice.Do(t.Context(), h.hub, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := status(t, p); fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "unauthenticated" {
			t.Fatalf("%v", err)
		}
	}
}

// TestForeign: a hub of another trust domain is refused, by its certificate and not by its address.
func TestForeign(t *testing.T) {
	mine, other := newHouse(t), newHouse(t)
	dir := mine.pair("laptop")
	other.pair("laptop") // so that it has an authority
	p, err := Dial(Config{Dir: dir, URL: other.url, Warn: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := status(t, p); fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "peer_certificate_invalid" {
		t.Errorf("%v", err)
	}
}

// TestFolder: parts that don't belong together, or that others may read, are refused.
func TestFolder(t *testing.T) {
	h := newHouse(t)
	a, b := h.pair("laptop"), h.pair("phone")
	for _, c := range []struct {
		name, reason string
		change       func(dir string) error
	}{
		{"none", "bad_file", func(dir string) error { return os.Remove(filepath.Join(dir, KeyFile)) }},
		{"key of another", "bad_file", func(dir string) error { return os.WriteFile(filepath.Join(dir, KeyFile), read(t, b, KeyFile), 0o600) }},
		{"chain of another", "bad_file", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, chainFile), read(t, b, chainFile), 0o600)
		}},
		{"no key", "bad_file", func(dir string) error { return os.WriteFile(filepath.Join(dir, KeyFile), []byte("x"), 0o600) }},
		{"text after", "bad_file", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, rootsFile), append(read(t, a, rootsFile), "x"...), 0o600)
		}},
		{"member", "bad_file", func(dir string) error { return os.WriteFile(filepath.Join(dir, hubFile), []byte(`{"x":1}`), 0o600) }},
		{"open key", "unsafe_file", func(dir string) error { return os.Chmod(filepath.Join(dir, KeyFile), 0o644) }},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		if err := os.CopyFS(dir, os.DirFS(a)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{KeyFile, chainFile, rootsFile, hubFile} {
			if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Dial(Config{Dir: dir}); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
		}
	}
	if _, err := Dial(Config{Dir: a}); err != nil {
		t.Error(err)
	}
}
