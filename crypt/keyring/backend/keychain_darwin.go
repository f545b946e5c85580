package backend

func keychain() (store, error) { return security{"/usr/bin/security"}, nil }
