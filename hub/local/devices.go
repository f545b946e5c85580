package local

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// The acts in the journal about the authority and devices.
const (
	actAuthority     = "ca.create"
	actIssuer        = "ca.rotate"
	actDeviceEnrol   = "device.enrol"
	actDeviceRenew   = "device.renew"
	actDeviceRevoked = "device.revoke"
	actDeviceRemoved = "device.remove"
)

const (
	maxDevices     = 256 // of all principals; ended ones too, until they're removed
	maxDevicesEach = 64  // of one principal, so that none takes all ids
	// maxLeaves bounds the certificates that one device has at a time: the one in use, its
	// successor, and what a crash left.
	maxLeaves = 4
)

// deviceOperations returns the operations of devices.
func (h *Hub) deviceOperations() []hub.Entry {
	return []hub.Entry{
		hub.ListDevices.By(h.listDevices),
		hub.GetDevice.By(h.getDevice),
		hub.RevokeDevice.By(h.revokeDevice),
		hub.RemoveDevice.By(h.removeDevice),
		hub.RenewDevice.By(h.renewDevice),
	}
}

// devices are the paired devices. A device's authority is a token of the registry: minted for it,
// with its scopes, and its text thrown away. Whatever ends that token ends the device: its
// revocation, that of the token it was approved with, its principal's end. The registry's
// generation is the epoch of all of it, and an older store isn't taken back (rolled_back).
type devices struct {
	changing sync.Mutex // held through each change

	mu     sync.RWMutex
	byID   map[string]*store.Device // guarded by mu; values are replaced, never changed
	leaves map[canon.Digest]leaf    // certificates in force, by the SHA-256 of their DER; guarded by mu
	seen   map[string]time.Time     // not yet in the store; guarded by mu
	live   map[string]bool          // devices that had their authority at the last look; guarded by mu
	cut    func(device string)      // ends a device's connections; guarded by mu

	authority *ca.Authority // nil: there is none yet; set under both, so that either guards it
	roots     [][]byte      // what chains are checked against, immutable; guarded by mu

	own ownCertificate
}

// leaf says whose a certificate is.
type leaf struct {
	device  string
	expires time.Time
}

func newDevices() *devices {
	return &devices{byID: make(map[string]*store.Device), leaves: make(map[canon.Digest]leaf), seen: make(map[string]time.Time), live: make(map[string]bool), cut: func(string) {}}
}

// loadDevices reads what an earlier process left.
func (h *Hub) loadDevices(ctx context.Context) error {
	if ca.Exists(h.k.StateDir()) {
		a, err := ca.Open(h.k.StateDir(), ca.Options{Keys: h.k.KeyFiles()})
		if err != nil {
			return err
		}
		h.devices.use(a)
	}
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Device, error) { return tx.Devices() })
	if err != nil {
		return err
	}
	h.devices.mu.Lock()
	for i := range rows {
		h.devices.putLocked(&rows[i])
	}
	h.devices.mu.Unlock()
	h.reviewDevices()
	if err := h.settleEnrolment(ctx); err != nil { // the disk may be full: the next enrolment does it
		h.cfg.Log.Warn("settle an enrolment that a crash cut short", "error", err)
	}
	return nil
}

// dropLocked forgets a device.
func (ds *devices) dropLocked(id string) {
	for digest, l := range ds.leaves {
		if l.device == id {
			delete(ds.leaves, digest)
		}
	}
	delete(ds.byID, id)
	delete(ds.seen, id)
	delete(ds.live, id)
}

// putLocked makes a row count, and drops the certificates that there were of its device.
func (ds *devices) putLocked(d *store.Device) {
	for digest, l := range ds.leaves {
		if l.device == d.ID {
			delete(ds.leaves, digest)
		}
	}
	ds.byID[d.ID] = d
	for _, c := range d.Certificates {
		ds.leaves[c.Digest] = leaf{d.ID, c.Expires}
	}
}

// use takes an authority. The caller holds changing, or has the hub to itself.
func (ds *devices) use(a *ca.Authority) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.authority = a
	ds.roots = a.Accepted(time.Now())
}

func (ds *devices) find(id string) *store.Device {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.byID[id]
}

// OnDeviceEnd has f called with the id of each device that loses its authority or is replaced. f
// ends the device's connections. There is one f; it doesn't call the hub.
func (h *Hub) OnDeviceEnd(f func(device string)) {
	h.devices.mu.Lock()
	defer h.devices.mu.Unlock()
	h.devices.cut = f
}

// reviewDevices cuts off the devices that have lost their authority since the last look. It's
// called after each change of members and tokens that may take some away.
func (h *Hub) reviewDevices() {
	ds := h.devices
	ds.mu.Lock()
	cut := ds.cut
	var ended []string
	for id, d := range ds.byID {
		live := h.access.Live(access.Holder{Principal: d.Principal, Token: d.Token}) == nil
		if ds.live[id] && !live {
			ended = append(ended, id)
		}
		ds.live[id] = live
	}
	ds.mu.Unlock()
	for _, id := range ended {
		cut(id)
	}
}

// certifier returns the authority, and makes it the first time. The caller holds changing.
func (h *Hub) certifier(ctx context.Context, c hub.Caller) (*ca.Authority, error) {
	if h.devices.authority != nil {
		return h.devices.authority, nil
	}
	j, err := h.k.JournalStatus(ctx)
	if err != nil {
		return nil, err
	}
	a, err := ca.Create(ctx, h.k.StateDir(), j.Origin, time.Now(), ca.Options{Keys: h.k.KeyFiles()}, h.recorder(ctx, c, actAuthority, j.Origin))
	if err != nil {
		return nil, err
	}
	h.devices.use(a)
	return a, nil
}

// recorder records a change of the authority in the journal, before it counts.
func (h *Hub) recorder(ctx context.Context, c hub.Caller, act, domain string) ca.Record {
	return func(detail map[string]string) error {
		_, err := h.recordAs(ctx, c, act, domain, detail)
		return err
	}
}

// recordAs records an act of a caller, or of the daemon for the zero one.
func (h *Hub) recordAs(ctx context.Context, c hub.Caller, act, subject string, detail map[string]string) (uint64, error) {
	if c.User != "" {
		return h.record(ctx, c, act, subject, detail)
	}
	return h.k.Record(ctx, kernel.Act{Act: act, Principal: self(), Subject: subject, Detail: detail})
}

// issue certifies a key, after the changes of the authority that are due. The caller holds
// changing.
func (h *Hub) issue(ctx context.Context, c hub.Caller, csr []byte, kind, id string) (a *ca.Authority, chain [][]byte, cert store.Certificate, err error) {
	if a, err = h.certifier(ctx, c); err != nil {
		return nil, nil, cert, err
	}
	now := time.Now()
	if !h.cfg.Hold { // safe mode changes nothing, and a stranger's handshake comes here
		h.maintain(ctx, c, a, now)
	}
	if chain, err = a.Issue(csr, ca.Identity{Domain: a.Domain(), Kind: kind, ID: id}, now); err != nil {
		return nil, nil, cert, err
	}
	parsed, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, nil, cert, fault.New(fault.Internal, "internal", "issue certificate", err)
	}
	return a, chain, store.Certificate{Digest: canon.Digest(sha256.Sum256(chain[0])), Serial: fmt.Sprintf("%032x", parsed.SerialNumber), Expires: parsed.NotAfter}, nil
}

// Enrolment is a device that the caller approved.
type Enrolment struct {
	ID      string   // 1 to 64 of a-z, 0-9, '-' and '_'
	Name    string   // for people; "": the id
	Scopes  []string // some of the caller's
	CSR     []byte   // PKCS #10 in DER, for the device's key
	Replace bool     // the device of this id that there is
	// Waits, if not nil, reports whether the device still waits for its certificate. One that has gone
	// replaces no other.
	Waits func() bool
}

// errGone is the error of an enrolment whose device has gone.
func errGone() error {
	return fault.New(fault.Unavailable, "connection_lost", "enrol device", errors.New("the device has gone")).WithHint("begin anew: palyra devices pair")
}

// HasDevice reports whether there is a device of this id, in whatever state: a new one must then be
// said to replace it.
func (h *Hub) HasDevice(id string) bool { return h.devices.find(id) != nil }

// enrol makes a device of the caller: it acts as the caller's principal, within scopes that the
// caller holds. There is no way to make one for another principal. It returns the device, its
// certificate with the issuer's, and the trust bundle. A device that it replaces has lost its
// authority, and its connections are cut, before the new one has any.
func (h *Hub) enrol(ctx context.Context, c hub.Caller, e Enrolment) (d hub.Device, chain, roots [][]byte, err error) {
	const op = "enrol device"
	none := func(err error) (hub.Device, [][]byte, [][]byte, error) { return hub.Device{}, nil, nil, err }
	if e.Name == "" {
		e.Name = e.ID
	}
	if err := ca.CheckID(e.ID); err != nil {
		return none(fault.New(fault.Usage, "invalid_input", op, err))
	}
	digest, err := ca.KeyDigest(e.CSR)
	if err != nil {
		return none(err)
	}
	key, err := canon.ParseDigest("sha256:" + digest)
	if err != nil {
		return none(fault.New(fault.Internal, "internal", op, err))
	}
	scopes, err := access.ParseSet(e.Scopes)
	if err != nil {
		return none(err)
	}
	if err := h.room(c); err != nil {
		return none(err)
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	old := h.devices.find(e.ID)
	switch {
	case old != nil && (!e.Replace || !h.sees(c, old.Principal)):
		return none(fault.New(fault.Busy, "exists", op, fmt.Errorf("there is a device %q", e.ID)).
			WithHint("if this is the same device, or takes its place, say so: --replace; its certificates end"))
	case old == nil:
		if err := h.devices.room(c.User); err != nil {
			return none(err)
		}
	}
	if e.Waits != nil && !e.Waits() {
		return none(errGone())
	}
	if err := h.beginEnrolment(ctx, c.User, deviceTokenName(e.ID)); err != nil {
		return none(err)
	}
	h.cfg.TestOnlyStep("enrol:begun")
	_, t, err := h.access.Mint(ctx, holder(c), access.Request{Name: deviceTokenName(e.ID), Scopes: scopes, Lifetime: h.access.Longest()})
	if err != nil {
		return none(h.byRegistry(c, op, err))
	}
	h.cfg.TestOnlyStep("enrol:minted")
	row := &store.Device{ID: e.ID, Name: e.Name, Principal: c.User, Kind: ca.Device, Key: key, Token: t.ID, Created: time.Now().UTC()}
	a, chain, err := h.install(ctx, c, &e, row, old)
	if err != nil {
		_, gone := h.access.Revoke(context.WithoutCancel(ctx), holder(c), t.ID)
		return none(errors.Join(err, gone))
	}
	return h.deviceOf(row), chain, a.Roots(), nil
}

// TestOnlyEnrol is enrol, for the tests of transports.
func (h *Hub) TestOnlyEnrol(ctx context.Context, c hub.Caller, e Enrolment) (hub.Device, [][]byte, [][]byte, error) {
	return h.enrol(ctx, c, e)
}

// install ends the old device, issues the certificate of the new one, and makes it durable: first
// the act, then the row, and then it counts.
func (h *Hub) install(ctx context.Context, c hub.Caller, e *Enrolment, row, old *store.Device) (*ca.Authority, [][]byte, error) {
	a, chain, cert, err := h.issue(ctx, c, e.CSR, row.Kind, row.ID)
	if err != nil {
		return nil, nil, err
	}
	detail := map[string]string{"key": row.Key.String(), "serial": cert.Serial, "token": row.Token}
	h.cfg.TestOnlyStep("enrol:issued")
	if old != nil {
		if e.Waits != nil && !e.Waits() {
			return nil, nil, errGone()
		}
		if err := h.endDevice(ctx, c, old); err != nil {
			return nil, nil, err
		}
		h.cfg.TestOnlyStep("enrol:ended")
		detail["replaces"] = old.Key.String()
	}
	if _, err := h.record(ctx, c, actDeviceEnrol, row.ID, detail); err != nil {
		return nil, nil, err
	}
	h.cfg.TestOnlyStep("enrol:logged")
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.PutDevice(row, cert) }); err != nil {
		return nil, nil, err
	}
	h.cfg.TestOnlyStep("enrol:kept")
	row.Certificates = []store.Certificate{cert}
	h.devices.mu.Lock()
	h.devices.putLocked(row)
	h.devices.live[row.ID] = true
	delete(h.devices.seen, row.ID)
	h.devices.mu.Unlock()
	return a, chain, nil
}

// endDevice takes a device's authority for good and cuts its connections, whatever else fails.
func (h *Hub) endDevice(ctx context.Context, c hub.Caller, d *store.Device) error {
	var err error
	if t, ok := h.access.TokenOf(d.Token); ok && t.Revoked.IsZero() { // a forgotten one ended long ago
		_, err = h.access.Revoke(ctx, holder(c), d.Token)
	}
	h.reviewDevices()
	h.runs.Review(c.User) // what takes something away counts before the journal has it
	return err
}

// room returns fault.Unavailable "quota" if there is none for one more device of a principal.
func (ds *devices) room(principal string) error {
	const op = "enrol device"
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	own := 0
	for _, d := range ds.byID {
		if d.Principal == principal {
			own++
		}
	}
	switch {
	case own >= maxDevicesEach:
		return fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80q has %d devices, with those that were revoked", principal, own)).
			WithHint("forget some that have ended: palyra devices rm ID")
	case len(ds.byID) >= maxDevices:
		return fault.New(fault.Unavailable, "quota", op, fmt.Errorf("there are %d devices, with those that were revoked", len(ds.byID))).
			WithHint("forget some that have ended: palyra devices rm ID")
	}
	return nil
}

// deviceOf returns a device as clients see it.
func (h *Hub) deviceOf(d *store.Device) hub.Device {
	v := hub.Device{ID: d.ID, Name: d.Name, Principal: d.Principal, Kind: d.Kind, Key: d.Key.String(), Scopes: []string{}, State: hub.DeviceActive,
		Token: d.Token, Version: d.Version, Created: d.Created, Certificates: []hub.DeviceCertificate{}}
	if !d.Seen.IsZero() {
		v.Seen = &d.Seen
	}
	h.devices.mu.RLock()
	if at, ok := h.devices.seen[d.ID]; ok {
		v.Seen = &at
	}
	h.devices.mu.RUnlock()
	if t, ok := h.access.TokenOf(d.Token); ok {
		v.Expires = t.Expires
		for _, p := range t.Scopes.List() {
			v.Scopes = append(v.Scopes, string(p))
		}
		if !t.Revoked.IsZero() {
			v.State, v.Revoked = hub.DeviceRevoked, &t.Revoked
		}
	}
	switch {
	case !d.Revoked.IsZero():
		v.State, v.Revoked = hub.DeviceRevoked, &d.Revoked
	case v.State == hub.DeviceActive && h.access.Live(access.Holder{Principal: d.Principal, Token: d.Token}) != nil:
		v.State = hub.DeviceExpired
	}
	if v.State != hub.DeviceActive {
		return v
	}
	now := h.cfg.Clock.Latest()
	for _, c := range d.Certificates {
		if now.Before(c.Expires) {
			v.Certificates = append(v.Certificates, hub.DeviceCertificate{Serial: c.Serial, Digest: c.Digest.String(), Expires: c.Expires})
		}
	}
	return v
}

func (h *Hub) listDevices(_ context.Context, c hub.Caller, _ hub.None) (hub.Page[hub.Device], error) {
	h.devices.mu.RLock()
	rows := make([]*store.Device, 0, len(h.devices.byID))
	for _, d := range h.devices.byID {
		if h.sees(c, d.Principal) {
			rows = append(rows, d)
		}
	}
	h.devices.mu.RUnlock()
	slices.SortFunc(rows, func(a, b *store.Device) int { return strings.Compare(a.ID, b.ID) })
	p := hub.Page[hub.Device]{Items: make([]hub.Device, 0, len(rows))}
	for _, d := range rows {
		p.Items = append(p.Items, h.deviceOf(d))
	}
	return p, nil
}

// device returns a device that the caller sees.
func (h *Hub) device(c hub.Caller, id string) (*store.Device, error) {
	if d := h.devices.find(id); d != nil && h.sees(c, d.Principal) {
		return d, nil
	}
	return nil, fault.New(fault.NotFound, "not_found", "look up device", fmt.Errorf("%.80q does not exist", id)).WithHint(fault.Lists("device"))
}

func (h *Hub) getDevice(_ context.Context, c hub.Caller, id string) (hub.Device, error) {
	d, err := h.device(c, id)
	if err != nil {
		return hub.Device{}, err
	}
	return h.deviceOf(d), nil
}

// revokeDevice takes effect at once, also while another change waits for the journal or the disk.
// Revoking twice is no error.
func (h *Hub) revokeDevice(ctx context.Context, c hub.Caller, id string) (hub.Device, error) {
	if d, err := h.device(c, id); err == nil && d.Revoked.IsZero() {
		if err := h.endDevice(ctx, c, d); err != nil {
			return hub.Device{}, h.byRegistry(c, "revoke device", err)
		}
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	d, err := h.device(c, id)
	if err != nil {
		return hub.Device{}, err
	}
	if !d.Revoked.IsZero() {
		return h.deviceOf(d), nil
	}
	if err := h.endDevice(ctx, c, d); err != nil {
		return hub.Device{}, h.byRegistry(c, "revoke device", err)
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := h.record(ctx, c, actDeviceRevoked, id, map[string]string{"key": d.Key.String()}); err != nil {
		return hub.Device{}, err
	}
	now := *d
	now.Revoked, now.Certificates, now.Version = time.Now().UTC(), nil, d.Version+1
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.RevokeDevice(id, now.Revoked) }); err != nil {
		return hub.Device{}, err
	}
	h.devices.mu.Lock()
	h.devices.putLocked(&now)
	h.devices.mu.Unlock()
	return h.deviceOf(&now), nil
}

// removeDevice forgets a device that has ended. The act comes first: a crash leaves the row, which
// can be removed again.
func (h *Hub) removeDevice(ctx context.Context, c hub.Caller, id string) (hub.None, error) {
	const op = "remove device"
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	d, err := h.device(c, id)
	if err != nil {
		return hub.None{}, err
	}
	if v := h.deviceOf(d); v.State == hub.DeviceActive {
		return hub.None{}, fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("%.80q is active", id)).
			WithHint("end it first: palyra devices revoke ID")
	}
	if err := h.endDevice(ctx, c, d); err != nil { // one that has expired, so that it stays so
		return hub.None{}, h.byRegistry(c, op, err)
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := h.record(ctx, c, actDeviceRemoved, id, map[string]string{"key": d.Key.String(), "principal": d.Principal}); err != nil {
		return hub.None{}, err
	}
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.RemoveDevice(id) }); err != nil {
		return hub.None{}, err
	}
	h.devices.mu.Lock()
	defer h.devices.mu.Unlock()
	h.devices.dropLocked(id)
	return hub.None{}, nil
}

// renewDevice gives the device that asks its next certificate, for the key that it has. Another key
// is another device: it is paired.
func (h *Hub) renewDevice(ctx context.Context, c hub.Caller, in hub.DeviceRenewal) (hub.DeviceChain, error) {
	const op = "renew certificate"
	if c.Device == "" || c.Device != in.ID {
		return hub.DeviceChain{}, fault.New(fault.Denied, "permission_denied", op, errors.New("a device renews its own certificate, with it")).
			WithHint("connect as that device: --device DIR")
	}
	digest, err := ca.KeyDigest(in.CSR)
	if err != nil {
		return hub.DeviceChain{}, err
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	d := h.devices.find(in.ID)
	if d == nil || d.Token != c.Token || !d.Revoked.IsZero() { // since it was authenticated
		return hub.DeviceChain{}, unauthenticated()
	}
	if err := h.access.Live(holder(c)); err != nil {
		return hub.DeviceChain{}, err
	}
	if d.Key.Hex() != digest {
		return hub.DeviceChain{}, fault.New(fault.Usage, "invalid_input", op, errors.New("the request is for another key than the device's")).
			WithHint("a device with a new key is paired again")
	}
	next := *d
	now := h.cfg.Clock.Latest()
	next.Certificates = slices.DeleteFunc(slices.Clone(d.Certificates), func(c store.Certificate) bool { return !now.Before(c.Expires) })
	if len(next.Certificates) >= maxLeaves {
		return hub.DeviceChain{}, fault.New(fault.Unavailable, "too_many", op, fmt.Errorf("it has %d certificates that are still good", maxLeaves)).
			WithHint("use the newest one; one is due at two thirds of the life of the one before")
	}
	a, chain, cert, err := h.issue(ctx, c, in.CSR, d.Kind, d.ID)
	if err != nil {
		return hub.DeviceChain{}, err
	}
	if _, err := h.record(ctx, c, actDeviceRenew, d.ID, map[string]string{"serial": cert.Serial}); err != nil {
		return hub.DeviceChain{}, err
	}
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.AddCertificate(d, cert) }); err != nil {
		return hub.DeviceChain{}, err
	}
	next.Certificates = append(next.Certificates, cert)
	h.devices.mu.Lock()
	h.devices.putLocked(&next)
	h.devices.mu.Unlock()
	return hub.DeviceChain{Chain: chain, Roots: a.Roots(), Links: a.Links(), Renew: ca.RenewAt(cert.Expires.Add(-ca.LeafLife), cert.Expires)}, nil
}

// authenticateDevice finds the device whose certificate a connection showed. TLS has proved that it
// has the key, and the certificate is, byte for byte, one that this hub issued and that is in
// force: a leaf by a thief of the issuer's key isn't known here. It takes a lookup for each
// request.
func (h *Hub) authenticateDevice(chain [][]byte, out *hub.Caller) error {
	if len(chain) == 0 {
		return errors.New("no certificate")
	}
	now := h.cfg.Clock.Latest()
	ds := h.devices
	digest := canon.Digest(sha256.Sum256(chain[0]))
	ds.mu.RLock()
	l, known := ds.leaves[digest]
	d := ds.byID[l.device]
	seen := ds.seen[l.device]
	ds.mu.RUnlock()
	switch {
	case !known || d == nil:
		return errors.New("the certificate is not one in force")
	case !now.Before(l.expires):
		return errors.New("the certificate has expired")
	}
	who := access.Holder{Principal: d.Principal, Token: d.Token}
	if err := h.access.Live(who); err != nil {
		return err
	}
	if now.Sub(seen) > time.Minute {
		ds.mu.Lock()
		ds.seen[d.ID] = now.UTC()
		ds.mu.Unlock()
	}
	out.User, out.Token, out.Scopes, out.Device, out.Until = d.Principal, d.Token, scopesOf(h.access.Permissions(who)), d.ID, l.expires
	return nil
}

// flushDevices makes the last contacts durable.
func (h *Hub) flushDevices(ctx context.Context) error {
	h.devices.mu.RLock()
	seen := make(map[string]time.Time, len(h.devices.seen))
	for id, at := range h.devices.seen {
		if d := h.devices.byID[id]; d != nil && at.After(d.Seen) {
			seen[id] = at
		}
	}
	h.devices.mu.RUnlock()
	if len(seen) == 0 {
		return nil
	}
	err := h.st.Update(ctx, func(tx *store.Tx) error {
		for id, at := range seen {
			if err := tx.SeeDevice(id, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.devices.mu.Lock()
	defer h.devices.mu.Unlock()
	for id, at := range seen {
		if d := h.devices.byID[id]; d != nil {
			n := *d
			n.Seen = at
			h.devices.byID[id] = &n
		}
	}
	return nil
}
