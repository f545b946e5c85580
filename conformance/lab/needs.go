package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// need is a program or file of this machine, and the package of Debian that has
// it.
type need struct{ name, pkg string }

// needs are those of machines, "" for the archive alone; what is always on a
// Debian is there, too, since this may be no Debian.
func needs(m machine) []need {
	n := []need{{"apt-get", "apt"}, {"apt-cache", "apt"}, {keyring, "debian-archive-keyring"}}
	if m.suite == "" {
		return n
	}
	return append(n, need{m.emulator()[0], "qemu-system-" + map[string]string{"amd64": "x86", "arm64": "arm"}[m.arch]},
		need{"mke2fs", "e2fsprogs"}, need{"xz", "xz-utils"}, need{"dpkg-deb", "dpkg"}, need{"tar", "tar"})
}

// lookPath finds a program where root's PATH would, too: mke2fs is in /sbin.
func lookPath(name string) (string, error) {
	at, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			at, err = exec.LookPath(dir + name)
		}
	}
	return at, err
}

// missing lists the things that machines need and this one lacks, by package. It installs
// nothing: that is the user's decision.
func missing(ms []machine) error {
	var names, pkgs []string
	for _, m := range ms {
		for _, n := range needs(m) {
			_, err := lookPath(n.name)
			if strings.HasPrefix(n.name, "/") {
				_, err = os.Stat(n.name)
			}
			if err == nil || slices.Contains(names, n.name) {
				continue
			}
			if names = append(names, n.name); !slices.Contains(pkgs, n.pkg) {
				pkgs = append(pkgs, n.pkg)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("missing: %s\nlab: apt-get install --no-install-recommends %s", strings.Join(names, ", "), strings.Join(pkgs, " "))
}

// unreachable is a failure to reach the archive, which says nothing of Palyra.
type unreachable struct{ error }

func (e unreachable) Unwrap() error { return e.error }

// apart is how apt says that no server answered, or one between here and the archive did:
// from its methods connect.cc and http.cc. An archive that answers and lacks a file is
// another matter.
var apart = []string{"Could not resolve", "Temporary failure resolving", "Could not connect", "Unable to connect", "Cannot initiate the connection",
	"Connection timed out", "Connection failed", "connection refused", "Network is unreachable", "No route to host", "Error reading from server",
	"502 Bad Gateway", "503 Service", "504 Gateway"}

// untrue is how it reports a wrong answer. It wins: an attacker who can change an answer
// can also break a connection.
var untrue = []string{"Hash Sum mismatch", "unexpected size", "signature", "BADSIG", "NO_PUBKEY"}

// reach makes an error of apt unreachable if it is nothing else.
func reach(err error) error {
	if err == nil {
		return nil
	}
	text := single(err.Error())
	has := func(w string) bool { return strings.Contains(text, w) }
	if slices.ContainsFunc(untrue, has) || !slices.ContainsFunc(apart, has) {
		return err
	}
	return unreachable{err}
}

// single has one space for two: apt writes "404  Not Found".
func single(s string) string { return strings.ReplaceAll(s, "  ", " ") }

// away says why the archive could not be reached, in apt's first words on it.
func away(err error) string {
	var u unreachable
	if !errors.As(err, &u) {
		return ""
	}
	for line := range strings.Lines(single(u.Error())) {
		for _, w := range apart {
			if i := strings.Index(line, w); i >= 0 {
				return strings.TrimSpace(line[i:])
			}
		}
	}
	return ""
}
