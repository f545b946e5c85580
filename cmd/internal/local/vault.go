package local

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/programs"
	"palyra/crypt/keyring/backend/record"
)

var (
	flagVaultKey = programs.FlagVaultKey
	flagBeside   = command.Flag{Name: "allow-beside", Help: "let the identity be a plain file in the state\ndirectory: a copy of it opens itself"}
	flagVaultPw  = programs.FlagVaultPassphrase

	vaultFlags = []command.Flag{flagVaultKey, flagVaultPw, flagPolicy, flagState, flagReceipt, flagJSON}
	vaultExits = []command.Exit{exitOK, {Code: "1", Meaning: "no vault, or no such secret or version"}, exitUsage, {Code: "4", Meaning: "denied by policy, or the vault is another recipient's"},
		{Code: "5", Meaning: "not approved"}, {Code: "7", Meaning: "refused: expired, full, or the host cannot enforce the tier"}, exitIntegrity, exitBusy, exitState}
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

var vaultSetCommand = command.Command{
	Name: "vault set", Operands: "REF", Min: 1, Max: 1,
	Short: "store a new version of a secret",
	Long: `
Reads the value from standard input, or from --file, up to 64 KiB; it can't be an
argument, because every process of this host can read those. One newline at its
end isn't part of it, unless --exact. REF is vault://global/KEY,
vault://principal:ID/KEY, vault://channel:NAME:ACCOUNT/KEY or vault://skill:ID/KEY.

A call of its own, of the tool vault.set: it is decided by policy, asked about where
that says so, and attested. Question, journal and receipt have the reference, the
version and the digest of the sealed record, never the value.`,
	Flags: append([]command.Flag{{Name: "file", Arg: "FILE", Help: "read the value from FILE"}, {Name: "exact", Help: "keep a newline at the end"},
		{Name: "expires", Arg: "TIME", Help: "give the version out until then alone, such as\n2027-01-02T15:04:05Z"}}, vaultFlags...),
	Exits:    vaultExits,
	Examples: []command.Example{{Line: "palyra vault set --file token.txt vault://global/deploy_token", Does: "stores version 1, or the next one"}},
}

var vaultGetCommand = command.Command{
	Name: "vault get", Operands: "REF", Min: 1, Max: 1,
	Short: "reveal a secret, or describe it",
	Long: `
Without --reveal: version, size and times. With --reveal the value itself, byte for
byte, on standard output. That is a call of the tool vault.get with the capability
secrets_read, so the built-in policies ask a person about each.`,
	Flags: append([]command.Flag{{Name: "reveal", Help: "print the value"}, {Name: "version", Arg: "N", Help: "an older version (default: the newest)", Parse: command.Count(1 << 31)}}, vaultFlags...),
	Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault get vault://global/deploy_token", Does: "says how long it is and when it was stored"},
		{Line: "palyra vault get --reveal vault://global/deploy_token", Does: "asks, then prints it"}},
}

var vaultLsCommand = command.Command{
	Name: "vault ls", Short: "list secrets, without values",
	Flags: append(vaultFlags[:len(vaultFlags):len(vaultFlags)], flagWide), Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault ls", Does: "one line for each secret"}},
}

var vaultHistoryCommand = command.Command{
	Name: "vault history", Operands: "REF", Min: 1, Max: 1, Short: "list the versions of a secret that are kept",
	Flags: append(vaultFlags[:len(vaultFlags):len(vaultFlags)], flagWide), Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault history vault://global/deploy_token", Does: "one line for each of at most eight versions"}},
}

var vaultRollbackCommand = command.Command{
	Name: "vault rollback", Operands: "REF VERSION", Min: 2, Max: 2, Short: "make an older value the newest again",
	Flags: vaultFlags, Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault rollback vault://global/deploy_token 3", Does: "stores the value of version 3 as a new version"}},
}

var vaultRmCommand = command.Command{
	Name: "vault rm", Operands: "REF", Min: 1, Max: 1, Short: "remove all versions of a secret",
	Long: `
Drops the keys of all versions, and their files. Copies of the state directory that
were made before have them still. A sensitive call: the built-in policies ask.`,
	Flags: vaultFlags, Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault rm vault://global/deploy_token", Does: "asks, then removes it"}},
}

var vaultRotateCommand = command.Command{
	Name: "vault rotate", Short: "make a new key for the vault",
	Long: `
Wraps a new key for the same recipients, but those of --drop. A dropped one can
still open copies that were made before: change the secrets themselves, too. A
sensitive call: the built-in policies ask.`,
	Flags:    append([]command.Flag{{Name: "drop", Arg: "LABEL", Help: "leave out a recipient (palyra vault recipients lists them)", Repeat: true}}, vaultFlags...),
	Exits:    vaultExits,
	Examples: []command.Example{{Line: "palyra vault rotate --drop recovery", Does: "asks, then wraps a new key for all but recovery"}},
}

var vaultVerifyCommand = command.Command{
	Name: "vault verify", Short: "check every version of every secret, and the journal's word",
	Long: `
Opens each record in memory, prints no name and no value, and compares the vault with
the newest state that the journal knows.`,
	Flags:    []command.Flag{flagVaultKey, flagVaultPw, flagState, flagJSON},
	Exits:    []command.Exit{exitOK, {Code: "1", Meaning: "no vault"}, exitUsage, {Code: "4", Meaning: "the vault is another recipient's"}, exitIntegrity, exitBusy, exitState},
	Examples: []command.Example{{Line: "palyra vault verify", Does: "says how many versions there are, and who can open them"}},
}

const recipientTypes = "hpke-mlkem768-x25519|argon2id"

func parseRecipientType(s string) (any, error) {
	if s != "hpke-mlkem768-x25519" && s != "argon2id" {
		return nil, errors.New("want hpke-mlkem768-x25519 or argon2id")
	}
	return s, nil
}

var vaultRecipientsCommand = command.Command{
	Name: "vault recipients", Operands: "[ls | add LABEL FILE | rm LABEL...]", Min: 0, Max: -1, Takes: []string{"ls|add|rm"},
	Short: "list, add or remove who can open the vault",
	Long: `
Lists the recipients that the vault's key is wrapped for: label, type and the digest
of the public key.

"add" takes a public key from FILE, the line that palyra vault identity prints, or
with --type argon2id a passphrase. LABEL has a-z, 0-9 and "-". A new one can
open every secret, so this is a sensitive call, of the tool vault.add_recipient: the
built-in policies ask. Label, type and digest stand in the question. A new key for
the vault can't be wrapped for a passphrase that isn't at hand, so a second one is in
its way.

"rm LABEL..." is palyra vault rotate --drop LABEL...`,
	Flags: append([]command.Flag{{Name: "type", Arg: "TYPE", Help: "of the added recipient: hpke-mlkem768-x25519 (default),\nor argon2id", Values: recipientTypes, Parse: parseRecipientType}},
		append(vaultFlags[:len(vaultFlags):len(vaultFlags)], flagWide)...),
	Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault recipients", Does: "one line for each recipient"},
		{Line: "palyra vault recipients add safe safe.pub", Does: "asks, then wraps the key for the identity in the safe"}},
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

func parseImportFormat(s string) (any, error) {
	if s != "dotenv" && s != "env" && s != "export" {
		return nil, errors.New("want dotenv, env or export")
	}
	return s, nil
}

var vaultImportCommand = command.Command{
	Name: "vault import", Operands: "FILE", Min: 1, Max: 1,
	Short: "store the settings of a file as secrets",
	Long: `
Stores each NAME=VALUE of FILE, or of standard input with "-", as a new version of
vault://SCOPE/NAME: all of them or none, by one call of vault.import. Policy and
question have each reference, with the digest of its sealed record. FILE is read and
checked whole before the call: a malformed line, a name that comes twice and an empty
value are refused, by the line's number alone.

"dotenv" has comments, quotes and values of several lines. "env" is the output of
env, or of env -0, where values may have several lines. "export" is what age -d makes
of an export, or with --identity the export itself: references and times of expiry are
its own, versions this vault's.`,
	Flags: []command.Flag{{Name: "format", Arg: "FORMAT", Help: "of FILE: dotenv, env or export", Values: "dotenv|env|export", Parse: parseImportFormat},
		{Name: "scope", Arg: "SCOPE", Help: "of the secrets (default global)", Values: "global"}, {Name: "identity", Arg: "KEY", Help: "file with the age identity that an export was made\nfor: FILE is the export as it is"},
		{Name: "dry-run", Help: "check FILE and list references; store nothing"},
		flagVaultKey, flagVaultPw, flagPolicy, flagState, flagJSON},
	Exits: vaultExits,
	Examples: []command.Example{{Line: "palyra vault import --format dotenv --dry-run .env", Does: "lists what it would store"},
		{Line: "palyra vault import --format dotenv --scope skill:acme .env", Does: "stores vault://skill:acme/NAME for each"},
		{Line: "palyra vault import --format export --identity KEY all.age", Does: "stores what another vault exported"}},
}

var vaultExportCommand = command.Command{
	Name: "vault export", Operands: "FILE [REF...]", Min: 1, Max: -1,
	Short: "write secrets to a file that an age identity opens",
	Long: `
Writes the newest versions of the secrets REF, or of all that haven't expired, to
FILE, which must not exist: JSON, encrypted for one recipient of age. At most 256.

The holder of --to's identity can read them, without this host, so this is a
reveal: one call of the tool vault.export with the capability secrets_read. Policy and
question have the recipient and each reference with its version, journal and receipt,
too.`,
	Flags:    append([]command.Flag{{Name: "to", Arg: "RECIPIENT", Help: "of age: age1..., as age-keygen prints it", Values: "age1"}}, vaultFlags...),
	Exits:    vaultExits,
	Examples: []command.Example{{Line: "palyra vault export --to RECIPIENT all.age", Does: "asks, then writes it;\nage -d -i KEY all.age opens it"}},
}
