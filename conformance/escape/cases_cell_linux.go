package main

import (
	"os"
	"path/filepath"
)

// cellCases are 100: what is wrong is in what the template shows of the host.
func cellCases() []attackCase {
	var out []attackCase
	for _, kind := range []string{"stream", "dgram"} {
		out = append(out, attackCase{number: 100, variant: kind, name: "usr-unix", attack: "reach a host process that listens below /usr, which every cell shows",
			stopped: both("ECONNREFUSED", "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"),
			stage:   func(s *stage) (scene, error) { return systemSocketScene(s, kind) }})
	}
	return out
}

// systemSocketScene has the host listen in a folder of /usr/local, as software does
// that was installed with that prefix. Only root may.
func systemSocketScene(s *stage, kind string) (scene, error) {
	dir := filepath.Join("/usr/local", s.nonce)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return scene{}, err
	}
	s.later(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // past the umask
		return scene{}, err
	}
	return unixScene(s, kind, filepath.Join(dir, "sock"), "")
}
