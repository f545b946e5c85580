package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
)

// TestLookupEnds: what a look-up has open is closed with its call, whether the server answers or not.
func TestLookupEnds(t *testing.T) {
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r := newResolver(netip.MustParseAddrPort(silent.LocalAddr().String()))
	ctx, cancel := context.WithCancel(t.Context())
	c, err := r.dial(ctx, "udp4", "192.0.2.1:53")
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr().String() != silent.LocalAddr().String() {
		t.Errorf("%s was asked", c.RemoteAddr())
	}
	cancel()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) { // else it waits for ever
		t.Errorf("the socket after the end: %v", err)
	}
}
