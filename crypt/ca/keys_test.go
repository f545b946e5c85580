package ca

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"palyra/internal/fault"
)

// mirror keeps keys reversed behind a brace and their names: enough to see who is asked what.
type mirror struct{ lie bool }

func (m mirror) Seal(purpose, name string, plain []byte) ([]byte, error) {
	b := bytes.Clone(plain)
	slices.Reverse(b)
	if m.lie {
		name = "sha256:00"
	}
	return slices.Concat([]byte("{"+purpose+" "+name+"\n"), b), nil
}

func (mirror) Open(path, purpose string, content []byte) ([]byte, string, error) {
	head, b, _ := bytes.Cut(content, []byte("\n"))
	name, ok := bytes.CutPrefix(head, []byte("{"+purpose+" "))
	if !ok {
		return nil, "", fault.New(fault.Denied, "keys_locked", path, nil)
	}
	b = bytes.Clone(b)
	slices.Reverse(b)
	return b, string(name), nil
}

// TestSealedKeys: all keys are written as the keeper says, open through it alone and in their own
// place alone, and change with Reseal.
func TestSealedKeys(t *testing.T) {
	dir := state(t)
	sealed := Options{Keys: mirror{}}
	a, err := Create(t.Context(), dir, domain, now, sealed, unrecorded)
	if err != nil {
		t.Fatal(err)
	}
	if p := Plain(dir); len(p) != 0 {
		t.Errorf("plain: %q", p)
	}
	if err := a.Rotate(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	if p := Plain(dir); len(p) != 0 {
		t.Errorf("plain after a rotation: %q", p)
	}
	_, err = Open(dir, Options{})
	refused(t, err, fault.Denied, "keys_locked")
	refused(t, Reseal(t.Context(), dir, PlainKeys{}, func(string) {}), fault.Denied, "keys_locked")

	place := filepath.Join(dir, caDir)
	issuer, err := issuerKey(&a.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	good := files(t, place)
	lie, err := encodeKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	if lie, err = (mirror{lie: true}).Seal(purposeIssuer, "", lie); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		b      []byte
		kind   fault.Kind
		reason string
	}{
		{"root's key in its place", good[rootKey], fault.Denied, "keys_locked"},
		{"under another name", lie, fault.Integrity, "key_corrupt"},
	} {
		if err := os.WriteFile(filepath.Join(place, issuer), c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, sealed)
		if fault.KindOf(err) != c.kind || fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(place, issuer), good[issuer], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Reseal(t.Context(), dir, onlyPlain{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if p := Plain(dir); !slices.Equal(p, []string{"ca/" + issuer, "ca/root.key"}) {
		t.Errorf("plain: %q", p)
	}
	if a, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Rotate(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	if err := Reseal(t.Context(), state(t), PlainKeys{}, nil); err != nil {
		t.Errorf("without an authority: %v", err)
	}
}

// TestResealWaits: keys that Create has written as they were kept until then, in a place that isn't
// ca/ yet, aren't passed over.
func TestResealWaits(t *testing.T) {
	dir := state(t)
	var err error
	a, cerr := Create(t.Context(), dir, domain, now, Options{}, func(map[string]string) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = Reseal(ctx, dir, mirror{}, func(string) {})
		return nil
	})
	if cerr != nil || a == nil {
		t.Fatal(cerr)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it didn't wait for who makes the authority: %v", err)
	}
}

// onlyPlain opens what mirror keeps, and keeps it plain.
type onlyPlain struct{ mirror }

func (onlyPlain) Seal(_, _ string, plain []byte) ([]byte, error) { return bytes.Clone(plain), nil }
