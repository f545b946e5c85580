package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"palyra/internal/budget"
	"palyra/isolate/evidence"
)

// The pace of happy eyeballs, RFC 8305 §8.
const (
	nextAttempt = 250 * time.Millisecond
	oneAttempt  = 10 * time.Second
	allAttempts = 30 * time.Second
	mostDialed  = 16 // addresses of one name
)

// interleave puts addresses of the two families in turn, beginning with that of the first.
func interleave(addrs []netip.Addr) []netip.Addr {
	var first, second, out []netip.Addr
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return out
}

type attempt struct {
	conn *net.TCPConn
	addr netip.Addr
	err  error
}

// dial connects to one of addrs, which were checked, and returns which. It begins with the first
// and goes on to the next when one has failed or is slow. Nothing of it is left when it returns. On
// error it returns the outcome. The caller has counted one descriptor; attempts beside others take
// further ones of files, and wait for those while there is none.
func dial(ctx context.Context, addrs []netip.Addr, port uint16, files *budget.Pool, owner budget.Owner) (*net.TCPConn, netip.Addr, string) {
	ctx, cancel := context.WithTimeout(ctx, allAttempts)
	defer cancel()
	addrs = interleave(addrs[:min(len(addrs), mostDialed)])
	ended := make(chan attempt, len(addrs))
	pause := time.NewTimer(0)
	defer pause.Stop()
	begun, running := 0, 0
	var won *attempt
	var failed []error
	var beside []*budget.Hold
	defer func() {
		for _, h := range beside {
			h.Release()
		}
	}()
	next := func() {
		if running > 0 {
			h, err := files.Take(owner, 1)
			if err != nil {
				pause.Reset(nextAttempt)
				return
			}
			beside = append(beside, h)
		}
		to := addrs[begun]
		begun, running = begun+1, running+1
		pause.Reset(nextAttempt)
		go func() { ended <- dialOne(ctx, to, port) }()
	}
	for won == nil && (running > 0 || begun < len(addrs)) && ctx.Err() == nil {
		select {
		case <-pause.C:
			if begun < len(addrs) {
				next()
			}
		case a := <-ended:
			running--
			if a.err == nil {
				won = &a
				break
			}
			if len(beside) > 0 {
				beside[0].Release()
				beside = beside[1:]
			}
			if failed = append(failed, a.err); begun < len(addrs) {
				next()
			}
		case <-ctx.Done():
		}
	}
	late := ctx.Err()
	cancel()
	for ; running > 0; running-- {
		if a := <-ended; a.err == nil && won == nil {
			won = &a
		} else if a.err == nil {
			a.conn.Close()
		}
	}
	if won != nil {
		return won.conn, won.addr, ""
	}
	return nil, netip.Addr{}, dialOutcome(failed, late)
}

func dialOne(ctx context.Context, to netip.Addr, port uint16) attempt {
	d := net.Dialer{Timeout: oneAttempt, ControlContext: func(_ context.Context, _, address string, c syscall.RawConn) error {
		if address != netip.AddrPortFrom(to, port).String() {
			return errors.New("palyra-egress: internal error: connecting to another address than the one checked")
		}
		var err error
		cerr := c.Control(func(fd uintptr) { err = boundBuffers(int(fd)) })
		return errors.Join(cerr, err)
	}}
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, port).String())
	if err != nil {
		return attempt{addr: to, err: err}
	}
	return attempt{c.(*net.TCPConn), to, nil} // what "tcp" is
}

// boundBuffers bounds what a socket of a host holds.
func boundBuffers(fd int) error {
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP, window); err != nil {
		return os.NewSyscallError("setsockopt TCP_WINDOW_CLAMP", err)
	}
	return os.NewSyscallError("setsockopt TCP_NOTSENT_LOWAT", syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, tcpNotSentLowat, notSent))
}

// tcpNotSentLowat is TCP_NOTSENT_LOWAT of linux/tcp.h.
const tcpNotSentLowat = 25

// dialOutcome says in one word why no address was connected.
func dialOutcome(failed []error, late error) string {
	if errors.Is(late, context.Canceled) {
		return evidence.ConnEnded
	}
	refused, slow := 0, 0
	for _, err := range failed {
		var timeout interface{ Timeout() bool }
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			refused++
		case errors.As(err, &timeout) && timeout.Timeout():
			slow++
		}
	}
	switch {
	case len(failed) == 0 && late != nil || slow > 0 && slow == len(failed) || late != nil && slow+refused == len(failed) && slow > 0:
		return evidence.ConnTimedOut
	case refused > 0 && refused == len(failed):
		return evidence.ConnRefused
	}
	return evidence.ConnUnreachable
}
