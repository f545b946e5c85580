package serve

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFoldersBelow looks at trees as distributions have them, and at links that lead elsewhere.
func TestFoldersBelow(t *testing.T) {
	for name, c := range map[string]struct {
		folders []string
		links   map[string]string
		want    []string
	}{
		"Debian": {[]string{"etc/ssl/certs", "etc/ssl/private", "etc/alternatives"}, nil, []string{"etc/alternatives", "etc/ssl/certs"}},
		"Fedora": {[]string{"etc/ssl", "etc/pki/tls/certs", "etc/pki/tls/private", "etc/pki/ca-trust/extracted"}, map[string]string{"etc/ssl/certs": "../pki/tls/certs"},
			[]string{"etc/pki/ca-trust/extracted", "etc/pki/tls/certs", "etc/ssl/certs"}},
		"in usr":      {[]string{"etc/ssl", "usr/share/certs"}, map[string]string{"etc/ssl/certs": "../../usr/share/certs"}, []string{"etc/ssl/certs"}},
		"elsewhere":   {[]string{"etc/ssl", "root/certs"}, map[string]string{"etc/ssl/certs": "../../root/certs"}, nil},
		"a neighbour": {[]string{"etc/ssl", "etcetera"}, map[string]string{"etc/ssl/certs": "../../etcetera"}, nil},
		"nowhere":     {[]string{"etc/ssl"}, map[string]string{"etc/ssl/certs": "../pki/tls/certs"}, nil},
		"etc itself":  {[]string{"etc/ssl"}, map[string]string{"etc/ssl/certs": "../../etc"}, nil},
	} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.folders {
			if err := os.MkdirAll(filepath.Join(root, f), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for at, to := range c.links {
			if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := foldersBelow(root)
		for i := range got {
			got[i] = got[i][len(root)+1:]
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
