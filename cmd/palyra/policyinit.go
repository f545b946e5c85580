package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"palyra/authz/policy"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// policy init writes schemaFile only on request: a directory with a copy must have the
// exact schema, which another version of Palyra may not have.
const schemaFile = "palyra.cedarschema"

// policyInit writes the built-in set into a directory, and loads it from there.
func (a *app) policyInit(inv *command.Invocation) (*front.Report, error) {
	dir := inv.Operands[0]
	op := fmt.Sprintf("make policy directory %q", dir)
	root, err := emptyDir(op, dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(policy.DefaultFS(), ".")
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() == schemaFile && !inv.Has("schema") {
			continue
		}
		data, err := fs.ReadFile(policy.DefaultFS(), e.Name())
		if err != nil {
			return nil, fault.New(fault.Internal, "internal", op, err)
		}
		if err := writeNew(root, e.Name(), data); err != nil {
			return nil, fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("write policy file %q", filepath.Join(dir, e.Name())), err)
		}
		names = append(names, e.Name())
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
	fmt.Fprintf(&b, "wrote the built-in policies to %s\n", front.Escape(dir))
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
	return &front.Report{Text: b.String(), Fields: front.Document{"dir": full, "files": names, "policy_set": set.Digest()}}, nil
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
