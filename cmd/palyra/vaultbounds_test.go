package main

import (
	"testing"

	"palyra/cmd/internal/settings"
	"palyra/crypt/vault"
)

// TestVaultBounds: package settings, which palyra's client of palyrad links without the vault, has the
// vault's bounds.
func TestVaultBounds(t *testing.T) {
	if settings.MaxValue != vault.MaxValue || settings.MinScrubbed != vault.MinScrubbed {
		t.Errorf("settings has %d and %d, the vault %d and %d", settings.MaxValue, settings.MinScrubbed, vault.MaxValue, vault.MinScrubbed)
	}
}
