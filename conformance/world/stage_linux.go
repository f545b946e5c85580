package world

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The variables with which the test binary starts itself: which stage it is, where the world's
// files are, and what its sockets are.
const (
	stageVar   = "PALYRA_WORLD"
	dirVar     = "PALYRA_WORLD_DIR"
	socketsVar = "PALYRA_WORLD_SOCKETS"
)

// Place holds the world of a test binary, or why there's none.
type Place struct {
	world *World // set by Main before the tests, as none is
	none  error
}

// Here returns the world, without names and without what arrived before. Without user namespaces
// the test is skipped.
func (p *Place) Here(t testing.TB) *World {
	t.Helper()
	if p.none != nil {
		t.Skipf("needs user namespaces: %v", p.none)
	}
	w, err := p.World()
	if err != nil {
		t.Fatal(err)
	}
	w.Forget()
	return w
}

// World returns the world, or an error where there is none.
func (p *Place) World() (*World, error) {
	switch {
	case p.none != nil:
		return nil, fmt.Errorf("user namespaces: %w", p.none)
	case p.world == nil:
		return nil, errors.New("world: Main wasn't called")
	}
	return p.world, nil
}

// Runner is what runs in the world: the tests of a package, *testing.M.
type Runner interface{ Run() int }

// Main runs the tests in a world, and returns the exit status. It has env for them.
func (p *Place) Main(m Runner, env ...string) int {
	switch os.Getenv(stageVar) {
	case "":
		return p.begin(m, env)
	case "make":
		fmt.Fprintln(os.Stderr, "world:", prepare()) // it returns only with an error
		return 1
	}
	w, err := start(os.Getenv(dirVar), os.Getenv(socketsVar))
	if err != nil {
		fmt.Fprintln(os.Stderr, "world:", err)
		return 1
	}
	p.world = w
	return m.Run()
}

// begin starts the test binary again in the namespace of the host.
func (p *Place) begin(m Runner, env []string) int {
	if p.none = exec.Command("unshare", "-Urn", "true").Run(); p.none != nil {
		return m.Run()
	}
	dir, err := os.MkdirTemp("/var/tmp", "palyra-world-") // a cell has a /tmp of its own
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(append(os.Environ(), env...), stageVar+"=make", dirVar+"="+dir)
	c.SysProcAttr = inNamespaces()
	runtime.LockOSThread() // or Pdeathsig counts the end of whichever thread starts it
	err = c.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "world:", err)
		return 1
	}
	return 0
}

// prepare makes the world around this process, drops its capabilities, and becomes the tests.
func prepare() error {
	runtime.LockOSThread()
	sockets, err := surround(os.Getenv(dirVar))
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_CAP_AMBIENT_CLEAR_ALL: %w", err)
	}
	env := append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, stageVar+"=") }),
		stageVar+"=run", socketsVar+"="+sockets)
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(exe, os.Args, env)
}

// surround makes the world around this process, whose thread is locked, and says which descriptor
// is what socket.
func surround(dir string) (sockets string, err error) {
	if err := certify(dir); err != nil {
		return "", err
	}
	if sockets, err = internet(); err != nil {
		return "", err
	}
	for _, step := range []func() error{
		func() error { return up("lo") },
		func() error { return up("world") },
		func() error { return address("world", "192.31.196.1/30") },
		func() error { return address("world", "2620:4f:8000:2::1/64") },
		func() error { return outward("192.31.196.2") },
		func() error { return outward("2620:4f:8000:2::2") },
		// Every user may send echo requests, as on most hosts. A user namespace has one group.
		func() error {
			first, last := 0, 1<<31-1
			if os.Geteuid() != 0 {
				first, last = os.Getegid(), os.Getegid()
			}
			return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", fmt.Appendf(nil, "%d %d", first, last), 0)
		},
		func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") },
		func() error {
			return over(dir, "/etc/resolv.conf", "nameserver "+Resolver+"\noptions timeout:1 attempts:2\n")
		},
		func() error {
			b, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
			return errors.Join(err, over(dir, "/etc/ssl/certs/ca-certificates.crt", string(b)))
		},
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	return sockets, nil
}

// over puts a file over one of the host's.
func over(dir, path, text string) error {
	f := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
		return err
	}
	to, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if err := syscall.Mount(f, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount over %s: %w", to, err)
	}
	return nil
}

// internet makes the second namespace from the thread of the first, and its sockets. It returns to
// the first, and says which descriptor is what.
func internet() (string, error) {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	defer host.Close()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return "", fmt.Errorf("unshare CLONE_NEWNET: %w", err)
	}
	steps := []func() error{
		func() error { return up("lo") },
		func() error { return pair("world", "world", host) },
		func() error { return up("world") },
		func() error { return address("world", "192.31.196.2/30") },
		func() error { return address("world", "2620:4f:8000:2::2/64") },
	}
	for _, p := range answering {
		steps = append(steps, func() error { return local(p) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return "", err
		}
	}
	var said []string
	keep := func(what string, f *os.File, err error) error {
		if err != nil {
			return err
		}
		fd, err := syscall.Dup(int(f.Fd())) // without close-on-exec
		said = append(said, fmt.Sprintf("%s=%d", what, fd))
		return errors.Join(err, f.Close())
	}
	for port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			var f *os.File
			f, err = l.(*net.TCPListener).File()
			err = errors.Join(keep(fmt.Sprint(port), f, err), l.Close())
		}
		if err != nil {
			return "", err
		}
	}
	for _, s := range []struct{ what, network, at string }{
		{"udp", "udp", Resolver + ":53"}, // an answer comes from the address that was asked
		{hears + "udp", "udp", ":443"}, {hears + "icmp", "ip4:icmp", "0.0.0.0"}, {hears + "sctp", "ip4:132", "0.0.0.0"},
	} {
		c, err := net.ListenPacket(s.network, s.at)
		if err == nil {
			var f *os.File
			f, err = c.(interface{ File() (*os.File, error) }).File()
			err = errors.Join(keep(s.what, f, err), c.Close())
		}
		if err != nil {
			return "", err
		}
	}
	if err := unix.Setns(int(host.Fd()), unix.CLONE_NEWNET); err != nil {
		return "", fmt.Errorf("setns: %w", err)
	}
	return strings.Join(said, " "), nil
}

// certify makes an authority, and a certificate of it for every name below example.
func certify(dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the world's authority"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	// Clients differ in what a wildcard below a top-level domain is worth, so each name stands alone.
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "packages.example"}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"packages.example", "git.example", "other.example", "six.example", "*.cdn.example", "model.example", "api.anthropic.com", "api.openai.com"}, IPAddresses: []net.IP{net.ParseIP(Web), net.ParseIP(Web6)}}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
		mode       os.FileMode
	}{{"ca.pem", "CERTIFICATE", caDER, 0o644}, {"leaf.pem", "CERTIFICATE", der, 0o644}, {"leaf.key", "PRIVATE KEY", keyDER, 0o600}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), f.mode); err != nil {
			return err
		}
	}
	return nil
}

// start serves the sockets that internet made, until the process ends.
func start(dir, sockets string) (*World, error) {
	w := &World{Dir: dir, names: make(map[string]Name), asked: make(map[[2]string]int), changed: make(chan struct{})}
	var err error
	if w.certificate, err = tls.LoadX509KeyPair(filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "leaf.key")); err != nil {
		return nil, err
	}
	for _, s := range strings.Fields(sockets) {
		var fd, port int
		what, _, _ := strings.Cut(s, "=")
		if _, err := fmt.Sscanf(s, what+"=%d", &fd); err != nil {
			return nil, fmt.Errorf("socket %q: %w", s, err)
		}
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), what)
		if what == "udp" {
			c, err := net.FilePacketConn(f)
			if err = errors.Join(err, f.Close()); err != nil {
				return nil, err
			}
			go w.serveUDP(c)
			continue
		}
		if strings.HasPrefix(what, hears) {
			c, err := net.FilePacketConn(f)
			if err = errors.Join(err, f.Close()); err != nil {
				return nil, err
			}
			go w.hearPackets(c)
			continue
		}
		fmt.Sscan(what, &port)
		l, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		go ports[port](w, listener{l, w})
	}
	return w, nil
}
