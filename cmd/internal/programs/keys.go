package programs

import "palyra/cmd/internal/command"

// keys returns the commands about signing keys. palyra itself does them for those of a state
// directory, palyra-ctl for those of palyrad.
func keys() []command.Command {
	state := command.Flag{Name: "state", Arg: "DIR", Help: "the keys of that state directory (default\n$XDG_STATE_HOME/palyra, else ~/.local/state/palyra)"}
	identity := command.Flag{Name: "key", Arg: "FILE", Help: "identity that opens sealed signing keys (default\n$XDG_CONFIG_HOME/palyra/vault.key, else\n~/.config/palyra/vault.key)"}
	locked := command.Exit{Code: "4", Meaning: "the keys are sealed for other identities, or palyrad says no"}
	integrity := command.Exit{Code: "8", Meaning: "keys, trust directory and journal do not go together"}
	unusable := command.Exit{Code: "78", Meaning: "state directory unsafe or unreadable"}
	return []command.Command{
		{Name: "keys ls", Short: "list the signing keys and the entries that each signed",
			Long: `
One line per key, first those that sign statements and then those that sign the
journal's checkpoints, each oldest first: the hint or log id that receipts name it by,
whether it is introduced, in force or ended, the journal's entries that it may have
signed (a checkpoint counts as its newest entry), since when, and its file in the
trust directory, for verifiers that want one key. Of this
user's state directory, or with --trust of any copy of a trust directory, whose
receipts are verified; with --socket or --url of palyrad.`,
			Flags: []command.Flag{{Name: "trust", Arg: "DIR", Help: "a trust directory instead"}, state}, Exits: []command.Exit{integrity, unusable},
			Examples: []command.Example{{Line: "palyra keys ls", Does: "lists the keys of this user's state directory"}}},
		{Name: "keys rotate", Short: "replace the key that signs receipts, or the journal's",
			Long: `
The key in force signs an entry of the journal that introduces the new one; that
signs the next, and is in force from there on. The old private key is overwritten.
With --log it is the key that signs the journal's checkpoints: the journal keeps its
name, and a second entry, with a checkpoint by the old key, puts the new one in force.
Receipts of both verify with the trust directory as it is then: give it to verifiers
again. With --introduce the new key is published and not yet in force, so that they
can have it before; palyra keys rotate then puts it in force. Calls go on meanwhile,
also in a palyrad on the same state directory. With --socket or --url palyrad does
it; only an owner may ask it to.`,
			Flags: []command.Flag{{Name: "log", Help: "the key of the journal's checkpoints"},
				{Name: "introduce", Help: "publish the new key, and put it in force by another\nrotation"}, identity, state}, Exits: []command.Exit{locked, integrity, unusable},
			Examples: []command.Example{{Line: "palyra keys rotate", Does: "makes a new key and puts it in force"},
				{Line: "palyra keys rotate --introduce", Does: "makes one that verifiers can fetch before it signs"},
				{Line: "palyra keys rotate --log", Does: "replaces the key that signs the journal's checkpoints"}}},
	}
}
