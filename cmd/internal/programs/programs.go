// Package programs says which program does each command that a user types as
// "palyra COMMAND". It is data: the commands that palyra itself doesn't do, each
// with the program that palyra becomes for it. That program parses the same words
// by the same entries (Table).
//
//	palyra-ctl     asks palyrad over HTTP
//	palyra-admin   reads configurations and backups, without palyrad
//	palyra-mcp     is where agents come in, over MCP, by a hook or as their shell: another
//	               client of palyrad, or of palyra exec
//	palyra-setup   edits the configuration of agents, so that they start palyra-mcp
//	palyra-dev     judges: measures this host, fuzzes, analyses policies; and prints
//	               manual pages and completion scripts
//
// palyra's own commands stand in palyra/cmd/internal/local. Nothing here connects to anything,
// opens a file or starts a program.
package programs

import (
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
)

// The programs that palyra becomes. They're installed beside it.
const (
	Client = "palyra-ctl"
	Admin  = "palyra-admin"
	Dev    = "palyra-dev"
	Agents = "palyra-mcp"
	Setup  = "palyra-setup"
)

// Table returns the commands of one program. The program in their synopses is
// palyra, because that's what is typed.
func Table(program string) *command.Table {
	t := &command.Table{Program: "palyra", Summary: "the commands of palyra that " + program + " does", Exits: front.Statuses()}
	for _, c := range Commands() {
		if c.Program == program || program == Admin && c.Name == "complete" { // see For
			t.Commands = append(t.Commands, c)
		}
	}
	if program == Client { // where palyra hands it over
		t.Commands = append(t.Commands, Exec)
	}
	return t
}

// For returns the program that does what inv asks for, "" for palyra itself.
func For(inv *command.Invocation) string {
	if inv.Command.Name == "complete" && len(inv.Operands) == 1 && inv.Operands[0] == "key" {
		return Admin // it has the configuration's keys; palyra-ctl asks for all other kinds
	}
	return inv.Command.Program
}

// Commands returns every command that palyra hands to another program.
func Commands() []command.Command {
	var out []command.Command
	for _, group := range [][]command.Command{daemon(), work(), changes(), keys(), secrets(), memories(), agents(), approvals(), analyses(), policies(), records(), members(), pairings(), configs(), backups(), completions(), judges(), prints()} {
		for _, c := range group {
			if c.Program == "" {
				c.Program = Client
			}
			asks := c.Program == Client || c.Program == Agents    // palyrad
			if (asks || c.Program == Setup) && c.Name != "pair" { // setup passes them on; pair has a hub of its own
				c.Flags = append(c.Flags[:len(c.Flags):len(c.Flags)], connection...)
				if c.Program == Client {
					c.Flags = append(c.Flags, flagDevice)
				}
			}
			if tabled[c.Name] {
				c.Flags = append(c.Flags[:len(c.Flags):len(c.Flags)], flagWide)
			}
			c.Flags = append(c.Flags[:len(c.Flags):len(c.Flags)], flagJSON)
			c.Takes = takes[c.Name]
			for i := range c.Flags {
				if v := valuesOf(c.Name, c.Flags[i].Name); v != "" {
					c.Flags[i].Values = v
				}
			}
			c.Exits = front.WithExits(c.Exits, exitOK, exitUsage)
			if asks {
				c.Exits = front.WithExits(c.Exits, exits...)
			} else {
				c.Exits = front.WithCommon(c.Exits, command.Exit{Code: "7", Meaning: c.Program + " is missing, or others can write to it"})
			}
			out = append(out, c)
		}
	}
	return out
}

var (
	exitOK    = command.Exit{Code: "0", Meaning: "ok"}
	exitUsage = command.Exit{Code: "2", Meaning: "usage: the command line or what it names is wrong"}
)
