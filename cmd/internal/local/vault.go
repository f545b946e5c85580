package local

import (
	"fmt"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/programs"
	"palyra/crypt/keyring/backend/record"
)

var (
	flagBeside  = command.Flag{Name: "allow-beside", Help: "let the identity be a plain file in the state\ndirectory: a copy of it opens itself"}
	flagVaultPw = programs.FlagVaultPassphrase
)

var vaultInitCommand = command.Command{
	Name:  "vault init",
	Short: "make the vault of a state directory",
	Long: `
Makes the vault, and an identity that opens it. --backend says what keeps that:

  secret-service  the desktop's keyring, over D-Bus (Linux)
  macos-keychain  the user's keychain
  dpapi           a file that Windows encrypts for the user
  systemd-creds   a file that systemd encrypts for the host, with its TPM if it has
                  one, or the credential palyra-vault of the unit that this runs in
  file            a file of mode 0600 (--key)

Each is tested with a value that is written, read back and removed. auto takes the
first that passes; it says which others didn't, and asks no person. The vault's
folder records which it is, and no other is taken later.

With --passphrase a passphrase opens the vault, too, or alone if neither --key nor
--backend is given. With --recovery another identity is written to FILE, to be kept
away from this host.`,
	Flags: []command.Flag{{Name: "backend", Arg: "NAME", Help: "what keeps the identity (default auto)", Parse: parseBackend, Values: "auto|" + backends()},
		{Name: "key", Arg: "FILE", Help: "keep it in FILE: --backend file (default\n$XDG_CONFIG_HOME/palyra/vault.key, else\n~/.config/palyra/vault.key)"}, flagBeside,
		flagVaultPw, {Name: "recovery", Arg: "FILE", Help: "write an identity for recovery to FILE"}, flagState, flagJSON},
	Exits: []command.Exit{exitOK, exitUsage, {Code: "7", Meaning: "the backend is another system's"}, exitIntegrity,
		{Code: "75", Meaning: "busy, or the keyring is locked, absent or silent"}, {Code: "78", Meaning: "there is a vault, or the state directory or a key is unsafe"}},
	Examples: []command.Example{{Line: "palyra vault init", Does: "keeps the identity in the desktop's keyring, or a file"},
		{Line: "palyra vault init --key /secure/vault.key", Does: "keeps it in that file"},
		{Line: "palyra vault init --recovery /media/usb/palyra.key", Does: "and makes an identity for the safe"}},
}

var vaultMigrateCommand = command.Command{
	Name:  "vault migrate-backend",
	Short: "move the identity of the vault to another backend",
	Long: `
Tries the new backend as palyra vault init does, writes the identity there, reads it
back, records the new place and removes the identity from the old one. After a crash
or a failure the recorded place has it, and the same command goes on. Neither the
identity nor the vault changes.

systemd-creds in a unit takes the credential that the unit was given, if it is the
same identity.`,
	Flags: []command.Flag{{Name: "to", Arg: "NAME", Help: "the new backend; required", Parse: parseBackendNoAuto, Values: backends()},
		{Name: "key", Arg: "FILE", Help: "with --to file, the new file (default\n$XDG_CONFIG_HOME/palyra/vault.key, else\n~/.config/palyra/vault.key); else the file that has\nthe identity of a vault without a record"}, flagBeside, flagState, flagJSON},
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "no vault"}, exitUsage, {Code: "7", Meaning: "the backend is another system's"}, exitIntegrity,
		{Code: "75", Meaning: "busy, or a keyring is locked, absent or silent"}, {Code: "78", Meaning: "no identity where it should be, or a file is unsafe"}},
	Examples: []command.Example{{Line: "palyra vault migrate-backend --to secret-service", Does: "moves it from a file to the desktop's keyring"},
		{Line: "palyra vault migrate-backend --to file --key /secure/vault.key", Does: "moves it to a file"}},
}

func backends() string {
	var names []string
	for _, k := range record.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, "|")
}

func parseBackend(s string) (any, error) {
	if s == "auto" {
		return s, nil
	}
	return parseBackendNoAuto(s)
}

func parseBackendNoAuto(s string) (any, error) {
	if !slices.Contains(record.Kinds(), record.Kind(s)) {
		return nil, fmt.Errorf("backend %q: want one of %s", s, backends())
	}
	return s, nil
}

var vaultIdentityCommand = command.Command{
	Name: "vault identity", Operands: "FILE", Min: 1, Max: 1,
	Short: "make an identity, and print its public line",
	Long: `
Writes a new identity to FILE, which must not exist, and the public key to standard
output: the line that palyra vault recipients add takes. It opens nothing until it's
added. It needs no vault, so it can be made where it's to be kept.`,
	Flags:    []command.Flag{flagState, flagJSON},
	Exits:    []command.Exit{exitOK, exitUsage, exitBusy, {Code: "78", Meaning: "there is such a file, or it would lie in the state directory"}},
	Examples: []command.Example{{Line: "palyra vault identity /media/usb/palyra.key", Does: "prints the line to be added"}},
}
