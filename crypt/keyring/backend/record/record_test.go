//go:build unix

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

func none(string) {}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	a := &Place{File, "/home/alice/.config/palyra/vault.key", canon.Sum([]byte("a"))}
	b := &Place{SecretService, "4XK", canon.Sum([]byte("a"))}
	for _, r := range []Record{{1, a, nil, false}, {1, b, a, false}, {1, nil, a, true}} {
		if err := r.Write(dir, none); err != nil {
			t.Fatal(err)
		}
		got, err := Read(dir)
		if err != nil || !reflect.DeepEqual(*got, r) {
			t.Errorf("%+v, %v, want %+v", got, err, r)
		}
	}
	// Each byte that is changed, added or left out is another spelling, or another record.
	whole, err := os.ReadFile(filepath.Join(dir, Name))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "{}", "null", string(whole) + "\n", " " + string(whole), string(whole[1:]),
		strings.Replace(string(whole), `"version":1`, `"version":2`, 1), strings.Replace(string(whole), `"version":1`, `"version":1,"x":1`, 1),
		strings.Replace(string(whole), `"file"`, `"pipe"`, 1), strings.Replace(string(whole), `"/home`, `"home`, 1), strings.Replace(string(whole), `/alice`, `/al\nice`, 1),
		`{"also":null,"at":null,"beside":false,"version":1}`} {
		if err := os.WriteFile(filepath.Join(dir, Name), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Read(dir); fault.ReasonOf(err) != "key_corrupt" || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
	for _, bad := range []Record{{}, {At: &Place{File, "relative", canon.Sum(nil)}}, {At: &Place{File, "/a", canon.Digest{}}}, {At: &Place{"", "/a", canon.Sum(nil)}}} {
		if err := bad.Write(dir, none); err == nil {
			t.Errorf("%+v is written", bad)
		}
	}
	if err := os.Chmod(filepath.Join(dir, Name), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); fault.ReasonOf(err) != "unsafe_file" {
		t.Errorf("others can read it: %v", err)
	}
	if err := errors.Join(Remove(dir), Remove(dir)); err != nil {
		t.Error(err)
	}
}

// TestBeside: whoever copies the folder has the identity, however its path is written.
func TestBeside(t *testing.T) {
	home := t.TempDir()
	for _, d := range []string{"state/vault", "state2", "config"} {
		if err := os.MkdirAll(filepath.Join(home, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Join(home, "state"), filepath.Join(home, "in")), os.Symlink(filepath.Join(home, "config"), filepath.Join(home, "state", "out"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind Kind
		path string
		want bool
	}{
		{File, "state/key", true}, {File, "state/new/deep/key", true}, {File, "config/../state/key", true}, {File, "in/vault/key", true},
		{File, "state2/key", false}, {File, "key", false}, {File, "config/key", false}, {File, "state/out/key", false},
		{SystemdCreds, "state/key", false},
	} {
		p := Place{c.kind, filepath.Join(home, c.path), canon.Sum(nil)}
		if got := p.Beside(filepath.Join(home, "state")); got != c.want {
			t.Errorf("%s: %v, want %v", c.path, got, c.want)
		}
		if got := p.Beside(filepath.Join(home, "in")); got != c.want {
			t.Errorf("%s, the state named by a link: %v, want %v", c.path, got, c.want)
		}
	}
}
