// Package installed finds the programs that are installed beside the running one:
// palyra-cell, palyra-tool, and those that palyra becomes.
//
//	path, err := installed.Find(exe, "palyra-cell")
//
// Whoever can write such a program decides what confines calls, so it is held to
// what policies and the configuration are held to: it belongs to root or to the
// user who runs it, neither group nor others can write it, and so for every folder
// and link on the way to it. A sticky folder may be everybody's.
//
// The package doesn't protect against a program that root or that user replaces between the
// look and its start.
package installed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"palyra/internal/fault"
)

// reasonUnusable is the reason of every error here: install the program again.
const reasonUnusable = "helper_unusable"

// Find looks for name beside the file that exe resolves to, else where a packager
// puts helpers. It is never looked up in PATH and no variable overrides it: whoever
// could set one would run our forker.
func Find(exe, name string) (string, error) {
	op := "find " + name
	real, err := filepath.EvalSymlinks(exe)
	if err != nil {
		return "", fault.New(fault.Refused, reasonUnusable, op, err)
	}
	dir := filepath.Dir(real)
	tries := []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "palyra", name)}
	for _, p := range tries {
		if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			continue
		}
		return Check(p)
	}
	return "", fault.New(fault.Refused, reasonUnusable, op,
		fmt.Errorf("neither %q nor %q exists", tries[0], filepath.Clean(tries[1]))).
		WithHint(name + " is built and installed together with " + filepath.Base(real) + ": make build")
}

// Check returns the path without links of a program that only root and this user
// can change.
func Check(path string) (string, error) {
	op := fmt.Sprintf("use %q", path)
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fault.New(fault.Refused, reasonUnusable, op, err)
	}
	real, hint, err := resolve(abs)
	if err != nil {
		return "", fault.New(fault.Refused, reasonUnusable, op, err).WithHint(hint)
	}
	fi, err := os.Lstat(real)
	switch {
	case err != nil:
		return "", fault.New(fault.Refused, reasonUnusable, op, err)
	case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0:
		return "", fault.New(fault.Refused, reasonUnusable, op, errors.New("not an executable file"))
	}
	return real, nil
}

// Palyra is the path of palyra for a configuration that names it: beside the running
// program, or in bin where that is in libexec/palyra; else the bare name, to be looked up.
// Only its presence is checked here.
func Palyra(executable func() (string, error)) string {
	exe, err := executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err == nil {
		dir := filepath.Dir(exe)
		for _, p := range []string{filepath.Join(dir, "palyra"), filepath.Join(dir, "..", "..", "bin", "palyra")} {
			if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() {
				return p
			}
		}
	}
	return "palyra"
}
