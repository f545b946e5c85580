package local

import "palyra/cmd/internal/command"

var keysExits = []command.Exit{exitOK, exitUsage, {Code: "4", Meaning: "the keys are sealed for other identities"}, exitIntegrity, exitBusy, exitState}

var keysSealCommand = command.Command{
	Name: "keys seal", Short: "seal the private signing keys for an identity",
	Long: `
Writes keys/att.key and keys/log.key sealed, and the keys in ca/ if there are any,
for the identity of --key and for each further --recipient, whose line palyra vault
identity prints. From then on palyra
opens them with that identity, and palyrad with its keys.identity; set that first.
The plain files may stay in free blocks of the disk, in snapshots and in backups:
rotate the key, too, if those aren't yours alone (palyra keys rotate). Sealed keys
are sealed again, for the recipients of this command.`,
	Flags:    []command.Flag{{Name: "recipient", Arg: "LABEL=FILE", Help: "a further recipient: the line in FILE, under a label\nof a-z, 0-9 and -", Repeat: true}, flagKey, flagState, flagJSON},
	Exits:    keysExits,
	Examples: []command.Example{{Line: "palyra keys seal", Does: "seals them for ~/.config/palyra/vault.key"}, {Line: "palyra keys seal --recipient safe=/media/usb/safe.pub", Does: "and for one that is kept away"}},
}

var keysUnsealCommand = command.Command{
	Name: "keys unseal", Short: "write the private signing keys plain again",
	Long: `
The journal records it. A reader of the disk, or of a copy of it, can then sign and
certify devices as this installation. Of keys that are plain it says that they may be:
palyra doctor then repeats who said so and when, and doesn't count them as missing.`,
	Flags: []command.Flag{flagKey, flagState, flagJSON}, Exits: keysExits,
	Examples: []command.Example{{Line: "palyra keys unseal", Does: "asks for no identity from then on"}},
}
