package apitest

import (
	"context"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// Device is the one device that a Hub has.
const Device = "laptop"

func aDevice(id string) (hub.Device, error) {
	if id != Device {
		return hub.Device{}, fault.New(fault.NotFound, "not_found", "look up device", nil).WithHint(fault.Lists("device"))
	}
	at := time.Unix(1e9, 0).UTC()
	return hub.Device{ID: id, Name: id, Principal: "uid:0", Kind: "device", Key: "sha256:00", Scopes: []string{"run.start"}, State: hub.DeviceActive, Token: "tok_00", Version: 1,
		Created: at, Expires: at, Certificates: []hub.DeviceCertificate{{Serial: "40", Digest: "sha256:01", Expires: at}}}, nil
}

func (h *Hub) listDevices(context.Context, hub.Caller, hub.None) (hub.Page[hub.Device], error) {
	d, err := aDevice(Device)
	return hub.Page[hub.Device]{Items: []hub.Device{d}}, err
}

func (h *Hub) getDevice(_ context.Context, _ hub.Caller, id string) (hub.Device, error) {
	return aDevice(id)
}

func (h *Hub) revokeDevice(_ context.Context, _ hub.Caller, id string) (hub.Device, error) {
	d, err := aDevice(id)
	at := time.Unix(1e9+1, 0).UTC()
	d.State, d.Revoked, d.Certificates = hub.DeviceRevoked, &at, []hub.DeviceCertificate{}
	return d, err
}

func (h *Hub) removeDevice(_ context.Context, _ hub.Caller, id string) (hub.None, error) {
	_, err := aDevice(id)
	return hub.None{}, err
}

func (h *Hub) renewDevice(_ context.Context, _ hub.Caller, in hub.DeviceRenewal) (hub.DeviceChain, error) {
	_, err := aDevice(in.ID)
	return hub.DeviceChain{Chain: [][]byte{in.CSR, {2}}, Roots: [][]byte{{3}}, Renew: time.Unix(1e9, 0).UTC()}, err
}

func (h *Hub) getAuthority(context.Context, hub.Caller, hub.None) (hub.Authority, error) {
	at := time.Unix(1e9, 0).UTC()
	return hub.Authority{Domain: "a.b", Roots: []hub.AuthorityRoot{{Digest: "sha256:00", State: "in_force", NotBefore: at, NotAfter: at}}}, nil
}

func (h *Hub) replaceRoot(ctx context.Context, c hub.Caller, in hub.RootReplacement) (hub.Authority, error) {
	a, err := h.getAuthority(ctx, c, hub.None{})
	at := time.Unix(1e9+86400, 0).UTC()
	next := hub.AuthorityRoot{Digest: "sha256:01", State: "introduced", NotBefore: at, NotAfter: at}
	if in.AtOnce {
		a.Roots[0].State, next.State = "previous", "in_force"
	} else {
		a.BeginsAt = &at
	}
	a.Roots = append(a.Roots, next)
	return a, err
}

// openConsole gives a code that is good for nothing.
func (h *Hub) openConsole(context.Context, hub.Caller, hub.None) (hub.ConsoleCode, error) {
	return hub.ConsoleCode{URL: "http://localhost:7142/enter?code=c", Code: "c", Expires: time.Now().Add(time.Minute)}, nil
}

// Passkey is the id of the one passkey that a Hub has.
const Passkey = "psk_0123456789abcdef0123456789abcdef"

func (h *Hub) listPasskeys(context.Context, hub.Caller, hub.None) (hub.Page[hub.Passkey], error) {
	return hub.Page[hub.Passkey]{Items: []hub.Passkey{{ID: Passkey, Name: "laptop", Principal: "uid:0", State: "active", Created: time.Unix(1e9, 0).UTC()}}}, nil
}

func (h *Hub) revokePasskey(ctx context.Context, c hub.Caller, id string) (hub.Passkey, error) {
	if id != Passkey {
		return hub.Passkey{}, fault.New(fault.NotFound, "not_found", "look up passkey", nil).WithHint(fault.Lists("passkey"))
	}
	p, err := h.listPasskeys(ctx, c, hub.None{})
	p.Items[0].State = "revoked"
	return p.Items[0], err
}
