package apitest

import (
	"context"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// Pairing is the id of the one pairing that there is.
var Pairing = ident.Pairing + "_" + strings.Repeat("0123456789abcdef", 2)

// PairingDigits are those of its device.
const PairingDigits = "152278"

func pairing(id, state string) (hub.Pairing, error) {
	if id != Pairing {
		return hub.Pairing{}, fault.New(fault.NotFound, "not_found", "find pairing", nil)
	}
	return hub.Pairing{ID: id, Principal: "uid:0", State: state, Device: "laptop", Kind: "cli", Scopes: []string{"session.read"}}, nil
}

func (h *Hub) beginPairing(_ context.Context, c hub.Caller, _ hub.None) (hub.PairingCode, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	p, err := pairing(Pairing, "open")
	return hub.PairingCode{Pairing: p, Code: "AAAA-BBBB", URI: "PALYRA-PAIR:AAAABBBB", Address: "192.0.2.1:7445"}, err
}

func (h *Hub) listPairings(context.Context, hub.Caller, hub.None) (hub.Page[hub.Pairing], error) {
	p, err := pairing(Pairing, "pending")
	return hub.Page[hub.Pairing]{Items: []hub.Pairing{p}}, err
}

func (h *Hub) getPairing(_ context.Context, _ hub.Caller, q hub.PairingQuery) (hub.Pairing, error) {
	return pairing(q.ID, "pending")
}

func (h *Hub) approvePairing(_ context.Context, _ hub.Caller, in hub.PairingApproval) (hub.Pairing, error) {
	if in.Digits != PairingDigits {
		return hub.Pairing{}, fault.New(fault.Denied, "pairing_over", "approve pairing", nil)
	}
	return pairing(in.ID, "issued")
}

func (h *Hub) denyPairing(_ context.Context, _ hub.Caller, id string) (hub.Pairing, error) {
	return pairing(id, "refused")
}
