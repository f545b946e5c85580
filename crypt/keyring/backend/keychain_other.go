//go:build !darwin

package backend

import "palyra/crypt/keyring/backend/record"

func keychain() (store, error) { return nil, elsewhere(record.Keychain, "macOS") }
