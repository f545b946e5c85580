// Package installed finds the programs that are installed together with the one
// that runs: palyra-cell, palyra-tool, palyra-ctl.
//
//	path, err := installed.Find(exe, "palyra-cell", "cell")
//
// Whoever can write such a program decides what confines calls, so it is held to
// what policies and the configuration are held to: it belongs to root or to the
// user who runs it, neither group nor others can write it, and so for every folder
// above it. A sticky folder may be everybody's.
//
// What it does not protect against: a program that is replaced between the look
// and its start, by root or by that user.
package installed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"palyra/internal/fault"
)

// Find looks for name beside the file that exe resolves to, else where a packager
// puts helpers. It is never looked up in PATH and no variable overrides it: whoever
// could set one would run our forker. what begins the reason codes.
func Find(exe, name, what string) (string, error) {
	op := "find " + name
	real, err := filepath.EvalSymlinks(exe)
	if err != nil {
		return "", fault.New(fault.Refused, what+"_missing", op, err)
	}
	dir := filepath.Dir(real)
	tries := []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "palyra", name)}
	for _, p := range tries {
		if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			continue
		}
		return Check(p, what)
	}
	return "", fault.New(fault.Refused, what+"_missing", op,
		fmt.Errorf("neither %q nor %q exists", tries[0], filepath.Clean(tries[1]))).
		WithHint(name + " is built and installed together with " + filepath.Base(real) + ": make build")
}

// Check returns the path without links of a program that only root and this user
// can change.
func Check(path, what string) (string, error) {
	op := fmt.Sprintf("use %q", path)
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		reason := what + "_unusable"
		if errors.Is(err, os.ErrNotExist) {
			reason = what + "_missing"
		}
		return "", fault.New(fault.Refused, reason, op, err)
	}
	fi, err := os.Lstat(real)
	switch {
	case err != nil:
		return "", fault.New(fault.Refused, what+"_unusable", op, err)
	case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0:
		return "", fault.New(fault.Refused, what+"_unusable", op, errors.New("not an executable file"))
	}
	for p := real; ; p = filepath.Dir(p) {
		if fi, err = os.Lstat(p); err != nil {
			return "", fault.New(fault.Refused, what+"_unusable", op, err)
		}
		if hint, err := ours(p, fi); err != nil {
			return "", fault.New(fault.Refused, what+"_unusable", op, err).WithHint(hint)
		}
		if p == filepath.Dir(p) {
			return real, nil
		}
	}
}
