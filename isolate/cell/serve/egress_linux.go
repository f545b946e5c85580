package serve

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"palyra/call/egress"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/egress/handover"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// A call that may reach listed hosts has a network namespace like a loopback call's, in which
// further addresses lead to the loopback interface. palyra-cell makes sockets in it, hands them to
// palyra-egress and keeps none: from then on palyra-egress alone can listen with them, as with
// others only programs of the call can. Nothing else of the namespace leaves the cell, so
// palyra-egress can't enter it, look into it or change it.
//
// palyra-cell's user namespace owns the network namespace, which is gone with its last process and
// the last of those sockets. The sockets are palyra-egress's: so is what waits in them and in the
// connections that it accepts, at most native.MaxQueue in each direction of each. It is charged to
// the cgroup of palyra-egress, which bounds its connections. A connection that it hasn't accepted
// is the call's, as in every cell (tally.connections), and so is what waits in the program's own
// sockets.

// egressPatience bounds how long palyra-egress may take for its answer.
const egressPatience = 5 * time.Second

const egressOp = "make the network namespace of a cell with egress"

// makeEgress moves the thread into a new network namespace for the call and hands sockets of it
// over. network says how to call back.
func (r *run) makeEgress(t *thread) (back func() error, err error) {
	if err := t.enterVoid(); err != nil { // without the void one there is no way back
		return nil, err
	}
	if err := r.furnishEgress(t); err != nil {
		return nil, errors.Join(err, t.leaveNetwork())
	}
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkEgress}
	return t.leaveNetwork, nil
}

func (r *run) furnishEgress(t *thread) error {
	fail := func(err error) error { return refuse("network_namespace", egressOp, err) }
	if err := t.makeLoopback(append(slices.Clone(native.Buffers[:]), native.FreePorts)); err != nil {
		return fail(err)
	}
	six, err := sys.HasIPv6()
	if err != nil {
		return fail(err)
	}
	local := egressPrefixes(r.spec.Egress, six)
	if err := sys.AddLocal(local); err != nil {
		return fail(err)
	}
	r.local = nil
	for _, p := range local {
		r.local = append(r.local, localText(p))
	}
	slices.Sort(r.local)
	n := network{}
	if n.file, n.id, err = sys.Network(); err != nil {
		return fail(err)
	}
	n.close() // the cell keeps it alive, and until it is there the thread
	r.net.id = n.id
	if r.files.egress < 0 { // a plan
		return nil
	}
	return r.handSockets(r.spec.Egress.Sockets, six)
}

// egressPrefixes are the addresses that lead to palyra-egress: those that stand for names, and
// each that the program may name itself. Without IPv6 there are none of it.
func egressPrefixes(e *isolate.Egress, six bool) (local []netip.Prefix) {
	all := []netip.Prefix{egress.Inside4, egress.Inside6}
	for _, text := range e.Addresses { // isolate.CheckEgress has parsed them
		a := netip.MustParseAddr(text)
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Addr().Is6() && !six })
}

// localText is what evidence calls such addresses.
func localText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// handSockets makes sockets in the thread's network namespace and sends them to palyra-egress,
// which may be gone, or not reading: neither makes this wait. They are open in palyra-cell only
// meanwhile, and those of one call at a time: at most 513 descriptors.
func (r *run) handSockets(n int, six bool) error {
	r.s.handing.Lock()
	defer r.s.handing.Unlock()
	s := new(handover.Sockets)
	defer s.Close()
	var err error
	if s.UDP, err = sys.InetSocket(syscall.AF_INET, syscall.SOCK_DGRAM, "egress"); err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", egressOp, err)
	}
	for _, k := range [...]struct {
		family int
		there  bool
	}{{syscall.AF_INET, true}, {syscall.AF_INET6, six}} {
		for range n {
			if !k.there {
				continue
			}
			f, err := sys.InetSocket(k.family, syscall.SOCK_STREAM, "egress")
			if err != nil {
				return fault.New(fault.Unavailable, "resource_exhausted", egressOp, err)
			}
			if k.family == syscall.AF_INET {
				s.TCP4 = append(s.TCP4, f)
			} else {
				s.TCP6 = append(s.TCP6, f)
			}
		}
	}
	conn, err := sys.Borrow(r.files.egress, "egress")
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", egressOp, err)
	}
	defer conn.Close()
	switch err := handover.Send(conn, s); {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ETOOMANYREFS), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		return fault.New(fault.Unavailable, "resource_exhausted", egressOp, err)
	case err != nil:
		return egressLost(err)
	}
	return nil
}

func egressLost(err error) error {
	return fault.New(fault.Refused, "egress_lost", "hand a cell's sockets to palyra-egress", err)
}

// awaitEgress waits at the gate until palyra-egress has taken the sockets: for its answer, the end
// of the call or egressPatience.
func (p *process) awaitEgress() error {
	if p.spec.Egress == nil {
		return nil
	}
	ended, answered, err := sys.WaitPidfdOr(p.pidfd, p.files.egress, p.call.left(egressPatience))
	switch {
	case err != nil:
		return err
	case ended: // it was cancelled
		return errors.New("the child ended before the gate")
	case !answered && p.call.left(time.Hour) == 0:
		p.call.late = true
		return errors.New("the deadline passed before the gate")
	case !answered:
		return egressLost(fmt.Errorf("no answer within %v", egressPatience))
	}
	b := make([]byte, handover.MaxAnswer+1)
	n, _, err := sys.ReceivePacket(p.files.egress, b, nil)
	if err == nil && n == 0 {
		err = errors.New("it is gone")
	}
	if err == nil {
		err = handover.ParseAnswer(b[:n])
	}
	if err != nil {
		return egressLost(err)
	}
	return nil
}
