package local

import "palyra/cmd/internal/command"

var exitNoLayer = command.Exit{Code: "1", Meaning: "no such layer, or the layer or its workspace cannot be read"}

// The names of the commands whose calls a palyrad's policies decide, in a workspace of its own.
const (
	ChangesApply = "changes apply"
	ChangesUndo  = "changes undo"
)

var changesApplyCommand = command.Command{
	Name: ChangesApply, Operands: "[LAYER]", Max: 1,
	Short: "bring the changes in a layer to the workspace",
	Long: `
All of them or none, by a call of its own: it is decided, asked about where policy
says so, confined and attested. The question lists the changes and what deserves a
look, and the yes is for exactly these bytes. Commits of the repository at the top of
the workspace come as refs, with HEAD and index; no git and no hook runs. A file or
ref of the host's that changed since the layer was made refuses it by name. The layer
is empty then, but for git's other files, such as its configuration and hooks. What
was replaced is kept for palyra changes undo. If it is killed, the next command with
the layer ends it.

Where this user has a palyrad, and the layer is over a workspace of its own, that
palyrad's policy directory decides, so that both agree: the preset coding lets small
changes pass. With --no-daemon, --state or --policy it doesn't. palyra makes the call
all the same, and asks on this terminal.

Without LAYER it is the one that palyra changes show shows.`,
	Flags: []command.Flag{flagPolicy, flagKey, flagState, flagReceipt,
		{Name: "no-daemon", Help: "leave a palyrad of this user out of it"}, flagJSON},
	Exits: []command.Exit{exitOK, exitNoLayer, exitUsage, {Code: "4", Meaning: "denied by policy"}, {Code: "5", Meaning: "not approved"},
		{Code: "7", Meaning: "refused: a change cannot be applied, or the host cannot enforce the tier"}, {Code: "8", Meaning: "the layer is damaged"},
		{Code: "75", Meaning: "a file changed meanwhile, a call uses the layer or the workspace, or\n         palyrad doesn't answer"}, exitState},
	Examples: []command.Example{{Line: "palyra changes apply fix-42", Does: "asks about the changes, then makes them in the workspace"}},
}

var changesUndoCommand = command.Command{
	Name: ChangesUndo, Operands: "[LAYER]", Max: 1,
	Short: "take back what was applied from a layer last",
	Long: `
A call of its own, like palyra changes apply, which restores what that replaced: a
file or ref that changed since refuses it by name. A second undo applies it again. It
can be undone until the layer is discarded or applied again. Without LAYER it is the
only one to undo, over the workspace that the working directory lies in if there is
one.`,
	Flags:    changesApplyCommand.Flags,
	Exits:    changesApplyCommand.Exits,
	Examples: []command.Example{{Line: "palyra changes undo fix-42", Does: "asks, then makes the workspace what it was before"}},
}
