//go:build unix

package config

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/hub/place"
)

// TestFindSocket: a client finds a palyrad without configuration that was started in
// its environment, and one that was started in another shell of the same user.
func TestFindSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "pd-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	home, run := filepath.Join(dir, "h"), filepath.Join(dir, "r")
	for name, tc := range map[string]struct{ daemon, client []string }{
		"as at a desk":               {[]string{"HOME=" + home, "XDG_RUNTIME_DIR=" + run}, nil},
		"home only":                  {[]string{"HOME=" + home}, nil},
		"another state":              {[]string{"HOME=" + home, "XDG_STATE_HOME=" + dir + "/s"}, nil},
		"relative is ignored":        {[]string{"HOME=" + home, "XDG_RUNTIME_DIR=r"}, nil},
		"by cron, asked from a desk": {[]string{"HOME=" + home}, []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + run}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.client == nil {
				tc.client = tc.daemon
			}
			getenv := func(name string) string {
				for _, e := range tc.client {
					if v, ok := strings.CutPrefix(e, name+"="); ok {
						return v
					}
				}
				return ""
			}
			c, err := Parse("", nil, tc.daemon)
			if err != nil {
				t.Fatal(err)
			}
			if got := place.FindSocket(getenv); got != place.SystemSocket {
				t.Errorf("without a palyrad: %q", got)
			}
			if err := os.MkdirAll(filepath.Dir(c.Listen.Socket), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.Listen.Socket, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := place.FindSocket(getenv); got != place.SystemSocket {
				t.Errorf("with a file in its place: %q", got)
			}
			os.Remove(c.Listen.Socket)
			l, err := net.Listen("unix", c.Listen.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if got := place.FindSocket(getenv); got != c.Listen.Socket {
				t.Errorf("got %q, palyrad listens on %q", got, c.Listen.Socket)
			}
			if got := place.OwnSocket(getenv); got != c.Listen.Socket {
				t.Errorf("one's own: got %q, palyrad listens on %q", got, c.Listen.Socket)
			}
			named := func(name string) string {
				if name == "PALYRA_SOCKET" {
					return c.Listen.Socket + ".other"
				}
				return getenv(name)
			}
			if got := place.OwnSocket(named); got != "" {
				t.Errorf("PALYRA_SOCKET names none, and %q is taken", got)
			}
			if os.Geteuid() == 0 { // with another user's home, as sudo may leave it
				if err := os.Chown(c.Listen.Socket, 65534, 65534); err != nil {
					t.Fatal(err)
				}
				if got := place.FindSocket(getenv); got != place.SystemSocket {
					t.Errorf("a socket of another user: %q", got)
				}
				if got := place.OwnSocket(getenv); got != "" {
					t.Errorf("a socket of another user is one's own: %q", got)
				}
			}
		})
	}
}
