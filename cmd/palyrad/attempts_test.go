package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAttempts(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func(want bool) *attempts {
		t.Helper()
		a, safe, err := begin(dir, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if safe != want {
			t.Fatalf("safe mode %v, want %v, with %+v", safe, want, a.file)
		}
		return a
	}
	for range safeAfter {
		start(false) // and it crashes
	}
	start(true) // and crashes too
	if err := start(true).good(); err != nil {
		t.Fatal(err)
	}
	a := start(false)
	if err := a.good(); err != nil {
		t.Fatal(err)
	}
	if err := a.good(); err != nil {
		t.Errorf("clearing twice: %v", err)
	}
	for range 2 {
		start(false)
	}
	if err := start(false).good(); err != nil {
		t.Fatal(err)
	}
	start(false)
	for name, text := range map[string]string{"text": "{", "version": `{"version":2,"failed":0}`, "negative": `{"version":1,"failed":-9}`, "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, "starts"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, safe, err := begin(dir, time.Now()); err != nil || !safe {
			t.Errorf("%s: safe mode %v, %v", name, safe, err)
		}
	}
}
