//go:build !windows

package backend

import "palyra/crypt/keyring/backend/record"

func dpapi() (store, error) { return nil, elsewhere(record.DPAPI, "Windows") }
