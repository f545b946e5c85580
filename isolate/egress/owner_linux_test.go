package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// TestSilentNames has calls ask for names whose servers never answer. A call has an eighth of the
// lookups and an owner half of them, so neither keeps others from theirs.
func TestSilentNames(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}})
	b := newBroker(t, Config{Nameserver: ns.at, Lookups: 8})
	hold := make(chan struct{})
	defer close(hold)
	ns.mu.Lock()
	ns.hold, ns.soon = hold, "a.example"
	ns.mu.Unlock()
	begin := func(owner string) *call {
		b.owner = owner
		return b.begin(9, wire.Limits{}, "*.silent.example:443", "a.example:443")
	}
	calls := 0
	silent := func(c *call, names int) { // each of its own: lookups of one name at one time are shared
		t.Helper()
		calls++
		var conn net.Conn
		var err error
		c.in(func() { conn, err = net.Dial("udp", handover.Resolver+":53") })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		for i := range names {
			if _, err := conn.Write(query(fmt.Sprintf("n%d-%d.silent.example", calls, i), dns.A)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 * min(1, max(0, 5-calls)) { // A and AAAA of its first lookup, unless its owner has four
			<-ns.held
		}
	}
	answers := func(c *call) {
		t.Helper()
		began := time.Now()
		if c.address("a.example", dns.A); time.Since(began) >= 5*time.Second { // Go's resolver tries a silent server twice for as long
			t.Error("answered when silent names had given up")
		}
	}
	first, second := begin("mallory"), begin("mallory")
	silent(first, 8)
	answers(second) // another call of the same owner
	silent(second, 8)
	for range 5 {
		silent(begin("mallory"), 1)
	}
	answers(begin("alice"))
}

// TestOwnersShare: half of the sessions are one owner's.
func TestOwnersShare(t *testing.T) {
	b := newBroker(t, Config{Sessions: 4})
	open := func(owner string) error {
		s, err := b.client.Open(t.Context(), &Order{Owner: owner})
		if err == nil {
			t.Cleanup(func() { s.Close() })
		}
		return err
	}
	if err := errors.Join(open("mallory"), open("mallory")); err != nil {
		t.Fatal(err)
	}
	if err := open("mallory"); fault.ReasonOf(err) != "budget" {
		t.Errorf("a third of four: %v, want budget", err)
	}
	if err := open("alice"); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// TestSilentHosts: addresses that are tried beside each other are counted, and given back.
func TestSilentHosts(t *testing.T) {
	var addrs []netip.Addr
	for i := range 4 {
		a := netip.AddrFrom4([4]byte{5, 5, 0, byte(20 + i)})
		fullQueue(t, a)
		addrs = append(addrs, a)
	}
	files := budget.New(budget.Limits{Name: "egress", Total: 2})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan string)
	go func() {
		_, _, outcome := dial(ctx, addrs, 443, files, budget.Owner{})
		ended <- outcome
	}()
	for files.Refused() == 0 { // the fourth has none, and waits
		select {
		case outcome := <-ended:
			t.Fatalf("ended (%s) with all tried at once", outcome)
		default:
		}
	}
	if n := files.Held(); n != 2 {
		t.Errorf("%d descriptors are counted, want 2", n)
	}
	cancel()
	if outcome := <-ended; outcome != evidence.ConnEnded {
		t.Errorf("outcome %q", outcome)
	}
	if n := files.Held(); n != 0 {
		t.Errorf("%d descriptors are still counted", n)
	}
}

// fullQueue listens at port 443 of an address where further connections get no answer.
func fullQueue(t *testing.T, a netip.Addr) {
	t.Helper()
	full, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(full) })
	at := &syscall.SockaddrInet4{Port: 443, Addr: a.As4()}
	if err := errors.Join(syscall.Bind(full, at), syscall.Listen(full, 0)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		syscall.Connect(fd, at)
	}
}
