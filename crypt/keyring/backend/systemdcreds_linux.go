package backend

import "os"

// programs are the places of systemd-creds. $PATH is the caller's, and isn't searched.
var programs = []string{"/usr/bin/systemd-creds", "/bin/systemd-creds", "/run/current-system/sw/bin/systemd-creds"}

func systemdCreds() (store, error) {
	for _, path := range programs {
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return creds{path}, nil
		}
	}
	return creds{}, nil // what the service manager gave can be read without
}
