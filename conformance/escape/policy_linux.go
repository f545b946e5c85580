package main

import (
	_ "embed"
	"os"
	"path/filepath"
)

//go:embed policy/battery.cedar
var policyText []byte

// makeHome makes the user's home with the policy directory that the battery runs under. It
// belongs to the user, since in a user namespace root's files belong to the overflow user.
func (u *user) makeHome() error {
	file := filepath.Join(u.policy, "battery.cedar")
	if err := os.MkdirAll(u.policy, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file, policyText, 0o600); err != nil {
		return err
	}
	for _, p := range []string{u.home, u.policy, file} {
		if err := os.Chown(p, u.uid, u.gid); err != nil {
			return err
		}
	}
	return nil
}
