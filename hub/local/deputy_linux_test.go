package local

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// owned gives tools what the caller's own runs made, as palyrad does.
type owned struct{ st *store.Store }

func (o *owned) Open(ctx context.Context, who policy.Entity, d canon.Digest) (io.ReadCloser, int64, error) {
	yes, err := store.View(ctx, o.st, func(tx *store.Tx) (bool, error) { return tx.OwnsArtifact(d, who.ID) })
	if err == nil && !yes {
		err = fault.New(fault.NotFound, "not_found", "look up artifact", nil)
	}
	if err != nil {
		return nil, 0, err
	}
	r, a, err := o.st.OpenArtifact(ctx, d)
	if err != nil {
		return nil, 0, err
	}
	return r, a.Size, nil
}

// TestConfusedDeputy: the daemon may read its keys, the whole host and the artifacts of all
// runs. A tool that is asked to use that for a caller does so with that caller's
// permissions, whatever the input names.
func TestConfusedDeputy(t *testing.T) {
	shelf := new(owned)
	h := newHouse(t, func(c *Config, k *kernel.Config) {
		base := filepath.Dir(k.StateDir)
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Artifacts: shelf,
			Workspaces: map[string]tool.Workspace{"src": {Path: filepath.Join(base, "work")}}})
	})
	shelf.st = h.st
	alice, mallory := h.member(1001, access.Operator), h.member(1002, access.Operator)
	made := h.call(alice, argv("/usr/bin/seq", "20000"))
	digest := made.Steps[0].Stdout.Artifact.String()
	if digest == "" {
		t.Fatalf("no artifact: %+v", made.Steps[0])
	}
	key := filepath.Join(h.base, "state", filepath.FromSlash(tokenKey))
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(key, filepath.Join(h.work(), "link")), os.Symlink(filepath.Dir(key), filepath.Join(h.work(), "dir")),
		os.WriteFile(filepath.Join(h.work(), "own.txt"), []byte("own"), 0o644)); err != nil {
		t.Fatal(err)
	}
	read := func(digest string) hub.Step {
		return step("artifact.read", obj{"digest": digest, "offset": 0, "limit": 100})
	}
	for name, c := range map[string]struct {
		who  hub.Caller
		what hub.Step
		well bool
	}{
		"one's own artifact":       {alice, read(digest), true},
		"another's artifact":       {mallory, read(digest), false},
		"one's own file":           {mallory, step("fs.read_file", obj{"workspace": "src", "path": "own.txt"}), true},
		"the key, by a link":       {mallory, step("fs.read_file", obj{"workspace": "src", "path": "link"}), false},
		"the key, by a folder":     {mallory, step("fs.read_file", obj{"workspace": "src", "path": "dir/" + filepath.Base(key)}), false},
		"the key, by climbing":     {mallory, step("fs.read_file", obj{"workspace": "src", "path": "../state/" + tokenKey}), false},
		"the key, by its path":     {mallory, step("fs.read_file", obj{"workspace": "src", "path": key}), false},
		"the key, by a program":    {mallory, argv("/bin/cat", key), false},
		"a workspace that is none": {mallory, step("fs.read_file", obj{"workspace": "../state", "path": tokenKey}), false},
		"as somebody else":         {mallory, step("artifact.read", obj{"digest": digest, "offset": 0, "limit": 100, "principal": alice.User}), false},
	} {
		r, err := hub.Call.Do(t.Context(), h, c.who, hub.NewCall{Tool: c.what.Tool, Input: c.what.Input})
		well := err == nil && r.State == hub.RunDone && len(r.Steps) == 1 && r.Steps[0].Outcome == "executed" && r.Steps[0].Exit == 0
		if well != c.well {
			t.Errorf("%s: %s %s %+v, %v", name, r.State, r.Reason, r.Steps, err)
		}
		for _, s := range r.Steps {
			if strings.Contains(s.Stdout.Text+s.Stderr.Text+s.Error, strings.TrimSpace(string(secret))) {
				t.Errorf("%s: it shows the key", name)
			}
		}
	}
}
