package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub"
)

// TestVaultHub: a socket that was found gets a secret only if this user's or root's palyrad listens
// there.
func TestVaultHub(t *testing.T) {
	dir, err := os.MkdirTemp("", "palyra-vault-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	own := filepath.Join(dir, "palyra", "palyrad.sock")
	if err := os.Mkdir(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", own)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		args []string
		want connect.Target
	}{
		{nil, connect.Target{Socket: own, Own: true}},
		{[]string{"--socket", "/b"}, connect.Target{Socket: "/b"}},
	} {
		inv, err := programs.Table(programs.Client).Parse(append([]string{"vault", "set", "vault://global/a"}, tt.args...))
		if err != nil {
			t.Fatal(err)
		}
		var got connect.Target
		a := &app{stderr: io.Discard, dial: func(t connect.Target) (hub.Hub, error) { got = t; return nil, nil }, getenv: func(name string) string {
			return map[string]string{"XDG_RUNTIME_DIR": dir}[name]
		}}
		if _, err := a.vaultHub(inv); err != nil || got != tt.want {
			t.Errorf("%q: %+v, %v, want %+v", tt.args, got, err, tt.want)
		}
	}
}
