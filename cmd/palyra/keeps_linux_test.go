package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/cmd/internal/programs"
	"palyra/isolate/stage"
)

// TestKeeps: what brings a session's layer to its workspace, or ends that, is palyrad's where the
// user has one; a flag that says otherwise, and a layer of palyra's own, are palyra's.
func TestKeeps(t *testing.T) {
	dir, err := os.MkdirTemp("", "k-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	state, work := filepath.Join(dir, "palyra"), filepath.Join(dir, "work")
	for _, d := range []string{state, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const name = "src-0123456789abcdef"
	for _, name := range []string{name, "mine"} {
		s, err := stage.Take(state, name, stage.Source{Path: work, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.Upper(), "a"), []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		made, err := s.Prepare(t.Context())
		if err == nil {
			err = s.Begin(t.Context(), made) // and never ends
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	for _, tt := range []struct {
		args []string
		to   []string // what palyra-ctl gets; nil: palyra does it
		says string
	}{
		{[]string{"changes", "apply", name}, []string{"changes", "apply", name}, ""},
		{[]string{"changes", "undo", name}, []string{"changes", "undo", name}, ""},
		{[]string{"changes", "apply", "gone-0123456789abcdef"}, []string{"changes", "apply", "gone-0123456789abcdef"}, ""},
		{[]string{"changes", "apply", "--socket", at, "mine"}, []string{"changes", "apply", "--socket", at, "mine"}, ""},
		{[]string{"changes", "apply"}, nil, "2 layers have changes"},
		{[]string{"changes", "show", name}, nil, "palyra changes apply " + name + ", or undo, ends it first"},
		{[]string{"changes", "discard", name}, nil, "palyra changes apply " + name + ", or undo, ends it first"},
		{[]string{"changes", "apply", "mine"}, nil, "palyra-cell"},
		{[]string{"changes", "apply", "--no-daemon", name}, nil, "palyra-cell"},
		{[]string{"changes", "apply", "--policy", dir, name}, nil, "palyra-cell"},
		{[]string{"changes", "apply", "--state", state, name}, nil, "palyra-cell"},
		{[]string{"changes", "apply", "--json"}, []string{"changes", "apply", "--json", name}, "alone"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			a, _, stderr := newApp(t, map[string]string{"XDG_STATE_HOME": dir, "PALYRA_SOCKET": at, "PALYRA_NO_INPUT": "1"})
			exe := filepath.Join(t.TempDir(), "palyra")
			for _, at := range []string{exe, filepath.Join(filepath.Dir(exe), programs.Client)} {
				if err := os.WriteFile(at, nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if tt.says == "alone" { // the last
				if err := stage.Discard(state, "mine", true); err != nil {
					t.Fatal(err)
				}
				tt.says = ""
			}
			var to []string
			a.executable = func() (string, error) { return exe, nil } // with no palyra-cell beside it
			a.become = func(_ string, argv []string) error {
				to = argv[1:]
				return os.ErrInvalid
			}
			if a.run(t.Context(), tt.args) == 0 || !slices.Equal(to, tt.to) || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("palyra-ctl got %q, want %q; said %q", to, tt.to, stderr)
			}
		})
	}
}
