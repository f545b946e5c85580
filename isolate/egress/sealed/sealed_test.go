package sealed

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/isolate/egress/wire"
)

// TestBound: a value opens for its use, its placeholder, its call and its session, and for no other.
func TestBound(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	capsule, use, value := canon.Sum([]byte("a call")), wire.Use{Use: "TOKEN=vault://global/npm header:authorization a.example:443", Placeholder: "npm_a"}, []byte("the value")
	box, err := Seal(key.Public(), capsule, use, value)
	if err != nil || len(box) != len(value)+Overhead || bytes.Contains(box, value) {
		t.Fatalf("%d bytes, %v", len(box), err)
	}
	if got, err := key.Open(capsule, use, box); err != nil || !bytes.Equal(got, value) {
		t.Errorf("got %q, %v", got, err)
	}
	bent := bytes.Clone(box)
	bent[len(bent)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"call": func() ([]byte, error) { return key.Open(canon.Sum(nil), use, box) },
		"use": func() ([]byte, error) {
			return key.Open(capsule, wire.Use{Use: use.Use + "1", Placeholder: use.Placeholder}, box)
		},
		"placeholder": func() ([]byte, error) { return key.Open(capsule, wire.Use{Use: use.Use, Placeholder: "npm_b"}, box) },
		"session":     func() ([]byte, error) { return other.Open(capsule, use, box) },
		"bent":        func() ([]byte, error) { return key.Open(capsule, use, bent) },
		"short":       func() ([]byte, error) { return key.Open(capsule, use, box[:Overhead]) },
		"nothing":     func() ([]byte, error) { return key.Open(capsule, use, nil) },
		"long":        func() ([]byte, error) { return key.Open(capsule, use, make([]byte, MaxValue+Overhead+1)) },
	} {
		if got, err := open(); err == nil {
			t.Errorf("another %s opens it: %q", name, got)
		}
	}
	for _, bad := range [][]byte{nil, make([]byte, MaxValue+1)} {
		if _, err := Seal(key.Public(), capsule, use, bad); err == nil {
			t.Errorf("a value of %d bytes was sealed", len(bad))
		}
	}
	if _, err := Seal([]byte("no key"), capsule, use, value); err == nil {
		t.Error("sealed for no key")
	}
	if s := fmt.Sprint(key); strings.ContainsAny(s, "0123456789[") {
		t.Errorf("a key prints as %s", s)
	}
}

func FuzzOpen(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("box"))
	f.Add(make([]byte, Overhead+1))
	f.Fuzz(func(t *testing.T, box []byte) {
		if got, err := key.Open(canon.Digest{}, wire.Use{}, box); err == nil {
			t.Errorf("opened to %q", got)
		}
	})
}
