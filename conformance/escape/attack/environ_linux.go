package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// environProbes are case 97: a program that runs what a variable leads it to.
var environProbes = map[string]probe{"by-variable": byVariable}

// byVariable executes the program with the given name that PATH leads to, as make,
// find and shells do, or one that HOME does, as git does with the hooks that the
// configuration there names.
func byVariable(a args) (string, error) {
	path := filepath.Join(os.Getenv("HOME"), "bin", a.str("name"))
	if a.str("variable") == "PATH" {
		var err error
		if path, err = exec.LookPath(a.str("name")); err != nil {
			return "", err
		}
	}
	return "", failed(fmt.Sprintf("execve %s", path), unix.Exec(path, execArgv(a), os.Environ()))
}
