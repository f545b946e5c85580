package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// user is one of the users that the battery runs as.
type user struct {
	name     string // "root" or "unprivileged"
	uid, gid int
	home     string
	state    string // palyra's state directory
	policy   string // and its policy directory, the user's own
}

// credential returns what os/exec needs to become u, nil if we are.
func (u *user) credential() *syscall.Credential {
	if os.Geteuid() != 0 || u.uid == 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid), Groups: []uint32{}}
}

// stage is the surroundings of one run: a directory of its own on the host and
// the things in it. Everything on it is fresh, so that a canary that was
// tripped was tripped by this run.
type stage struct {
	b      *battery
	user   *user
	tier   string
	mode   string // how the cell is made: one of modes
	inside bool
	dir    string // mode 0755, the user's
	nonce  string // in the names and secrets of this stage
	clean  []func()
}

func nonce() string { return "palyra-" + strings.ToLower(rand.Text()) }

func newStage(b *battery, u *user, tier, mode string, inside bool) (*stage, error) {
	s := &stage{b: b, user: u, tier: tier, mode: mode, inside: inside, nonce: nonce()}
	s.dir = filepath.Join(b.dir, "stage", s.nonce)
	if err := s.mkdir(s.dir, 0o755); err != nil {
		return nil, err
	}
	s.later(func() { os.RemoveAll(s.dir) })
	return s, nil
}

// later undoes something when the stage is taken down, last first.
func (s *stage) later(f func()) { s.clean = append(s.clean, f) }

func (s *stage) close() {
	for i := len(s.clean) - 1; i >= 0; i-- {
		s.clean[i]()
	}
}

// mkdir makes a directory of the user's.
func (s *stage) mkdir(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil { // past the umask
		return err
	}
	return os.Chown(path, s.user.uid, s.user.gid)
}

// folder makes a directory on the stage.
func (s *stage) folder(name string, mode os.FileMode) (string, error) {
	p := filepath.Join(s.dir, name)
	return p, s.mkdir(p, mode)
}

// workspace makes a directory to grant. At tier B palyra becomes the owner of the workspace
// and refuses to become root, so root grants another user's.
func (s *stage) workspace() (string, error) {
	p, err := s.folder("ws", 0o755)
	if err != nil {
		return "", err
	}
	return p, s.give(p)
}

// give makes path belong to the owner of the workspace.
func (s *stage) give(path string) error {
	if s.user.uid != 0 || s.tier != "b" {
		return nil
	}
	return os.Chown(path, s.b.uid, s.b.uid)
}

// file makes a file of the user's on the stage.
func (s *stage) file(name, content string, mode os.FileMode) (string, error) {
	p := filepath.Join(s.dir, name)
	return p, s.write(p, content, mode)
}

func (s *stage) write(path, content string, mode os.FileMode) error {
	// Stages are set side by side: a program forked for another one while this
	// file is open for writing would keep it so, and its execution fails (ETXTBSY).
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(content), mode)
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	return os.Chown(path, s.user.uid, s.user.gid)
}

// secret makes a file with a secret that only this stage knows.
func (s *stage) secret() (path, secret string, err error) {
	secret = "secret-" + rand.Text()
	dir, err := s.folder("host", 0o755)
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(dir, s.nonce)
	return path, secret, s.write(path, secret+"\n", 0o644)
}

// leaked is the canary of a secret: it is in what came out.
func leaked(secret string) func(*outcome) (bool, string) {
	return func(o *outcome) (bool, string) {
		if o.contains(secret) {
			return true, "the secret came out"
		}
		return false, ""
	}
}

// appeared is the canary of a path that must not come to be.
func appeared(path string) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		st, err := os.Lstat(path)
		if err != nil {
			return false, ""
		}
		return true, fmt.Sprintf("%s on the host: %s", filepath.Base(path), st.Mode())
	}
}

// patience is how long to look for what the attempt should have done: it was
// done before the run ended, but a busy machine may take a moment to show it.
// Outside, where it is sure to come, there is no hurry.
func (s *stage) patience() time.Duration {
	if s.inside {
		return pause
	}
	return 10 * time.Second
}

// seen looks until it is so, or patience is at its end.
func (s *stage) seen(is func() bool) bool {
	for end := time.Now().Add(s.patience()); ; time.Sleep(2 * time.Millisecond) {
		if is() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// listenerOf is a socket of the host that notes what it is told.
type listenerOf struct {
	s    *stage
	mu   sync.Mutex
	told bytes.Buffer // guarded by mu
}

func (l *listenerOf) hear(r io.Reader) {
	b := make([]byte, 256)
	for {
		n, err := r.Read(b)
		l.mu.Lock()
		l.told.Write(b[:n])
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// heard is the canary of a listener. Data sent before the run ended is in the socket's
// queue, from where the reader takes it.
func (l *listenerOf) heard(token string) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		found := l.s.seen(func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return strings.Contains(l.told.String(), token)
		})
		if found {
			return true, "the host's listener was reached"
		}
		return false, ""
	}
}

// listen opens a stream or datagram socket of the host and listens to it.
func (s *stage) listen(network, address string) (*listenerOf, net.Addr, error) {
	l := &listenerOf{s: s}
	switch network {
	case "tcp4", "tcp6", "unix":
		ln, err := net.Listen(network, address)
		if err != nil {
			return nil, nil, err
		}
		s.later(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					l.hear(c)
				}()
			}
		}()
		return l, ln.Addr(), s.openSocket(network, address)
	default:
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return nil, nil, err
		}
		s.later(func() { c.Close() })
		go l.hear(c.(io.Reader))
		return l, c.LocalAddr(), s.openSocket(network, address)
	}
}

// openSocket lets every user connect to a socket in the file system.
func (s *stage) openSocket(network, path string) error {
	if !strings.HasPrefix(network, "unix") || strings.HasPrefix(path, "@") {
		return nil
	}
	return os.Chmod(path, 0o777)
}

// hand is a helping process of the host, run as the user.
type hand struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// hand starts a probe that helps and waits until it is ready.
func (s *stage) hand(env []string, dir, probe string, args ...string) (*hand, string, error) {
	h := &hand{cmd: exec.Command(s.b.attack, append([]string{probe}, args...)...)}
	h.cmd.Env, h.cmd.Dir, h.cmd.Stderr = env, dir, os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential(), Pdeathsig: syscall.SIGKILL}
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, "", err
	}
	h.lines = bufio.NewScanner(out)
	detail, err := h.until("READY")
	s.later(func() {
		h.in.Close()
		done := make(chan struct{})
		go func() { h.cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(2 * time.Second):
			h.cmd.Process.Kill()
			<-done
		}
	})
	return h, detail, err
}

// handInWorld is hand in the world: the probe's helper where the attempt runs.
func (s *stage) handInWorld(probe string, args ...string) (*hand, string, error) {
	w, err := s.b.inWorld()
	if err != nil {
		return nil, "", err
	}
	argv := w.Enter(s.dir, s.user.uid, s.user.gid, append([]string{s.b.attack, probe}, args...))
	h := &hand{cmd: exec.Command(argv[0], argv[1:]...)}
	h.cmd.Dir, h.cmd.Stderr = s.dir, os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, "", err
	}
	s.later(func() {
		syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL)
		h.cmd.Wait()
	})
	h.lines = bufio.NewScanner(out)
	detail, err := h.until("READY")
	return h, detail, err
}

// peer starts another program that listens on the loopback interface: inside, in a cell of its
// own that has one. It returns the port, and a canary that hears the token.
func (s *stage) peer(token string) (port string, heard func(*outcome) (bool, string), err error) {
	argv := []string{s.b.attack, "peer"}
	if s.inside {
		other := &stage{b: s.b, user: s.user, dir: s.dir, tier: "c", mode: modeLoop}
		if argv, err = s.b.sandbox.command(other, &options{timeout: time.Minute}, argv); err != nil {
			return "", nil, err
		}
	}
	h := &hand{cmd: exec.Command(argv[0], argv[1:]...)}
	h.cmd.Env, h.cmd.Dir, h.cmd.Stderr = []string{"PATH=/usr/bin:/bin", "HOME=" + s.user.home}, s.user.home, os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential(), Pdeathsig: syscall.SIGKILL}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return "", nil, err
	}
	s.later(func() {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	})
	h.lines = bufio.NewScanner(out)
	if port, err = h.until("READY"); err != nil {
		return "", nil, err
	}
	l := &listenerOf{s: s}
	go l.hear(out)
	return port, l.heard(token), nil
}

// until reads lines up to one of the given outcome.
func (h *hand) until(outcome string) (string, error) {
	for h.lines.Scan() {
		var r result
		if json.Unmarshal(h.lines.Bytes(), &r) != nil || r.Outcome == "STARTED" {
			continue
		}
		if r.Outcome == outcome {
			return r.Detail, nil
		}
		return "", fmt.Errorf("helper %s: %s %s, want %s", h.cmd.Args[1], r.Outcome, r.Detail, outcome)
	}
	return "", fmt.Errorf("helper %s ended before %s", h.cmd.Args[1], outcome)
}

// plant puts a secret into the user's keyring or the host's IPC namespace.
func (s *stage) plant(what, name string) (secret string, err error) {
	secret = "secret-" + rand.Text()
	_, _, err = s.hand(nil, "", "plant", "what="+what, "name="+name, "secret="+secret)
	return secret, err
}

// victim is a process of the host that has something to lose.
type victim struct {
	*hand
	s      *stage
	pid    int
	addr   string // where in its memory the secret is
	secret string // in memory
	args   string // secret in its command line
	env    string // secret in its environment
	file   string // secret in a file that is open at descriptor 9
}

func (s *stage) victim() (*victim, error) {
	v := &victim{s: s, secret: "secret-" + rand.Text(), args: "secret-" + rand.Text(), env: "secret-" + rand.Text()}
	path, file, err := s.secret()
	if err != nil {
		return nil, err
	}
	v.file = file
	// The shell opens descriptor 9 for it; os/exec would want 3 to 8 as well.
	h, detail, err := s.handWithFile(path, []string{"PALYRA_VICTIM=" + v.env}, "victim", "memory="+v.secret, "args="+v.args)
	if err != nil {
		return nil, err
	}
	v.hand, v.pid, v.addr = h, h.cmd.Process.Pid, detail
	return v, nil
}

func (s *stage) handWithFile(path string, env []string, probe string, args ...string) (*hand, string, error) {
	h := &hand{cmd: exec.Command("/bin/sh", append([]string{"-c", `exec 9<"$0"; exec "$@"`, path, s.b.attack, probe}, args...)...)}
	h.cmd.Env, h.cmd.Dir, h.cmd.Stderr = env, filepath.Dir(path), os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential(), Pdeathsig: syscall.SIGKILL}
	in, err1 := h.cmd.StdinPipe()
	out, err2 := h.cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, "", err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, "", err
	}
	h.in, h.lines = in, bufio.NewScanner(out)
	s.later(func() {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	})
	detail, err := h.until("READY")
	return h, detail, err
}

// dead is the canary of the victim's life. A signal sent by the run has arrived,
// but to die takes the processor.
func (v *victim) dead(*outcome) (bool, string) {
	died := v.s.seen(func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(v.pid) + "/stat")
		_, rest, ok := strings.Cut(string(b), ") ")
		return err != nil || ok && strings.HasPrefix(rest, "Z")
	})
	if died {
		return true, "the victim died"
	}
	return false, ""
}

// changed is the canary of the victim's memory.
func (v *victim) changed(*outcome) (bool, string) {
	if _, err := io.WriteString(v.in, "?\n"); err != nil {
		return true, "the victim does not hear"
	}
	if _, err := v.until("INTACT"); err != nil {
		return true, err.Error()
	}
	return false, ""
}
