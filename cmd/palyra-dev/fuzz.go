package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// fuzzTarget is a line of the file "targets" that make fuzzers writes.
type fuzzTarget struct{ name, file string }

var fuzzLine = regexp.MustCompile(`^([\w/-]+\.Fuzz\w+) ([\w-]+\.test)$`)

// fuzz lists the fuzz targets, or becomes the test binary of one.
func fuzz(inv *command.Invocation) (*front.Report, error) {
	dir := command.Value(inv, "from", "")
	if dir == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fault.New(fault.Internal, "internal", "find the fuzz targets", err)
		}
		dir = filepath.Join(filepath.Dir(exe), "fuzz")
	}
	targets, err := fuzzTargets(dir)
	if err != nil {
		return nil, err
	}
	name := command.Value(inv, "target", "")
	if name == "" {
		names := make([]string, len(targets))
		for i, t := range targets {
			names[i] = t.name
		}
		if !inv.Has("list") {
			return nil, front.Required(inv, "target")
		}
		return &front.Report{Text: strings.Join(names, "\n") + "\n", Fields: front.Document{"targets": names}}, nil
	}
	t, err := fuzzTargetOf(targets, name)
	if err != nil {
		return nil, err
	}
	corpus := command.Value(inv, "corpus", "")
	if corpus == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fault.New(fault.Usage, "bad_command", "choose a corpus folder", err).WithHint("give --corpus")
		}
		corpus = filepath.Join(cache, "palyra", "fuzz")
	}
	return nil, runFuzz(dir, corpus, t, command.Value(inv, "for", time.Minute))
}

// runFuzz does not return if it works.
func runFuzz(dir, corpus string, t fuzzTarget, length time.Duration) error {
	op := fmt.Sprintf("run fuzz target %q", t.name)
	file, err := filepath.Abs(filepath.Join(dir, t.file))
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	// The fuzzer writes failing inputs beneath its working directory.
	here, err := filepath.Abs(filepath.Join(corpus, filepath.FromSlash(t.name)))
	if err == nil {
		err = os.MkdirAll(here, 0o700)
	}
	if err == nil {
		err = os.Chdir(here)
	}
	if err != nil {
		return fault.New(fault.BadState, "bad_file", op, err)
	}
	_, short, _ := strings.Cut(t.name, ".")
	err = syscall.Exec(file, []string{file, "-test.run=^$", "-test.fuzz=^" + short + "$", "-test.fuzztime=" + length.String(),
		"-test.fuzzcachedir=" + filepath.Join(here, "cache")}, os.Environ())
	return fault.New(fault.BadState, "bad_file", op, fmt.Errorf("execute %q: %w", file, err))
}

// fuzzTargets reads the list in dir.
func fuzzTargets(dir string) ([]fuzzTarget, error) {
	op := fmt.Sprintf("read the fuzz targets in %q", dir)
	b, err := os.ReadFile(filepath.Join(dir, "targets"))
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", op, err).
			WithHint("make fuzzers builds them into bin/fuzz; --from names another folder")
	}
	var out []fuzzTarget
	for line := range strings.Lines(string(b)) {
		m := fuzzLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			return nil, fault.New(fault.BadState, "bad_file", op, fmt.Errorf("line %.100q", line))
		}
		out = append(out, fuzzTarget{m[1], m[2]})
	}
	return out, nil
}

// fuzzTargetOf finds a target by its name or the end of it.
func fuzzTargetOf(targets []fuzzTarget, name string) (fuzzTarget, error) {
	var found []fuzzTarget
	for _, t := range targets {
		if t.name == name {
			return t, nil
		}
		if rest, ok := strings.CutSuffix(t.name, name); ok && name != "" && strings.ContainsAny(rest[len(rest)-1:], "./") {
			found = append(found, t)
		}
	}
	op := fmt.Sprintf("find fuzz target %q", name)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return fuzzTarget{}, fault.New(fault.Usage, "bad_command", op, errors.New("no such target")).WithHint("palyra fuzz --list")
	}
	return fuzzTarget{}, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("%q, %q and maybe others", found[0].name, found[1].name)).
		WithHint("give the whole name")
}
