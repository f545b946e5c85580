package programs

import (
	"errors"

	"palyra/cmd/internal/command"
)

// Flags of commands about the vault. A palyrad takes the receipt's alone: with another palyra does
// the command itself.
var (
	flagNoDaemon = command.Flag{Name: "no-daemon", Help: "do it here, also where this user has a palyrad"}
	vaultFlags   = []command.Flag{FlagVaultKey, FlagVaultPassphrase, FlagPolicy, FlagState, FlagReceipt, flagNoDaemon}
)

var vaultExits = []command.Exit{{Code: "1", Meaning: "no vault, or no such secret or version"}, {Code: "4", Meaning: "denied by policy, or the vault is another recipient's"},
	{Code: "5", Meaning: "not approved"}, {Code: "7", Meaning: "refused: expired, full, or the host cannot enforce the tier"},
	{Code: "8", Meaning: "the vault is damaged, or an older one"}, {Code: "78", Meaning: "state directory, key or configuration unsafe or unreadable"}}

func parseImportFormat(s string) (any, error) {
	if s != "dotenv" && s != "env" && s != "export" {
		return nil, errors.New("want dotenv, env or export")
	}
	return s, nil
}

const recipientTypes = "hpke-mlkem768-x25519|argon2id"

func parseRecipientType(s string) (any, error) {
	if s != "hpke-mlkem768-x25519" && s != "argon2id" {
		return nil, errors.New("want hpke-mlkem768-x25519 or argon2id")
	}
	return s, nil
}

// secrets returns the commands about a vault that has secrets. palyra itself does them for that of
// a state directory, palyra-ctl for palyrad's.
func secrets() []command.Command {
	return []command.Command{
		{
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
		},
		{
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
		},
		{
			Name: "vault ls", Short: "list secrets, without values",
			Flags: vaultFlags, Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault ls", Does: "one line for each secret"}},
		},
		{
			Name: "vault history", Operands: "REF", Min: 1, Max: 1, Short: "list the versions of a secret that are kept",
			Flags: vaultFlags, Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault history vault://global/deploy_token", Does: "one line for each of at most eight versions"}},
		},
		{
			Name: "vault rollback", Operands: "REF VERSION", Min: 2, Max: 2, Short: "make an older value the newest again",
			Long: `
The new version expires when the older one does, or at --expires. An expired one
needs that.`,
			Flags: append([]command.Flag{{Name: "expires", Arg: "TIME", Help: "give the new version out until then alone"}}, vaultFlags...), Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault rollback vault://global/deploy_token 3", Does: "stores the value of version 3 as a new version"}},
		},
		{
			Name: "vault rm", Operands: "REF", Min: 1, Max: 1, Short: "remove all versions of a secret",
			Long: `
Drops the keys of all versions, and their files. Copies of the state directory that
were made before have them still. A sensitive call: the built-in policies ask.`,
			Flags: vaultFlags, Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault rm vault://global/deploy_token", Does: "asks, then removes it"}},
		},
		{
			Name: "vault rotate", Short: "make a new key for the vault",
			Long: `
Wraps a new key for the same recipients, but those of --drop. A dropped one can
still open copies that were made before: change the secrets themselves, too. With
--values each value gets a new key besides, and its file is written anew; if that is
interrupted, later changes go on with it, and palyra vault verify counts what is
left. A sensitive call: the built-in policies ask.`,
			Flags:    append([]command.Flag{{Name: "values", Help: "give each value a new key, too"}, {Name: "drop", Arg: "LABEL", Help: "leave out a recipient (palyra vault recipients lists them)", Repeat: true}}, vaultFlags...),
			Exits:    vaultExits,
			Examples: []command.Example{{Line: "palyra vault rotate --drop recovery", Does: "asks, then wraps a new key for all but recovery"}},
		},
		{
			Name: "vault verify", Short: "check every version of every secret, and the journal's word",
			Long: `
Opens each record in memory, prints no name and no value, and compares the vault with
the newest state that the journal knows.`,
			Flags:    []command.Flag{FlagVaultKey, FlagVaultPassphrase, FlagState, flagNoDaemon},
			Exits:    vaultExits,
			Examples: []command.Example{{Line: "palyra vault verify", Does: "says how many versions there are, and who can open them"}},
		},
		{
			Name: "vault recipients", Operands: "[ls | add LABEL FILE | rm LABEL...]", Min: 0, Max: -1, Takes: []string{"ls|add|rm"},
			Short: "list, add or remove who can open the vault",
			Long: `
Lists the recipients that the vault's key is wrapped for: label, type and the digest
of the public key.

"add" takes a public key from FILE, the line that palyra vault identity prints, or
with --type argon2id a passphrase, which palyrad doesn't take. LABEL has a-z, 0-9 and
"-". A new one can open every secret, so this is a sensitive call, of the tool
vault.add_recipient: the built-in policies ask. Label, type and digest stand in the
question. A new key for the vault can't be wrapped for a passphrase that isn't at
hand, so a second one is in its way.

"rm LABEL..." is palyra vault rotate --drop LABEL...`,
			Flags: append([]command.Flag{{Name: "type", Arg: "TYPE", Help: "of the added recipient: hpke-mlkem768-x25519 (default),\nor argon2id", Values: recipientTypes, Parse: parseRecipientType}},
				vaultFlags...),
			Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault recipients", Does: "one line for each recipient"},
				{Line: "palyra vault recipients add safe safe.pub", Does: "asks, then wraps the key for the identity in the safe"}},
		},
		{
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
				FlagVaultKey, FlagVaultPassphrase, FlagPolicy, FlagState, FlagReceipt, flagNoDaemon},
			Exits: vaultExits,
			Examples: []command.Example{{Line: "palyra vault import --format dotenv --dry-run .env", Does: "lists what it would store"},
				{Line: "palyra vault import --format dotenv --scope skill:acme .env", Does: "stores vault://skill:acme/NAME for each"},
				{Line: "palyra vault import --format export --identity KEY all.age", Does: "stores what another vault exported"}},
		},
		{
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
		},
	}
}
