package isolate

import (
	"errors"
	"fmt"
	"net/netip"

	"palyra/call/egress"
	"palyra/isolate/egress/handover"
	"palyra/isolate/tier"
)

// Egress is what palyra-cell must know of a call with NetworkEgress. It doesn't know the rules:
// palyra-egress does, which has the sockets.
type Egress struct {
	// Addresses are literal addresses that the program may name: canonical, sorted as text. Each is
	// an address of the cell's loopback interface, so that palyra-egress can listen there.
	Addresses []string `json:"addresses,omitempty"`
	// Sockets is how many sockets for TCP over IPv4 palyra-egress gets, and how many over IPv6. Each
	// serves one address and port at a time.
	Sockets int `json:"sockets"`
	// Roots says that the program is to trust Files.Roots, a certificate authority of the call's own.
	Roots bool `json:"roots,omitempty"`
}

// Bounds of an Egress.
const (
	MaxEgressAddresses = 64
	MaxEgressSockets   = handover.MaxTCP
)

// CheckEgress returns an error unless a tier has a network, and an Egress comes with NetworkEgress
// and with no other network.
func CheckEgress(t tier.Tier, network string, e *Egress) error {
	switch {
	case network != NetworkEgress && e == nil:
		return nil
	case network != NetworkEgress:
		return fmt.Errorf("network %q has no egress", network)
	case e == nil:
		return errors.New("the network egress without its sockets and addresses")
	case t != tier.C:
		return fmt.Errorf("tier %v has no network %q", t, network)
	case e.Sockets < 1 || e.Sockets > MaxEgressSockets:
		return fmt.Errorf("%d sockets for egress: want 1 to %d", e.Sockets, MaxEgressSockets)
	case len(e.Addresses) > MaxEgressAddresses:
		return fmt.Errorf("%d addresses for egress, at most %d", len(e.Addresses), MaxEgressAddresses)
	}
	for i, text := range e.Addresses {
		if err := checkEgressAddress(text); err != nil {
			return fmt.Errorf("address %q for egress: %w", text, err)
		}
		if i > 0 && e.Addresses[i-1] >= text {
			return errors.New("addresses for egress are not sorted, or one is given twice")
		}
	}
	return nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func checkEgressAddress(text string) error {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.String() != text || a.Is4In6() || a.Zone() != "":
		return errors.New("it's no address in canonical form")
	case a.IsUnspecified() || a.IsMulticast() || a == broadcast:
		return errors.New("no single host has it")
	case a.IsLoopback():
		return errors.New("it's the program's own")
	case a.Is6() && a.IsLinkLocalUnicast():
		return errors.New("it means nothing without an interface")
	case egress.Inside4.Contains(a) || egress.Inside6.Contains(a):
		return errors.New("it lies among those that stand for names")
	}
	return nil
}
