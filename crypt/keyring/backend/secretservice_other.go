//go:build !linux

package backend

import "palyra/crypt/keyring/backend/record"

func secretService(bool) (store, error) { return nil, elsewhere(record.SecretService, "Linux") }
