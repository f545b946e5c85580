package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The place for the sources from which Palyra is installed.
const sources = "/root/palyra"

// labUnit starts the checks once the machine is up. It gets the console, and is
// no part of what is tested.
const labUnit = `[Unit]
Description=lab: make palyra's units do what they promise
After=multi-user.target

[Service]
ExecStart=/usr/lib/lab service
WorkingDirectory=` + sources + `
StandardOutput=file:/dev/console
StandardError=file:/dev/console
`

// addService adds to a system with systemd what it needs to install palyra, and
// the lab's own unit. Nothing of palyra is installed yet.
func (l *lab) addService(m machine, root string) error {
	at := func(name string) string { return filepath.Join(root, name) }
	err := errors.Join(os.RemoveAll(at(sources)), m.build(at(sources+"/bin"), "palyra/cmd/..."), m.build(at("usr/lib"), "palyra/conformance/lab"),
		os.CopyFS(at(sources+"/deploy"), os.DirFS("deploy")))
	if err != nil {
		return err
	}
	blocks, err := commands("docs/OPERATIONS.md", "## Install")
	if err != nil {
		return err
	}
	unit, err := commands("docs/OPERATIONS.md", "### A vault for a service")
	if err != nil {
		return err
	}
	files := map[string]string{
		"etc/machine-id":                 strings.Repeat("1ab0", 8) + "\n",
		"etc/hostname":                   "lab\n",
		"etc/systemd/system/lab.service": labUnit,
		sources[1:] + "/go.mod":          "module sources\n", // so that ./... of this tree leaves them out
	}
	for i, b := range blocks {
		files[fmt.Sprintf("%s/install-%d", sources[1:], i)] = b
	}
	for i, b := range unit {
		files[fmt.Sprintf("%s/vault-%d", sources[1:], i)] = b
	}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), []byte(text), 0o644)); err != nil {
			return err
		}
	}
	links := map[string]string{"etc/systemd/system/multi-user.target.wants/lab.service": "/etc/systemd/system/lab.service",
		"etc/systemd/system/default.target": "/usr/lib/systemd/system/multi-user.target"}
	// No terminals to log in at, no bus for logind.
	for _, u := range []string{"getty@.service", "serial-getty@.service", "systemd-logind.service",
		"getty-static.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"} {
		links["etc/systemd/system/"+u] = "/dev/null"
	}
	// The package's script enables it.
	links["etc/systemd/system/sysinit.target.wants/apparmor.service"] = "/usr/lib/systemd/system/apparmor.service"
	for name, to := range links {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.RemoveAll(at(name)), os.Symlink(to, at(name))); err != nil {
			return err
		}
	}
	// Profiles of other programs take an emulated parser long.
	profiles, err := os.ReadDir(at("etc/apparmor.d"))
	for _, p := range profiles {
		if !p.IsDir() {
			err = errors.Join(err, os.Remove(at("etc/apparmor.d/"+p.Name())))
		}
	}
	return err
}

// commands are the blocks of commands of a section of a document.
func commands(file, section string) (blocks []string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, text, ok := strings.Cut(string(b), section+"\n")
	if !ok {
		return nil, fmt.Errorf("%s has no %q", file, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for i, part := range strings.Split(text, "```\n") {
		if i%2 == 1 {
			blocks = append(blocks, part)
		}
	}
	return blocks, nil
}
