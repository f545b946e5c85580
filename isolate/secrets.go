package isolate

import (
	"errors"
	"fmt"
	"strings"

	"palyra/call"
	"palyra/isolate/tier"
)

// Secrets are files that a program of tier C reads and nothing else does: each is on a read-only
// tmpfs of the call's own, mode 0400, the program's. Their content is in no Spec.
const (
	SecretsDir = "/run/secrets" // holds those of a call, as its program sees them
	MaxSecrets = 8              // of one call

	// MaxSecretBytes bounds one secret.
	MaxSecretBytes = 64 << 10

	maxSecretName = 64 // bytes
)

// SecretPath is where a program of tier C reads a secret.
func SecretPath(name string) string { return SecretsDir + "/" + name }

// CheckSecret returns an error unless a secret's file can have a name: 1 to 64 of A-Z, a-z, 0-9,
// "_", "." and "-", a letter, digit or "_" first.
func CheckSecret(name string) error {
	const first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	if name == "" || len(name) > maxSecretName || strings.Trim(name, first+".-") != "" || !strings.Contains(first, name[:1]) {
		return errors.New("name of a secret: want 1 to 64 of A-Z, a-z, 0-9, _ . and -, neither . nor - first")
	}
	return nil
}

// CheckSecrets returns an error unless a call of that tier, with that workspace and those mounts,
// can have secrets of these names: sorted, each once.
func CheckSecrets(t tier.Tier, w *Mount, mounts []call.Mount, names []string) error {
	switch {
	case len(names) == 0:
		return nil
	case t != tier.C:
		return fmt.Errorf("tier %v has no secrets: they need a file system of the call's own", t)
	case len(names) > MaxSecrets:
		return fmt.Errorf("%d secrets, at most %d", len(names), MaxSecrets)
	}
	for i, name := range names {
		if err := CheckSecret(name); err != nil {
			return err
		}
		if i > 0 && names[i-1] >= name {
			return errors.New("secrets are not sorted, or a name is given twice")
		}
	}
	places := make([]string, 0, len(mounts)+1)
	for _, m := range mounts {
		places = append(places, m.Source)
	}
	if w != nil && w.OwnPath {
		places = append(places, w.Source)
	}
	for _, at := range places {
		if at == SecretsDir || strings.HasPrefix(SecretsDir, at+"/") || strings.HasPrefix(at, SecretsDir+"/") {
			return fmt.Errorf("%q lies at %s, where secrets are", at, SecretsDir)
		}
	}
	return nil
}
