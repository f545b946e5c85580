package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/keyring/backend"
	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// config returns the user's folder of configurations.
func (a *app) config() (string, error) {
	switch {
	case filepath.IsAbs(a.getenv("XDG_CONFIG_HOME")):
		return a.getenv("XDG_CONFIG_HOME"), nil
	case filepath.IsAbs(a.getenv("HOME")):
		return filepath.Join(a.getenv("HOME"), ".config"), nil
	case filepath.IsAbs(a.getenv("APPDATA")):
		return a.getenv("APPDATA"), nil
	}
	return "", fault.New(fault.BadState, "state_missing", "find the vault's key", errors.New("neither XDG_CONFIG_HOME nor HOME is an absolute path")).
		WithHint("give one: --key FILE, or --passphrase FILE")
}

// identity finds what opens the vault: what a flag names, else what the record does, else the file
// of a vault that is older than records.
func (a *app) identity(ctx context.Context, inv *command.Invocation, state string) (seal.Identity, error) {
	if path := command.Value(inv, "passphrase", ""); path != "" && !inv.Has("key") {
		return passphrase(path)
	}
	if !inv.Has("key") {
		dir := filepath.Join(state, "vault")
		if _, err := record.Read(dir); !errors.Is(err, fs.ErrNotExist) {
			return backend.LoadRecorded(ctx, dir)
		}
	}
	path, err := a.vaultKey(inv)
	if err != nil {
		return nil, err
	}
	id, err := backend.Load(ctx, record.Place{Backend: record.File, Name: path})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.BadState, "state_missing", fmt.Sprintf("read the vault's key %q", path), errors.New("there is none")).
			WithHint("palyra vault init makes vault and key; --key FILE and --passphrase FILE name others")
	}
	return id, err
}

// place is where a backend will keep an identity.
func (a *app) place(inv *command.Invocation, k record.Kind) (record.Place, error) {
	p := record.Place{Backend: k, Name: rand.Text()}
	var err error
	switch k {
	case record.File:
		if p.Name, err = a.vaultKey(inv); err == nil && filepath.Base(p.Name) == "-" {
			err = keyOnStdout(p.Name)
		}
	case record.SystemdCreds, record.DPAPI:
		var config string
		if config, err = a.config(); err != nil && k == record.SystemdCreds && (os.Geteuid() == 0 || backend.Given()) {
			err = nil // a service has none, and needs none
		}
		if p.Name = filepath.Join(config, "palyra", "vault.dpapi"); k == record.SystemdCreds {
			p = backend.CredentialPlace(config)
		}
	}
	return p, err
}

// choose tries the backend of a flag, or each of this host in turn, and says which others failed.
func (a *app) choose(ctx context.Context, inv *command.Invocation, want string) (record.Place, string, error) {
	if inv.Has("key") && want == backend.Auto {
		want = string(record.File)
	}
	if want != backend.Auto {
		p, err := a.place(inv, record.Kind(want))
		if err == nil {
			err = backend.Try(ctx, p)
		}
		return p, "", err
	}
	var candidates []record.Place
	for _, k := range backend.Automatic() {
		p, err := a.place(inv, k)
		if err != nil {
			return p, "", err
		}
		candidates = append(candidates, p)
	}
	p, passed, err := backend.Choose(ctx, candidates)
	text := ""
	for _, x := range passed {
		text += fmt.Sprintf("not %s: %s\n", x.Place.Backend, front.OneLine(x.Why.Error()))
	}
	return p, text, err
}

// vaultMigrate moves the identity of the vault to another backend.
func (a *app) vaultMigrate(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	to := command.Value(inv, "to", "")
	if to == "" {
		return nil, fault.New(fault.Usage, "bad_command", "vault migrate-backend", errors.New("--to says where")).WithHint("palyra help vault migrate-backend")
	}
	dir := filepath.Join(state, "vault")
	if _, err := os.Lstat(filepath.Join(dir, "head")); err != nil {
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("open vault %q", dir), errors.New("there is none")).
			WithHint("palyra vault init makes one")
	}
	p, err := a.place(inv, record.Kind(to))
	if err != nil {
		return nil, err
	}
	k, err := backend.Take(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	if _, err := record.Read(dir); err == nil && inv.Has("key") && p.Backend != record.File {
		return nil, fault.New(fault.Usage, "bad_command", "vault migrate-backend", errors.New("--key is for --to file: the record says where the identity is"))
	}
	// Where the identity of a vault without a record is: in the file that --key names, unless that
	// is the new one.
	path := command.Value(inv, "key", "")
	if path == "" || p.Backend == record.File {
		config, err := a.config()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(config, "palyra", "vault.key")
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, durable.Fault("find the vault's key", err)
	}
	if err := backend.Try(ctx, p); err != nil {
		return nil, err
	}
	if err := k.Migrate(ctx, &record.Place{Backend: record.File, Name: path}, p, inv.Has("allow-beside")); err != nil {
		return nil, err
	}
	r, err := record.Read(dir)
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: "identity: " + front.OneLine(r.At.String()) + "\n", Fields: front.Document{"backend": r.At.Backend, "name": r.At.Name}}, nil
}

// kept says where the identity is, and what is wrong with that.
func kept(dir string) (string, front.Document, error) {
	r, err := record.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "identity: no backend is recorded\n", front.Document{"backend": nil, "warnings": []string{}}, nil
	}
	if err != nil {
		return "", nil, err
	}
	fields := front.Document{"backend": nil, "warnings": append([]string{}, r.Warnings(dir, filepath.Dir(dir))...)}
	text := "identity: none\n"
	if r.At != nil {
		fields["backend"], fields["name"] = r.At.Backend, r.At.Name
		text = "identity: " + front.OneLine(r.At.String()) + "\n"
	}
	for _, w := range r.Warnings(dir, filepath.Dir(dir)) {
		text += "warning: " + front.OneLine(w) + "\n"
	}
	return text, fields, nil
}
