package programs

import (
	"errors"
	"strconv"

	"palyra/cmd/internal/command"
)

var memoryExits = []command.Exit{{Code: "1", Meaning: "no such item"}, {Code: "4", Meaning: "denied by policy"}, {Code: "5", Meaning: "not approved"},
	{Code: "7", Meaning: "refused: no vault is open, or the memory is full"}, {Code: "8", Meaning: "the memory is damaged"}, {Code: "78", Meaning: "a file that can't be read, or is there already"}}

func parsePercent(s string) (any, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 100 {
		return nil, errors.New("want 0 to 100")
	}
	return n, nil
}

// memories returns the commands about what the caller had remembered.
func memories() []command.Command {
	limit := func(most, normal string) command.Flag {
		return command.Flag{Name: "limit", Arg: "N", Help: "at most N items (default " + normal + ", most " + most + ")", Parse: command.Count(256)}
	}
	return []command.Command{
		{
			Name: "memory add", Operands: "TEXT", Min: 1, Max: 1, Short: "have a text remembered",
			Long: `
At most 16 KiB; - reads TEXT from standard input. Agents of yours begin with
what fits their prompt, and find the rest with memory.search. Only you have it:
it is sealed under a key of palyrad's vault, for your name.

A call of its own, of the tool memory.retain: it is decided by policy and has a
receipt, which has the origins and no text.`,
			Flags: []command.Flag{{Name: "tag", Arg: "TAG", Help: "a word to find it by; may be given more than once", Repeat: true},
				{Name: "session", Arg: "ID", Help: "for this session alone; it goes with it"},
				{Name: "expires", Arg: "TIME", Help: "forget it then, such as 2027-01-02T15:04:05Z\n(default: never)"},
				{Name: "confidence", Arg: "N", Help: "how sure you are, in per cent (default 100)", Parse: parsePercent}, FlagReceipt},
			Exits:    memoryExits,
			Examples: []command.Example{{Line: `palyra memory add "Releases..."`, Does: "prints mem_..."}},
		},
		{
			Name: "memory search", Operands: "QUERY", Min: 1, Max: 1, Short: "find what was remembered, by words",
			Long: `
Prints the best first, with a score of 1000: words in common (490), likeness of
the hashed words (320), age (70), and who wrote it (120). --json has the parts.
No model is asked, so it finds words and not meanings.`,
			Flags:    []command.Flag{limit("64", "8"), {Name: "session", Arg: "ID", Help: "search this session's own items, too"}, FlagReceipt},
			Exits:    memoryExits,
			Examples: []command.Example{{Line: `palyra memory search releases`, Does: "score, id, text"}},
		},
		{
			Name: "memory ls", Short: "list what was remembered, newest first",
			Flags:    []command.Flag{limit("256", "32"), {Name: "before", Arg: "N", Help: "go on where a page ended", Parse: command.Count(1 << 62)}, FlagReceipt},
			Exits:    memoryExits,
			Examples: []command.Example{{Line: "palyra memory ls", Does: "who wrote it, when it expires, how it begins"}},
		},
		{
			Name: "memory show", Operands: "ID", Min: 1, Max: 1, Short: "show an item",
			Flags: []command.Flag{FlagReceipt}, Exits: memoryExits,
			Examples: []command.Example{{Line: "palyra memory show mem_...", Does: "its text, tags and origins"}},
		},
		{
			Name: "memory forget", Operands: "ID...", Min: 1, Max: 64, Short: "forget items for good",
			Long: `
The journal keeps that they were there, by the SHA-256 of their ids; the store's
files keep nothing of them. Backups, and tapes of runs that read them, do.`,
			Flags: []command.Flag{FlagReceipt}, Exits: memoryExits,
			Examples: []command.Example{{Line: "palyra memory forget mem_...", Does: "says how many are gone"}},
		},
		{
			Name: "memory purge", Short: "forget all items, or those of an origin or a session",
			Long: `
One of --origin, --session and --all; else as memory forget.`,
			Flags: []command.Flag{{Name: "origin", Arg: "ORIGIN", Help: "what was made of something with this origin, such as\nweb"},
				{Name: "session", Arg: "ID", Help: "what was made in this session"}, {Name: "all", Help: "everything"}, FlagReceipt},
			Exits: memoryExits,
			Examples: []command.Example{{Line: "palyra memory purge --origin web", Does: "forgets what agents wrote after they read pages"},
				{Line: "palyra memory purge --all", Does: "forgets everything of yours"}},
		},
		{
			Name: "memory export", Operands: "FILE", Min: 1, Max: 1, Short: "write all items to a new file",
			Long: `
A JSON document with mode 0600, in plain text: age encrypts it. With --redact a
name such as ⟦secret:github#1⟧ stands in place of each secret that is known by
its form, the same one for the same value.`,
			Flags:    []command.Flag{{Name: "redact", Help: "leave secrets out"}},
			Exits:    memoryExits,
			Examples: []command.Example{{Line: "palyra memory export memory.json", Does: "says how many there are"}},
		},
		{
			Name: "memory import", Operands: "FILE", Min: 1, Max: 1, Short: "have the items of a file remembered",
			Long: `
FILE is what memory export writes, or {"version":1,"items":[{"text":"..."}]};
- reads standard input. Items get new ids and the source import, and keep tags,
confidence, expiry and origins. Those of sessions are left out. It goes in parts
of 64: what is refused leaves the parts before it.`,
			Exits:    memoryExits,
			Examples: []command.Example{{Line: "palyra memory import memory.json", Does: "says how many are remembered"}},
		},
	}
}
