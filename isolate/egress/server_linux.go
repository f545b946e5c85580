package egress

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	rule "palyra/call/egress"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate/egress/sealed"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// server is what all sessions share.
type server struct {
	cfg      Config
	names    *resolver
	sessions *budget.Pool
	open     *budget.Pool
	files    *budget.Pool
	lookups  *budget.Pool
	bulks    *budget.Pool
	// inspected counts memory, in bytes.
	inspected *budget.Pool
	share     int // of lookups, that one call may have under way
}

// pool returns the account of something of which there are total. The calls of one owner have at
// most half of them, and an eighth is for owners with the reserve.
func pool(total, line int) *budget.Pool {
	return budget.New(budget.Limits{Name: "egress", Total: int64(total), Each: int64(max(1, total/2)), Reserve: int64(total / 8), Line: line})
}

// waiting is how many lookups of all calls may wait for others to end.
const waiting = 1024

func newServer(c Config) (*server, error) {
	if c.Descriptors == 0 {
		var l syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
			return nil, os.NewSyscallError("getrlimit", err)
		}
		c.Descriptors = int(min(l.Cur, 1<<20) / 4 * 3)
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	if c.Roots == nil {
		c.Roots = x509.NewCertPool()
	}
	lookups := cmp.Or(c.Lookups, 64)
	return &server{cfg: c, names: newResolver(c.Nameserver), sessions: pool(cmp.Or(c.Sessions, 256), 0), open: pool(cmp.Or(c.Open, 1536), 0),
		files: pool(c.Descriptors, 0), lookups: pool(lookups, waiting), bulks: pool(bulks, 0), inspected: pool(inspectedMemory, waiting), share: max(1, lookups/8)}, nil
}

// Serve serves calls until the other side of conn, a control connection, is closed or ctx is done.
// Then it ends all sessions, and returns when nothing of them is left. It takes conn over.
func Serve(ctx context.Context, conn *net.UnixConn, c Config) error {
	defer conn.Close()
	s, err := newServer(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer cancel()
	buf, oob := make([]byte, wire.MaxRequest+1), make([]byte, syscall.CmsgSpace(4*(wire.Descriptors+1)))
	for {
		n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF), err == nil && n == 0 && oobn == 0:
			return nil
		case err != nil:
			return fmt.Errorf("receive an order: %w", err)
		}
		r, err := s.receive(buf[:n], oob[:oobn], flags)
		if err != nil {
			c.logf("an order was dropped: %v", err)
			continue
		}
		sessions.Go(func() { r.serve(ctx) })
	}
}

func (c *Config) logf(format string, args ...any) {
	if c.Log != nil {
		c.Log(fmt.Sprintf(format, args...))
	}
}

// request is an order with its two descriptors, which it owns.
type request struct {
	s    *server
	text []byte
	conn *net.UnixConn
	cell *os.File
}

// receive takes the descriptors of a message. Without the right ones no one could be answered.
func (s *server) receive(text, oob []byte, flags int) (_ *request, err error) {
	var fds []int
	defer func() {
		if err != nil {
			for _, fd := range fds {
				syscall.Close(fd)
			}
		}
	}()
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		got, err := syscall.ParseUnixRights(&messages[i])
		if err == nil {
			fds = append(fds, got...)
		}
	}
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		return nil, fmt.Errorf("it is beyond %d bytes or %d descriptors", wire.MaxRequest, wire.Descriptors)
	}
	if len(fds) != wire.Descriptors {
		return nil, fmt.Errorf("it has %d descriptors, want %d", len(fds), wire.Descriptors)
	}
	for i, kind := range []int{syscall.SOCK_STREAM, syscall.SOCK_SEQPACKET} {
		if err := connected(fds[i], kind); err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
		if err := syscall.SetNonblock(fds[i], true); err != nil {
			return nil, err
		}
	}
	f := os.NewFile(uintptr(fds[0]), "session")
	fds[0] = -1
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	r := &request{s: s, text: append([]byte{}, text...), conn: c.(*net.UnixConn), cell: os.NewFile(uintptr(fds[1]), "cell")}
	return r, nil
}

// connected checks that fd is a connected unix socket of a type.
func connected(fd, kind int) error {
	for _, o := range []struct{ opt, want int }{{syscall.SO_DOMAIN, syscall.AF_UNIX}, {syscall.SO_TYPE, kind}, {syscall.SO_ACCEPTCONN, 0}} {
		got, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, o.opt)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		if got != o.want {
			return errors.New("another kind of socket than is wanted")
		}
	}
	_, err := syscall.Getpeername(fd)
	return os.NewSyscallError("getpeername", err)
}

// serve answers the request, and serves its call to its end.
func (r *request) serve(ctx context.Context) {
	defer r.conn.Close()
	defer r.cell.Close()
	o, s, ferr := r.order()
	var hold *budget.Hold
	if ferr == nil {
		var err error
		if hold, err = r.s.sessions.Take(budget.Owner{Name: o.Owner, Reserve: o.Reserve}, 1); err != nil {
			ferr = fault.New(fault.Unavailable, "budget", "open an egress session", errors.New("palyra-egress serves as many calls as it can, or as this caller may have"))
		}
	}
	if ferr != nil {
		say(r.conn, wire.Answer{Error: fault.MessageOf(ferr)})
		return
	}
	a, key := wire.Answer{Authority: s.Authority()}, (*sealed.Key)(nil)
	if len(o.Uses) > 0 {
		var err error
		if key, err = sealed.NewKey(); err != nil {
			panic(fmt.Sprintf("egress: internal error: %v", err))
		}
		a.Key = key.Public()
	}
	ctx, cancel := context.WithTimeout(ctx, o.Limits.Wall)
	defer cancel()
	err := say(r.conn, a)
	if err == nil && key != nil {
		stop := context.AfterFunc(ctx, func() { r.conn.Close() })
		if err = s.take(r.conn, key, o); !stop() && err == nil {
			err = errEnded
		}
	}
	if err != nil {
		s.Wipe()
		hold.Release()
		return
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		r.conn.Read(make([]byte, 1)) // palyra says nothing more: this is the call's end
		cancel()
	})
	var ev *evidence.Egress
	if o.Check {
		ev = s.check(ctx)
	} else {
		ev = s.run(ctx, r.cell)
	}
	hold.Release() // before the evidence: who has that may open the next
	if err := say(r.conn, ev); err != nil && !errors.Is(err, syscall.EPIPE) {
		r.s.cfg.logf("evidence of a session: %v", err)
	}
	r.conn.Close() // ends watch
	watch.Wait()
}

// order reads the request, and makes its session.
func (r *request) order() (*Order, *session, *fault.Error) {
	const op = "open an egress session"
	var q wire.Request
	if err := wire.Decode(r.text, &q, wire.MaxRequest); err != nil {
		return nil, nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if q.Version != wire.Version {
		return nil, nil, fault.New(fault.Refused, "helper_unusable", op, fmt.Errorf("palyra speaks version %d, palyra-egress %d", q.Version, wire.Version)).
			WithHint("install palyra-egress with its palyra")
	}
	rules, err := rule.ParseCanonical(q.Order.Rules)
	if err == nil && len(q.Order.Owner) > wire.MaxText {
		err = fmt.Errorf("an owner of %d bytes, at most %d are allowed", len(q.Order.Owner), wire.MaxText)
	}
	if err == nil {
		q.Order.Limits, err = q.Order.Limits.Within()
	}
	var in rule.Inspection
	if err == nil {
		in, err = inspectionOf(&q.Order, rules)
	}
	if err == nil && q.Order.Check && (len(q.Order.Inspect)+len(q.Order.Uses) > 0 || rules.Empty()) {
		err = errors.New("an order to look hosts up, without hosts or with more")
	}
	var s *session
	if err == nil {
		s = newSession(r.s, &q.Order, rules)
		err = s.guard(&q.Order, in)
	}
	if err != nil {
		return nil, nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	return &q.Order, s, nil
}

// say sends a message, to a palyra that may not read.
func say(c *net.UnixConn, v any) error {
	b, err := wire.Encode(v)
	if err != nil {
		return err
	}
	c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, err = c.Write(b)
	return err
}
