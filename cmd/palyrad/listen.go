package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/hub/config"
	"palyra/internal/fault"
	"palyra/internal/sdnotify"
)

// The names that socket units give their descriptors (FileDescriptorName=).
const (
	activatedSocket = "api"
	activatedHTTP   = "http"
	activatedDiag   = "diag" // of netlink; see takeNetlink
)

// sockets are palyrad's listening sockets.
type sockets struct {
	unix net.Listener
	http net.Listener // nil: off
	cert *certificate // nil: no TLS
	peer net.Listener // for paired devices; nil: off
	pair net.Listener // for devices that pair; nil: off

	pairAt string // where they are told that it is

	own        string // path of the unix socket if this process made it
	healthOnly bool   // http has no authentication
}

// address returns the address of http, "off" if there is none.
func (s *sockets) address() string {
	if s.http == nil {
		return config.HTTPOff
	}
	return s.http.Addr().String()
}

func (s *sockets) peerAddress() string {
	if s.peer == nil {
		return config.HTTPOff
	}
	return s.peer.Addr().String()
}

// listen opens the sockets, or takes those that the service manager passed.
func listen(ctx context.Context, cfg *config.Config, passed []sdnotify.Listener) (_ *sockets, err error) {
	s := &sockets{healthOnly: cfg.Listen.HTTPAuth == "off"}
	defer func() {
		if err != nil {
			s.close()
			for _, l := range passed {
				l.Close()
			}
		}
	}()
	for _, l := range passed {
		at, isTCP := l.Addr().(*net.TCPAddr)
		switch {
		case !isTCP && l.Addr().Network() == "unix" && (l.Name == activatedSocket || l.Name == "" || l.Name == "unknown") && s.unix == nil:
			s.unix = l.Listener
		case isTCP && (l.Name == activatedHTTP || l.Name == "" || l.Name == "unknown") && s.http == nil:
			if err := passedAddress(cfg, at.AddrPort()); err != nil {
				return nil, err
			}
			s.http = l.Listener
		default:
			return nil, fault.New(fault.BadState, "config_invalid", fmt.Sprintf("take socket %q", l.Name),
				fmt.Errorf("want a unix socket named %q and at most one TCP socket named %q", activatedSocket, activatedHTTP))
		}
	}
	if s.unix == nil {
		if s.unix, err = listenUnix(cfg.Listen); err != nil {
			return nil, err
		}
		s.own = cfg.Listen.Socket
	}
	if s.http == nil && cfg.Listen.HTTP != config.HTTPOff {
		var lc net.ListenConfig
		if s.http, err = lc.Listen(ctx, "tcp", cfg.Listen.HTTP); err != nil {
			return nil, listenError("listen.http", cfg.Listen.HTTP, err)
		}
	}
	if at := cfg.Peer.Listen; at != config.HTTPOff {
		var lc net.ListenConfig
		if s.peer, err = lc.Listen(ctx, "tcp", at); err != nil {
			return nil, listenError("peer.listen", at, err)
		}
	}
	if at := cfg.Pairing.Listen; at != config.HTTPOff {
		var lc net.ListenConfig
		if s.pair, err = lc.Listen(ctx, "tcp", at); err != nil {
			return nil, listenError("pairing.listen", at, err)
		}
		s.pairAt = s.pair.Addr().String()
		if at, err := netip.ParseAddrPort(s.pairAt); err == nil { // before the confinement, which may forbid to ask
			s.pairAt = reachable(at, outward, net.InterfaceAddrs).String()
		}
	}
	if s.http != nil && cfg.TLS() {
		s.cert = &certificate{}
		if err := s.cert.load(cfg.Listen.TLSCert, cfg.Listen.TLSKey); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// takeNetlink takes out the sockets by which the kernel tells whose connections are. The manager
// opens them in the host's network, which is the one of the sockets that it passes.
func takeNetlink(passed []sdnotify.Listener) (netlink []*os.File, rest []sdnotify.Listener, err error) {
	for _, l := range passed {
		switch {
		case l.Netlink == nil:
			rest = append(rest, l)
		case l.Name == activatedDiag:
			netlink = append(netlink, l.Netlink)
		default:
			return nil, nil, fault.New(fault.BadState, "config_invalid", fmt.Sprintf("take socket %q", l.Name), fmt.Errorf("want sockets of netlink to be named %q", activatedDiag))
		}
	}
	return netlink, rest, nil
}

// passedAddress holds an activated socket to the rule for the configuration: config saw
// listen.http, not the socket unit.
func passedAddress(cfg *config.Config, at netip.AddrPort) error {
	if at.Addr().Unmap().IsLoopback() || cfg.HTTPBeyondLoopback() {
		return nil
	}
	return fault.New(fault.BadState, "config_invalid", fmt.Sprintf("take socket %q", activatedHTTP),
		fmt.Errorf("%v reaches beyond loopback and listen.http does not", at)).
		WithHint("set listen.http to the address of the socket unit, with all that palyrad then asks for")
}

func (s *sockets) close() {
	if s.unix != nil {
		s.unix.Close()
	}
	if s.http != nil {
		s.http.Close()
	}
	if s.peer != nil {
		s.peer.Close()
	}
	if s.pair != nil {
		s.pair.Close()
	}
}

func listenError(key, at string, err error) error {
	op := fmt.Sprintf("listen on %q (%s)", at, key)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fault.New(fault.Busy, "locked", op, err).WithHint("is another palyrad running? Set " + key + " to something else")
	}
	return fault.New(fault.BadState, "config_invalid", op, err)
}

// listenUnix makes the socket. It leaves a file that is no socket, and a socket with a
// listener, where they are.
func listenUnix(l config.Listen) (_ net.Listener, err error) {
	path := l.Socket
	if err := socketDir(filepath.Dir(path)); err != nil {
		return nil, listenError("listen.socket", path, err)
	}
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, listenError("listen.socket", path, err)
	case fi.Mode()&fs.ModeSocket == 0:
		return nil, listenError("listen.socket", path, errors.New("exists and is no socket"))
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, listenError("listen.socket", path, syscall.EADDRINUSE)
		}
		if err := os.Remove(path); err != nil { // of a palyrad that crashed
			return nil, listenError("listen.socket", path, err)
		}
	}
	ln, err := net.Listen("unix", path) // umask 0077: no other user connects before Chmod
	if err != nil {
		return nil, listenError("listen.socket", path, err)
	}
	defer func() {
		if err != nil {
			ln.Close()
		}
	}()
	if l.SocketGroup != "" {
		gid, err := groupID(l.SocketGroup)
		if err != nil {
			return nil, fault.New(fault.BadState, "config_invalid", fmt.Sprintf("find group %q (listen.socket_group)", l.SocketGroup), err).
				WithHint("groupadd --system " + l.SocketGroup)
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return nil, fault.New(fault.BadState, "config_invalid", fmt.Sprintf("give %q to group %q", path, l.SocketGroup), err).
				WithHint("palyrad's user must be root or a member of the group")
		}
	}
	if err := os.Chmod(path, os.FileMode(l.SocketMode)); err != nil {
		return nil, listenError("listen.socket", path, err)
	}
	return ln, nil
}

// socketDir makes the socket's directory if there is none. Others may pass through it: the
// socket's own mode says who may connect.
func socketDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755) // against the umask
}

func groupID(name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil && n >= 0 {
		return n, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// certificate is the HTTP listener's, replaced as a whole by a reload.
type certificate struct {
	pair atomic.Pointer[tls.Certificate]
}

func (c *certificate) load(cert, key string) error {
	p, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fault.New(fault.BadState, "config_invalid", fmt.Sprintf("load certificate %q with its key", cert), err).
			WithHint("both are PEM, belong together, and are readable by palyrad's user")
	}
	c.pair.Store(&p)
	return nil
}

// names are the hosts that the certificate is for by name, without those by a pattern.
func (c *certificate) names() (out []string) {
	if p := c.pair.Load(); p != nil && p.Leaf != nil {
		for _, n := range p.Leaf.DNSNames {
			if !strings.HasPrefix(n, "*") {
				out = append(out, strings.ToLower(n))
			}
		}
	}
	return out
}

// hosts are the values of the header Host by which clients call http by its certificate's names. A
// page of another host can't have a connection to one of them: its certificate would be another.
func (s *sockets) hosts() (out []string) {
	_, port, err := net.SplitHostPort(s.address())
	if err != nil || s.cert == nil {
		return nil
	}
	for _, n := range s.cert.names() {
		out = append(out, net.JoinHostPort(n, port))
		if port == "443" { // which browsers leave out
			out = append(out, n)
		}
	}
	return out
}

// config is TLS 1.3 and nothing older: every client of ours speaks it.
func (c *certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil }}
}
