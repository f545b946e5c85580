//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/keyring/backend/record"
	"palyra/internal/canon"
)

// TestExamineVault: doctor says where the identity is, and that one beside the vault costs something.
func TestExamineVault(t *testing.T) {
	state := t.TempDir()
	dir := filepath.Join(state, "vault")
	if fs := examineVault(state); fs != nil {
		t.Errorf("no vault: %+v", fs)
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "head"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	place := func(k record.Kind, name string) *record.Place {
		return &record.Place{Backend: k, Name: name, Recipient: canon.Sum(nil)}
	}
	for _, c := range []struct {
		name         string
		r            *record.Record
		answer, says string
	}{
		{"not recorded", nil, "unknown", "no backend is recorded"},
		{"elsewhere", &record.Record{At: place(record.SecretService, "X")}, "yes", `kept by secret-service "X"`},
		{"beside it", &record.Record{At: place(record.File, filepath.Join(state, "key")), Beside: true}, "no", "opens itself"},
		{"a copy", &record.Record{At: place(record.SecretService, "X"), Also: place(record.File, "/old")}, "no", `file "/old"`},
	} {
		if c.r != nil {
			if err := c.r.Write(dir, func(string) {}); err != nil {
				t.Fatal(err)
			}
		}
		fs := examineVault(state)
		if len(fs) != 1 || fs[0].Answer != c.answer || (fs[0].Cost != "") != (c.answer == "no") || !strings.Contains(fs[0].Detail+fs[0].Cost, c.says) {
			t.Errorf("%s: %+v", c.name, fs)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, record.Name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fs := examineVault(state); len(fs) != 1 || fs[0].Answer != "no" || fs[0].Cost == "" {
		t.Errorf("a broken record: %+v", fs)
	}
}
