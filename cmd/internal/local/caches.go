package local

import "palyra/cmd/internal/command"

var cachesLsCommand = command.Command{
	Name:  "caches ls",
	Short: "list the caches of calls",
	Long: `
One line per cache: its id, name, size and last use, whose it is, and its
workspace. A cache is what palyra exec --cache NAME filled, or palyrad's calls in
a workspace that declares it; only calls of the same principal in the same
workspace see it, and one named home those of one session. It lies in the state
directory. palyrad removes those that no call used for retention.caches.`,
	Flags:    []command.Flag{flagState, flagWide, flagJSON},
	Exits:    []command.Exit{exitOK, exitUsage, exitState},
	Examples: []command.Example{{Line: "palyra caches ls", Does: "lists the caches of this user's state directory"}},
}

var cachesRmCommand = command.Command{
	Name: "caches rm", Operands: "ID...", Min: 1, Max: -1,
	Short: "remove caches with all that is in them",
	Long: `
The next call that names such a cache gets an empty one. A cache that a call uses
stays, and the command ends.`,
	Flags: []command.Flag{flagState, flagJSON},
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "no such cache"}, exitUsage,
		{Code: "75", Meaning: "a call uses the cache, or the output cannot be written: try again"}, exitState},
	Examples: []command.Example{{Line: "palyra caches rm 2f6d0c51b7a94e8830c1a5f2d97be604-go", Does: "removes this one"}},
}
