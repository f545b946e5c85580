package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// policyInit writes the built-in set or a preset into a directory, and loads it from there.
// It writes the schema only on request: a directory with a copy must have the exact schema,
// which another version of Palyra may not have.
func (a *app) policyInit(inv *command.Invocation) (*front.Report, error) {
	dir := inv.Operands[0]
	op := fmt.Sprintf("make policy directory %q", dir)
	preset := command.Value(inv, "preset", "")
	files, ok := policy.PresetFiles(preset)
	if !ok {
		return nil, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("no preset %q", preset)).
			WithHint("want " + strings.Join(policy.Presets(), ", "))
	}
	lists := policy.HostLists()
	for _, name := range command.All[string](inv, "hosts") {
		text, ok := lists[name+".hosts"]
		if !ok {
			return nil, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("no list of hosts %q", name)).
				WithHint("want " + strings.Join(slices.Sorted(maps.Keys(lists)), ", ") + ", without .hosts")
		}
		files[name+".hosts"] = text
	}
	root, err := emptyDir(op, dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !inv.Has("schema") {
		delete(files, policy.SchemaFile)
	}
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if err := writeNew(root, name, files[name]); err != nil {
			return nil, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write policy file %q", filepath.Join(dir, name)), err)
		}
	}
	set, err := policy.Load(dir)
	if err != nil {
		return nil, err
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		full = dir
	}
	var b strings.Builder
	what := "the built-in policies"
	if preset != "" {
		what = "the preset " + preset
	}
	fmt.Fprintf(&b, "wrote %s to %s\n", what, front.Escape(dir))
	for _, n := range names {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	shown := front.Escape(dir)
	fmt.Fprintf(&b, `change them, then
  palyra policy check %[1]s             loads them and runs their tests
  palyra exec --policy %[1]s -- CMD     decides one call by them
for palyrad, in palyrad.toml, then restart it:
  [policy]
  dir = "%[2]s"
the change that a denial offers (palyra policy why DECISION) is applied with
  patch -d %[1]s -p1 < FILE
`, shown, front.Escape(full))
	return &front.Report{Text: b.String(), Fields: front.Document{"dir": full, "files": names, "preset": preset, "policy_set": set.Digest()}}, nil
}

// emptyDir opens an empty directory, or makes it if it is missing. Its parent must exist.
func emptyDir(op, dir string) (*os.Root, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	}
	// OpenRoot would wait at a FIFO for a writer.
	if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
		return nil, fault.New(fault.Usage, "bad_file", op, errors.New("it is no directory"))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	}
	d, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 {
		root.Close()
		return nil, fault.New(fault.BadState, "bad_file", op, errors.New("it has files already")).
			WithHint("name a directory that is empty, or one that does not exist in a folder that does")
	}
	return root, nil
}

func writeNew(root *os.Root, name string, data []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
