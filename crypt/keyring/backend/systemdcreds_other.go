//go:build !linux

package backend

import "palyra/crypt/keyring/backend/record"

func systemdCreds() (store, error) { return nil, elsewhere(record.SystemdCreds, "Linux") }
