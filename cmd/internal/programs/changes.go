package programs

import "palyra/cmd/internal/command"

// changes returns the commands about layers. palyra itself does them for those of a state
// directory, palyra-ctl for those that palyrad keeps for sessions; apply and undo of a session's
// layer are always palyrad's where the user has one.
func changes() []command.Command {
	state := command.Flag{Name: "state", Arg: "DIR", Help: "the layers of that state directory (default\n$XDG_STATE_HOME/palyra, else ~/.local/state/palyra)"}
	damaged := command.Exit{Code: "8", Meaning: "the layer is damaged"}
	unusable := command.Exit{Code: "78", Meaning: "state directory unsafe or unreadable"}
	brings := []command.Flag{FlagPolicy, {Name: "key", Arg: "FILE", Help: "identity that opens sealed signing keys (palyra keys\nseal; default ~/.config/palyra/vault.key)"}, state, FlagReceipt,
		{Name: "no-daemon", Help: "palyra makes the call, also for a layer of palyrad's"}}
	brought := []command.Exit{{Code: "4", Meaning: "denied by policy"}, {Code: "5", Meaning: "not approved"},
		{Code: "7", Meaning: "refused: a change cannot be applied, or the host cannot enforce the tier"}, damaged,
		{Code: "75", Meaning: "a file changed meanwhile, a call uses the layer or the workspace, or\n         palyrad doesn't answer"}, unusable}
	return []command.Command{
		{Name: "changes ls", Short: "list the layers of staged workspaces",
			Long: `
One line per layer: its name, its workspace, when it was made, and whether a call
uses it, it has changes or it is empty. A layer is what was written to a staged
workspace by palyra exec --workspace DIR:staged, or by the calls of a session.
It lies in a state directory until it is discarded; a session's goes with the
session's last run, too. Lists those of this user's state directory, which a
palyrad of this user shares, and with --socket or --url those that palyrad keeps:
of the caller's sessions, and for who manages members of all.`,
			Flags: []command.Flag{state}, Exits: []command.Exit{unusable},
			Examples: []command.Example{{Line: "palyra changes ls", Does: "lists the layers of this user's state directory"},
				{Line: "palyra changes ls --socket /run/palyra/palyrad.sock", Does: "lists those of this user's sessions"}}},
		{Name: "changes show", Operands: "[LAYER]", Max: 1, Short: "list the changes in a layer",
			Long: `
One line per name that differs from the workspace as it is now: what was done,
what it is, its size, and why it deserves a look, such as git hooks, CI files,
editors' tasks, agents' configuration, links that lead out, set-id bits. "stale"
says that the host's file has changed since the layer was made. Below are branches
and tags with the subjects of their commits, and what stays in the layer. The digest
names exactly these changes. Without LAYER it is the only one with changes, over the
workspace that the working directory lies in if that has some. A session's layer that
this user's state directory doesn't have is asked of palyrad.`,
			Flags: []command.Flag{state}, Exits: []command.Exit{damaged, unusable},
			Examples: []command.Example{{Line: "palyra changes show fix-42", Does: "lists what the calls with --layer fix-42 changed"}}},
		{Name: "changes diff", Operands: "[LAYER]", Max: 1, Short: "print the changes in a layer as a patch for git apply",
			Long: `
Compares with the workspace as it is now. git apply, in the workspace, brings the
changes over; patch -p1 does, too, without binary files and links. The patch leaves
out commits and git's own files, empty folders, special files, and rights that git
does not know; standard error names these, and stale files. Without LAYER it is the
one that palyra changes show shows.`,
			Flags:    []command.Flag{{Name: "binary", Help: "put files that are not text into the patch, as git does;\nby default standard error names them"}, state},
			Exits:    []command.Exit{{Code: "3", Meaning: "printed, and something was left out or is stale"}, damaged, unusable},
			Examples: []command.Example{{Line: "palyra changes diff fix-42", Does: "prints a patch; with | git apply behind it the workspace gets the changes"}}},
		{Name: "changes apply", Operands: "[LAYER]", Max: 1, Short: "bring the changes in a layer to the workspace",
			Long: `
All of them or none, by a call of its own: it is decided, asked about where policy
says so, confined and attested. The question lists the changes and what deserves a
look, and the yes is for exactly these bytes. Commits of the repository at the top of
the workspace come as refs, with HEAD and index; no git and no hook runs. A file or
ref of the host's that changed since the layer was made refuses it by name. The layer
is empty then, but for git's other files, such as its configuration and hooks. What
was replaced is kept for palyra changes undo. If it is killed, palyrad or the next
command with the layer ends it.

A session's layer is palyrad's: that decides and makes the call, and the question is
asked here if this user may answer it, else it waits in palyrad's queue. A layer of
palyra exec or palyra run is palyra's own: that makes the call, by --policy or the
built-in policies, and asks on this terminal. So it is for each layer with
--no-daemon, --state, --policy or --key.

Without LAYER it is the one that palyra changes show shows.`,
			Flags: brings, Exits: brought,
			Examples: []command.Example{{Line: "palyra changes apply fix-42", Does: "asks about the changes, then makes them in the workspace"}}},
		{Name: "changes undo", Operands: "[LAYER]", Max: 1, Short: "take back what was applied from a layer last",
			Long: `
A call of its own, like palyra changes apply, which restores what that replaced: a
file or ref that changed since refuses it by name. A second undo applies it again. It
can be undone until the layer is discarded or applied again. Without LAYER it is the
only one to undo, over the workspace that the working directory lies in if there is
one.`,
			Flags: brings, Exits: brought,
			Examples: []command.Example{{Line: "palyra changes undo fix-42", Does: "asks, then makes the workspace what it was before"}}},
		{Name: "changes discard", Operands: "LAYER", Min: 1, Max: 1, Short: "remove a layer with all that was written to it",
			Long: `
The workspace stays as it is. It cannot be undone, and what was applied from the
layer cannot be undone afterwards.`,
			Flags: []command.Flag{{Name: "force", Help: "also if its changes may be half applied; only a layer of\na state directory"},
				{Name: "policy", Arg: "DIR", Help: "policy directory for ending a half applied change (default:\nthe built-in set)"}, state}, Exits: []command.Exit{unusable},
			Examples: []command.Example{{Line: "palyra changes discard fix-42", Does: "removes the layer fix-42"}}},
	}
}
