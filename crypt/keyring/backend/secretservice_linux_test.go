package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"

	"palyra/crypt/keyring/backend/record"
	"palyra/internal/fault"
)

// TestKeyring keeps an identity in gnome-keyring, which gives it to nobody else unencrypted.
func TestKeyring(t *testing.T) {
	ctx := t.Context()
	bus(t)
	keyring(t)
	if p, passed, err := Choose(ctx, []record.Place{ssPlace}); err != nil || p != ssPlace || len(passed) != 0 {
		t.Fatal(p, passed, err)
	}
	id := newIdentity(t)
	p := placed(t, ssPlace, id)
	if err := keep(ctx, p, id, asking); err != nil {
		t.Fatal(err)
	}
	got, err := Load(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, id)

	// A second one of the same name is not made beside it in silence: it would be found.
	if err := (secrets{}).write(ctx, p.Name, []byte("other")); err != nil {
		t.Fatal(err)
	}
	_, err = Load(ctx, p)
	wantReason(t, err, "key_corrupt")
	if _, err := Load(ctx, placed(t, ssPlace, newIdentity(t))); err == nil {
		t.Error("two items are one")
	}
	// The API removes what another program would, too.
	c := client(t)
	var open, shut []dbus.ObjectPath
	if err := c.Object(ssName, ssPath).Call(ssService+"SearchItems", 0, attributes(p.Name)).Store(&open, &shut); err != nil || len(open) != 2 {
		t.Fatal(open, shut, err)
	}
	for _, item := range open {
		v, err := c.Object(ssName, item).GetProperty(ssItem + "Label")
		if err != nil || v.Value() != ssLabel {
			t.Error(v, err)
		}
		if err := c.Object(ssName, item).Call(ssItem+"Delete", 0).Err; err != nil {
			t.Fatal(err)
		}
	}
	if _, err = Load(ctx, p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
	if err := drop(ctx, p, asking); err != nil {
		t.Errorf("remove what is gone: %v", err)
	}
}

// TestKeyringDrop: another identity than the one that was kept isn't ours to remove.
func TestKeyringDrop(t *testing.T) {
	ctx := t.Context()
	bus(t)
	keyring(t)
	id := newIdentity(t)
	p := placed(t, ssPlace, id)
	if err := keep(ctx, p, id, asking); err != nil {
		t.Fatal(err)
	}
	if err := drop(ctx, placed(t, ssPlace, newIdentity(t)), asking); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(ctx, p); err != nil {
		t.Errorf("it was removed for another: %v", err)
	}
	if err := drop(ctx, p, asking); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(ctx, p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestKeyringLocked: a locked keyring is an error that says so, where it could ask (this desktop has
// no prompter) and where it may not; nothing else is taken; and unlocked it goes on.
func TestKeyringLocked(t *testing.T) {
	ctx := t.Context()
	bus(t)
	keyring(t)
	id := newIdentity(t)
	p := placed(t, ssPlace, id)
	if err := keep(ctx, p, id, asking); err != nil {
		t.Fatal(err)
	}
	c := client(t)
	lockAll(t, c)
	_, err := Load(ctx, p)
	wantReason(t, err, "keyring_unavailable: the keyring is locked")
	if fault.HintOf(err) == "" {
		t.Error("no hint")
	}
	wantReason(t, Try(ctx, ssPlace), "keyring_unavailable: the keyring is locked")
	wantReason(t, drop(ctx, p, asking), "keyring_unavailable: the keyring is locked")
	file := record.Place{Backend: record.File, Name: filepath.Join(t.TempDir(), "key")}
	if got, passed, err := Choose(ctx, []record.Place{ssPlace, file}); err != nil || got != file || len(passed) != 1 || fault.ReasonOf(passed[0].Why) != "keyring_unavailable" {
		t.Error(got, passed, err)
	}
	unlockAll(t, c)
	got, err := Load(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, id)
}

// TestKeyringAbsent: without a bus, without a keyring on it, and with another user's bus.
func TestKeyringAbsent(t *testing.T) {
	for _, c := range []struct{ name, address, want string }{
		{"no bus", "", "no session bus"},
		{"no such socket", "unix:path=/nonexistent/bus", "no such file"},
		{"no Unix socket", "tcp:host=127.0.0.1,port=1;unixexec:path=/bin/sh,argv1=-c,argv2=exit;autolaunch:", "no session bus"},
	} {
		t.Setenv("XDG_RUNTIME_DIR", "")
		t.Setenv("DBUS_SESSION_BUS_ADDRESS", c.address)
		_, err := Load(t.Context(), ssPlace)
		wantReason(t, err, "keyring_unavailable")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	bus(t)
	_, err := Load(t.Context(), ssPlace)
	wantReason(t, err, "keyring_unavailable")
	if err == nil || !strings.Contains(err.Error(), "no keyring serves") {
		t.Error(err)
	}
}

// TestKeyringOtherUser: a bus that another user runs gets no question.
func TestKeyringOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
	home := bus(t)
	other := exec.Command("dbus-daemon", "--config-file="+home+"/other.conf", "--nofork", "--print-address=1")
	if err := errors.Join(os.Chmod(home, 0o777), os.WriteFile(home+"/other.conf", []byte(strings.Replace(busConfig, "BUS", home+"/other", 1)), 0o644)); err != nil {
		t.Fatal(err)
	}
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	start(t, other)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+home+"/other")
	_, err := Load(t.Context(), ssPlace)
	wantReason(t, err, "keyring_unavailable")
	if err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Error(err)
	}
}

// TestKeyringDies: the daemon is killed while it owes an answer.
func TestKeyringDies(t *testing.T) {
	bus(t)
	daemon := keyring(t)
	calls := watch(t, "OpenSession")
	if err := daemon.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Load(t.Context(), ssPlace)
		done <- err
	}()
	<-calls
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	err := <-done
	wantReason(t, err, "keyring_unavailable")
	if err == nil || !strings.Contains(err.Error(), "ended before it answered") {
		t.Error(err)
	}
}

// TestKeyringHangs: a daemon that doesn't answer is left when the caller gives up.
func TestKeyringHangs(t *testing.T) {
	bus(t)
	daemon := keyring(t)
	calls := watch(t, "OpenSession")
	if err := daemon.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Load(ctx, ssPlace)
		done <- err
	}()
	<-calls
	cancel()
	wantReason(t, <-done, "canceled")
}

func TestBusAddresses(t *testing.T) {
	for _, c := range []struct {
		env, run string
		want     []string
	}{
		{"unix:path=/run/user/1000/bus", "", []string{"/run/user/1000/bus"}},
		{"unix:path=/a%20b,guid=0f;unix:abstract=/tmp/x%2c", "", []string{"/a b", "@/tmp/x,"}},
		{"unix:runtime=yes", "/run/user/7", []string{"/run/user/7/bus"}},
		{"unix:path=relative;unix:path=/x%0;unix:path=/x%zz;unix:path=/x%00;unix:path=", "", nil},
		{"tcp:host=localhost;unixexec:path=/bin/sh;launchd:env=X;autolaunch:;nonce-tcp:host=x", "/run/user/7", nil},
	} {
		got := busAddresses(func(name string) string {
			return map[string]string{"DBUS_SESSION_BUS_ADDRESS": c.env, "XDG_RUNTIME_DIR": c.run}[name]
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.env, got, c.want)
		}
	}
}

// TestExchange: both ends derive one key, also where the secret begins with zeros, and values that
// aren't what was encrypted are refused.
func TestExchange(t *testing.T) {
	a, A := newExchange()
	b, B := newExchange()
	k1, err1 := a.key(B)
	k2, err2 := b.key(A)
	if err := errors.Join(err1, err2); err != nil || string(k1) != string(k2) {
		t.Fatal("two keys", err)
	}
	small := exchange{private: oakley2}
	if _, err := small.key([]byte{2}); err != nil { // 2^p is 2: 127 zeros before it
		t.Fatal(err)
	}
	minus := func(n byte) []byte {
		p := oakley2.Bytes()
		p[len(p)-1] -= n
		return p
	}
	for _, public := range [][]byte{{}, {0}, {1}, minus(1), minus(0), append([]byte{1}, make([]byte, oakleySize)...)} {
		if _, err := a.key(public); err == nil {
			t.Errorf("a public key of %d bytes that begins with %x is taken", len(public), public[:min(4, len(public))])
		}
	}
	for n := range 40 {
		iv, sealed := encrypt(k1, make([]byte, n))
		if v, err := decrypt(k2, iv, sealed); err != nil || len(v) != n {
			t.Errorf("%d bytes: %d, %v", n, len(v), err)
		}
		for _, bad := range [][]byte{nil, sealed[1:], sealed[:len(sealed)-1]} {
			if _, err := decrypt(k1, iv, bad); err == nil {
				t.Errorf("%d of %d bytes are taken", len(bad), len(sealed))
			}
		}
		if _, err := decrypt(k1, iv[1:], sealed); err == nil {
			t.Error("a short initial vector is taken")
		}
	}
}
