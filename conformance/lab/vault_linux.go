package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

const credential = "/etc/credstore.encrypted/palyra-vault"

// credentials has systemd-creds keep the identity of root's own vault, and gives it back.
func (m *manager) credentials() (string, error) {
	state, key := "/root/vault-state", "/root/vault.key"
	var said string
	for _, step := range [][]string{
		{"palyra", "vault", "init", "--state", state, "--backend", "systemd-creds"},
		{"palyra", "vault", "verify", "--state", state},
	} {
		out, err := m.do(step...)
		if err != nil {
			return "", err
		}
		said = out
	}
	if want := `identity: systemd-creds "` + credential + `"`; !strings.Contains(said, want) {
		return "", fmt.Errorf("vault verify says %q", said)
	}
	// What is in the file is for the real program alone, and is no identity.
	b, err := os.ReadFile(credential)
	if err != nil {
		return "", err
	}
	plain, err := m.do("systemd-creds", "decrypt", "--name=palyra-vault", credential, "-")
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(plain, "palyra-identity-1:") || bytes.Contains(b, []byte("palyra-identity")) {
		return "", errors.New("the credential isn't an encrypted identity")
	}
	// One changed byte is refused.
	b[len(b)/2] ^= 1
	if err := os.WriteFile(credential, b, 0o600); err != nil {
		return "", err
	}
	_, broken := m.do("palyra", "vault", "verify", "--state", state)
	b[len(b)/2] ^= 1
	if err := os.WriteFile(credential, b, 0o600); err != nil {
		return "", err
	}
	if broken == nil || !strings.Contains(broken.Error(), "decrypt credential") {
		return "", fmt.Errorf("a changed credential opens the vault: %v", broken)
	}
	if _, err := m.do("palyra", "vault", "migrate-backend", "--state", state, "--to", "file", "--key", key); err != nil {
		return "", err
	}
	if _, err := os.Lstat(credential); !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the credential stays: %v", err)
	}
	if moved, err := os.ReadFile(key); err != nil || strings.TrimSpace(string(moved)) != plain {
		return "", fmt.Errorf("another identity was moved: %v", err)
	}
	_, err = m.do("palyra", "vault", "verify", "--state", state)
	return "", err
}

// unitVault follows the document: a unit is given the identity, and others can't have it.
func (m *manager) unitVault() (string, error) {
	if _, err := m.script("vault-0"); err != nil {
		return "", err
	}
	verified := func() (string, error) {
		_, err := m.do("systemctl", "start", "palyra-vault@verify")
		return m.output("journalctl", "--no-pager", "-q", "-o", "cat", "-u", "palyra-vault@verify"), err
	}
	out, err := verified()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if !strings.Contains(out, `identity: systemd-creds "palyra-vault"`) {
		return "", fmt.Errorf("in the unit vault verify says %q", out)
	}
	// Its user without the unit, and by the program itself.
	if _, err := m.as(m.palyra, "palyra", "vault", "verify", "--state", stateDir); err == nil || !strings.Contains(err.Error(), "the service manager gave this process none") {
		return "", fmt.Errorf("outside of the unit: %v", err)
	}
	if _, err := m.as(m.palyra, "systemd-creds", "decrypt", "--name=palyra-vault", credential, "-"); err == nil {
		return "", errors.New("the unit's user decrypts the credential")
	}
	// Another identity is refused by name, and opens nothing.
	const dropIn = "/run/systemd/system/palyra-vault@.service.d"
	if err := errors.Join(os.MkdirAll(dropIn, 0o755), os.WriteFile(dropIn+"/other.conf",
		[]byte("[Service]\nLoadCredentialEncrypted=\nLoadCredentialEncrypted=palyra-vault:/run/other.cred\n"), 0o644)); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"palyra", "vault", "identity", "--state", stateDir, "/run/other.key"},
		{"systemd-creds", "encrypt", "--name=palyra-vault", "/run/other.key", "/run/other.cred"},
		{"systemctl", "daemon-reload"},
	} {
		if _, err := m.do(args...); err != nil {
			return "", err
		}
	}
	if out, err := verified(); err == nil || !strings.Contains(out, "another identity than the one that was kept there") {
		return "", fmt.Errorf("another identity: %v: %s", err, out)
	}
	if err := os.RemoveAll(dropIn); err != nil {
		return "", err
	}
	if _, err := m.do("systemctl", "daemon-reload"); err != nil {
		return "", err
	}
	if _, err := m.do("systemctl", "reset-failed", "palyra-vault@verify"); err != nil {
		return "", err
	}
	return m.doctorOf("vault_identity")
}

// doctorOf is what doctor says of one thing.
func (m *manager) doctorOf(name string) (string, error) {
	var doc struct {
		Doctor struct {
			Findings []struct{ Name, Answer, Detail string }
		}
	}
	out, failed := m.do("palyra", "doctor", "--json") // other findings may have it end with 3
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		return "", errors.Join(err, failed)
	}
	for _, f := range doc.Doctor.Findings {
		if f.Name == name {
			return f.Answer + ", " + f.Detail, nil
		}
	}
	return "", fmt.Errorf("doctor says nothing of %s", name)
}
