package cobblestone

import (
	"bytes"
	"errors"
	"testing"
)

func filled(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

// TestLengths seals and opens messages around the borders of chunks.
func TestLengths(t *testing.T) {
	key := filled(KeySize, 7)
	for _, n := range []int{0, 1, 15, 16, chunk - 1, chunk, chunk + 1, 2*chunk - 1, 2 * chunk, 65536, 65537} {
		m := filled(n, 'm')
		s, err := Seal(key, []byte("context"), m)
		if err != nil || len(s) != Sealed(n) {
			t.Fatalf("seal %d bytes: %d bytes, want %d: %v", n, len(s), Sealed(n), err)
		}
		if got, err := Open(key, []byte("context"), s); err != nil || !bytes.Equal(got, m) {
			t.Errorf("open %d bytes: %d bytes, %v", n, len(got), err)
		}
		again, _ := Seal(key, []byte("context"), m)
		if bytes.Equal(s, again) {
			t.Errorf("two seals of %d bytes are the same", n)
		}
	}
}

// TestRefused changes each part of a sealed message.
func TestRefused(t *testing.T) {
	key, ctx := filled(KeySize, 7), []byte("context")
	s, err := Seal(key, ctx, filled(chunk+100, 'm'))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(s)
		b[at] ^= 1
		return b
	}
	for name, b := range map[string][]byte{
		"salt": flip(0), "commitment": flip(saltSize), "first chunk": flip(header), "first tag": flip(header + chunk),
		"last chunk": flip(header + chunk + tag), "last tag": flip(len(s) - 1),
		"cut":            s[:len(s)-1],
		"last chunk off": s[:header+chunk+tag], "chunks off": s[:header], "empty": nil,
		"one more byte": append(bytes.Clone(s), 0),
	} {
		if got, err := Open(key, ctx, b); !errors.Is(err, ErrOpen) || got != nil {
			t.Errorf("%s: opened to %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := Open(filled(KeySize, 8), ctx, s); !errors.Is(err, ErrOpen) {
		t.Errorf("other key: %v", err)
	}
	if _, err := Open(key, []byte("contexT"), s); !errors.Is(err, ErrOpen) {
		t.Errorf("other context: %v", err)
	}
	if _, err := Open(key[:16], ctx, s); err == nil || errors.Is(err, ErrOpen) {
		t.Errorf("short key: %v", err)
	}
}

// FuzzOpen wants that a sealed message has one spelling: what opens is what Seal makes with the
// same salt.
func FuzzOpen(f *testing.F) {
	key := filled(KeySize, 7)
	for _, n := range []int{0, 5, chunk, chunk + 1} {
		s, err := sealWith(key, (*[saltSize]byte)(filled(saltSize, 1)), []byte("c"), filled(n, 'm'))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("c"), s)
	}
	f.Fuzz(func(t *testing.T, ctx, sealed []byte) {
		m, err := Open(key, ctx, sealed)
		if err != nil {
			return
		}
		again, err := sealWith(key, (*[saltSize]byte)(sealed), ctx, m)
		if err != nil || !bytes.Equal(again, sealed) {
			t.Fatalf("opens, but Seal spells it otherwise: %v", err)
		}
	})
}
