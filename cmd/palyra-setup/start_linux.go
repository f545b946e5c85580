package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/hub/place"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The units of a user's own palyrad. Its socket starts it. systemd's settings that confine a
// service need privileges in a user's manager; palyrad confines itself.
const (
	unitSocket = `[Unit]
Description=Palyra: socket of this user's palyrad

[Socket]
ListenStream=%s
FileDescriptorName=api
SocketMode=0600
DirectoryMode=0700

[Install]
WantedBy=sockets.target
`
	unitService = `[Unit]
Description=Palyra: decide, confine and attest the tool calls of this user's agents
Documentation=man:palyrad(8)
Requires=palyrad.socket

[Service]
Type=notify
NotifyAccess=main
ExecStart=%s --config %s
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=78
WatchdogSec=30
TimeoutStopSec=40
TimeoutStartSec=90
KillMode=mixed
UMask=0077
`
)

// managed reports whether this user has a systemd.
func (d *own) managed(ctx context.Context) bool {
	return d.getenv("XDG_RUNTIME_DIR") != "" && d.systemctl(ctx, "show-environment") == nil
}

func (d *own) systemctl(ctx context.Context, args ...string) error {
	return d.run(ctx, "systemctl", append([]string{"--user"}, args...)...)
}

// manage enters palyrad into the user's systemd; changed says that its configuration did.
func (d *own) manage(ctx context.Context, changed bool) error {
	daemon, err := d.daemon()
	if err != nil {
		return err
	}
	units := filepath.Join(filepath.Dir(filepath.Dir(d.name)), "systemd", "user")
	for _, u := range []struct{ name, text string }{
		{"palyrad.socket", fmt.Sprintf(unitSocket, unitWord(d.socket))},
		{"palyrad.service", fmt.Sprintf(unitService, unitWord(daemon), unitWord(filepath.Join(d.base, d.name)))},
	} {
		f, err := openFile(d.base, filepath.Join(units, u.name), 0o644)
		if err != nil {
			return err
		}
		if string(f.text) != u.text {
			changed = true
			err = d.place(f, []byte(u.text))
		}
		f.root.Close()
		if err != nil {
			return err
		}
	}
	if changed {
		err = d.systemctl(ctx, "daemon-reload")
	}
	if err == nil {
		err = d.systemctl(ctx, "enable", "--now", "palyrad.socket")
	}
	if err == nil && changed {
		err = d.systemctl(ctx, "try-restart", "palyrad.service")
	}
	if err == nil {
		d.report.Text += "systemd starts palyrad when it's needed (systemctl --user status palyrad)\n"
	}
	return err
}

// unmanage takes palyrad out of this user's systemd.
func (d *own) unmanage(ctx context.Context) error {
	units := filepath.Join(filepath.Dir(filepath.Dir(d.name)), "systemd", "user")
	names := []string{"palyrad.socket", "palyrad.service"}
	root, err := os.OpenRoot(d.base)
	if err != nil {
		return fault.New(fault.NotFound, "not_found", "undo setup palyrad", err)
	}
	defer root.Close()
	if _, err := root.Lstat(filepath.Join(units, names[0])); err != nil {
		return fault.New(fault.NotFound, "not_found", "undo setup palyrad", errors.New("there are no units of this user's palyrad")).
			WithHint("a palyrad that setup started itself ends with SIGTERM")
	}
	if d.dry {
		return nil
	}
	err = d.systemctl(ctx, append([]string{"disable", "--now"}, names...)...)
	for _, n := range names {
		if err == nil {
			err = root.Remove(filepath.Join(units, n))
		}
	}
	if err == nil {
		err = d.systemctl(ctx, "daemon-reload")
	}
	return err
}

// unitWord quotes a path for a unit (systemd.syntax(7), systemd.unit(5)).
func unitWord(path string) string {
	path = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", `\n`).Replace(path)
	if strings.ContainsAny(path, " \t'\"\\;#") {
		return `"` + path + `"`
	}
	return path
}

func (d *own) daemon() (string, error) {
	exe, err := d.executable()
	if err != nil {
		return "", fault.New(fault.Refused, "helper_unusable", "find palyrad", err)
	}
	return installed.Find(exe, "palyrad")
}

// start starts palyrad in a session of its own, where there is no systemd to do it, and waits
// until it serves. It writes its log beside its state.
func (d *own) start(ctx context.Context, config string) (err error) {
	const op = "start palyrad"
	wrap := func(err error) error {
		if err == nil {
			return nil
		}
		return fault.New(fault.Unavailable, "daemon_unreachable", op, err)
	}
	daemon, err := d.daemon()
	if err != nil {
		return err
	}
	state := place.StateDir(d.getenv)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return wrap(err)
	}
	if err := d.wait(ctx, filepath.Join(state, "palyrad.lock")); err != nil {
		return err
	}
	name := filepath.Join(state, "palyrad.log")
	log, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return wrap(err)
	}
	defer log.Close()
	dir, err := os.MkdirTemp("", "palyra-setup-")
	if err != nil {
		return wrap(err)
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "notify")
	ready, err := notifySocket(at)
	if err != nil {
		return wrap(err)
	}
	defer ready.Close()
	c := exec.Command(daemon, "--config", config)
	c.Stdout, c.Stderr, c.Dir = log, log, "/"
	c.Env = append(os.Environ(), "NOTIFY_SOCKET="+at)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return wrap(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- c.Wait()
		ready.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	}()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	ready.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 4096)
	for {
		n, err := ready.Read(b)
		if err == nil && strings.Contains("\n"+string(b[:n])+"\n", "\nREADY=1\n") {
			d.report.Text += fmt.Sprintf("started palyrad (process %d, log %s); it ends with kill %[1]d or the host, then palyra setup starts it again\n", c.Process.Pid, front.Escape(name))
			return nil
		}
		if err == nil {
			continue
		}
		select {
		case err = <-ended:
			err = fmt.Errorf("it ended at once: %v", err)
		default:
			_ = c.Process.Kill() // it didn't get ready
			err = errors.Join(ctx.Err(), errors.New("it doesn't serve"))
		}
		return fault.New(fault.Unavailable, "daemon_unreachable", op, err).WithHint("its log says why: " + name)
	}
}

// draining bounds the wait for a palyrad that ends: a little more than its drain takes by default.
const draining = 30 * time.Second

// wait returns when no palyrad has the lock of the state directory: one that was just told to end
// answers no more, but goes on until its calls have ended.
func (d *own) wait(ctx context.Context, lock string) error {
	if _, err := os.Lstat(lock); err != nil {
		return nil // there was none
	}
	g, err := durable.OpenGate(lock)
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Take(ctx, durable.Exclusive, draining)
}

// notifySocket makes a socket for what a service says of itself (sd_notify(3)). It is read
// like a file: this program links no network.
func notifySocket(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
