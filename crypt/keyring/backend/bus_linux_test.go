package backend

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"palyra/crypt/keyring/backend/record"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=BUS</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// bus starts a session bus of the test's own, in a new home, and makes it this process's.
func bus(t testing.TB) (home string) {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("needs dbus-daemon")
	}
	// A socket's path has 107 bytes at most, and a test's own folder has its name in it.
	home, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	config := filepath.Join(home, "bus.conf")
	if err := errors.Join(os.Mkdir(filepath.Join(home, "run"), 0o700),
		os.WriteFile(config, []byte(strings.Replace(busConfig, "BUS", filepath.Join(home, "bus"), 1)), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"HOME": home, "XDG_DATA_HOME": home + "/data", "XDG_CONFIG_HOME": home + "/config", "XDG_CACHE_HOME": home + "/cache",
		"XDG_RUNTIME_DIR": home + "/run", "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + home + "/bus", "GNOME_KEYRING_CONTROL": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""} {
		t.Setenv(name, value)
	}
	start(t, exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--print-address=1"))
	return home
}

// start starts a daemon and waits for the first line that it prints.
func start(t testing.TB, cmd *exec.Cmd) *os.Process {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%s: %v", cmd.Path, err)
	}
	return cmd.Process
}

// client is another program on the bus.
func client(t testing.TB) *dbus.Conn {
	t.Helper()
	c, err := dbus.ConnectSessionBus()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const password = "hush"

// keyring starts gnome-keyring, unlocked with a new collection, and waits until it serves.
func keyring(t testing.TB) *os.Process {
	t.Helper()
	if _, err := exec.LookPath("gnome-keyring-daemon"); err != nil {
		t.Skip("needs gnome-keyring")
	}
	c := client(t)
	owned := make(chan *dbus.Signal, 8)
	c.Signal(owned)
	if err := c.AddMatchSignal(dbus.WithMatchSender(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, ssName)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets", "--control-directory="+os.Getenv("HOME")+"/control")
	cmd.Stdin = strings.NewReader(password)
	p := start(t, cmd)
	for s := range owned {
		if len(s.Body) == 3 && s.Body[2] != "" {
			return p
		}
	}
	t.Fatal("the bus has ended")
	return nil
}

// lockAll locks the default collection of the keyring.
func lockAll(t *testing.T, c *dbus.Conn) {
	t.Helper()
	var path dbus.ObjectPath
	var locked []dbus.ObjectPath
	var prompt dbus.ObjectPath
	o := c.Object(ssName, ssPath)
	if err := o.Call(ssService+"ReadAlias", 0, "default").Store(&path); err != nil {
		t.Fatal(err)
	}
	if err := o.Call(ssService+"Lock", 0, []dbus.ObjectPath{path}).Store(&locked, &prompt); err != nil || len(locked) != 1 {
		t.Fatal(locked, err)
	}
}

// unlockAll unlocks it without a prompt, as the login does.
func unlockAll(t *testing.T, c *dbus.Conn) {
	t.Helper()
	var path, session dbus.ObjectPath
	var out dbus.Variant
	o := c.Object(ssName, ssPath)
	if err := o.Call(ssService+"ReadAlias", 0, "default").Store(&path); err != nil {
		t.Fatal(err)
	}
	if err := o.Call(ssService+"OpenSession", 0, "plain", dbus.MakeVariant("")).Store(&out, &session); err != nil {
		t.Fatal(err)
	}
	if err := o.Call("org.gnome.keyring.InternalUnsupportedGuiltRiddenInterface.UnlockWithMasterPassword", 0, path, wire{session, []byte{}, []byte(password), "text/plain"}).Err; err != nil {
		t.Fatal(err)
	}
}

// watch has the bus tell of each call of a method, before it is delivered.
func watch(t *testing.T, method string) <-chan struct{} {
	t.Helper()
	c := client(t)
	if err := c.BusObject().Call(busName+".Monitoring.BecomeMonitor", 0, []string{"type='method_call'"}, uint32(0)).Err; err != nil {
		t.Fatal(err)
	}
	seen, messages := make(chan struct{}, 64), make(chan *dbus.Message, 64)
	c.Eavesdrop(messages)
	go func() {
		defer close(seen)
		for m := range messages {
			if m.Headers[dbus.FieldMember].Value() == method {
				seen <- struct{}{}
			}
		}
	}()
	return seen
}

var ssPlace = record.Place{Backend: record.SecretService, Name: "test"}
