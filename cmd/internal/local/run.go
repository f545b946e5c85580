package local

import (
	"fmt"
	"slices"
	"strings"

	"palyra/call/egress"
	"palyra/cmd/internal/agents"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/programs"
)

// The flags that palyra run has and palyra exec hasn't.
var (
	flagModelHost = command.Flag{Name: "model-host", Arg: "HOST[:PORT]", Help: "the host of the agent's model, which gets the key, in\nplace of its maker's; it's told https://HOST:PORT", Parse: parseModelHost}
	flagAPIKey    = command.Flag{Name: "api-key", Arg: "REF", Help: "the secret that is the model's key (default " + usualKeys() + ")", Parse: parseRef}
	flagPrint     = command.Flag{Name: "print", Help: "print the palyra exec that this is, and run nothing"}
)

// usualKeys says which secret is each agent's, a line for each.
func usualKeys() string {
	var s []string
	for _, a := range agents.All {
		s = append(s, "\n"+a.Secret+" for "+a.Name)
	}
	return strings.Join(s, ",")
}

// unpassed are flags of palyra exec that palyra run hasn't: it decides these.
var unpassed = []string{"tier", "no-daemon", "network"}

var runCommand = command.Command{
	Name: "run", Operands: "-- AGENT ARG...", Min: 1, Max: -1, Rest: true, UsageExit: programs.ExecRefused, Takes: []string{agents.Names()},
	Short: "run an agent itself in a sandbox: claude or codex",
	Long: `
Runs AGENT, claude or codex as PATH has it or by its path, with these arguments:
palyra exec with a preset that --print prints. The agent sees the working
directory staged, so its edits go to a layer (palyra changes), reaches the host
of its model and no other, and has a placeholder in place of its key, which
palyra-egress replaces on the way (docs/EGRESS.md). All that it starts is in the
same sandbox. Its HOME is a cache of this directory's (palyra caches): what you
keep in ~/.claude or ~/.codex isn't shown. It asks nothing itself; palyra changes
apply does.

The key is a secret of the vault: palyra vault set --file FILE REF. On a terminal
the agent has a terminal of its own. Limits are wider than those of exec: a day, 8
GiB, 4096 processes, 16 GiB in a layer. Every flag of exec but --tier, --network
and --no-daemon goes with it: --egress adds a host, --workspace names another
directory or mode, --layer goes on with an earlier run's layer, --mount shows a
toolchain. palyra makes the call itself, also where this user has a palyrad, which
can lend no terminal.`,
	Flags: runFlags(),
	Exits: programs.Exec.Exits,
	Examples: []command.Example{
		{Line: "palyra run -- claude", Does: "asks, then starts it on this terminal; palyra changes shows what it wrote"},
		{Line: "palyra run --egress @npm -- codex exec 'mend the test'", Does: "without questions of its own, and with the hosts of a list"},
		{Line: "palyra run --model-host model.example --api-key vault://global/m -- claude -p hello", Does: "with a model of your own"},
		{Line: "palyra run --print -- claude", Does: "prints the call as palyra exec takes it"}},
}

// runFlags are exec's as text: palyra exec checks what it's given.
func runFlags() (flags []command.Flag) {
	for _, f := range programs.Exec.Flags {
		if slices.Contains(unpassed, f.Name) {
			continue
		}
		f.Parse = nil
		switch f.Name {
		case "workspace":
			f.Help = "host directory that it works in (default .:staged); MODE\nis as in exec"
		case "tty":
			f.Help = "a terminal of its own, also where standard input or\noutput is none"
		case "timeout", "cpu", "memory", "pids", "max-file", "max-output", "disk", "files":
			f.Help = "as in exec"
		}
		flags = append(flags, f)
	}
	return append(flags, flagModelHost, flagAPIKey, flagPrint)
}

// parseModelHost reads a rule of one exact name.
func parseModelHost(s string) (any, error) {
	r, err := egress.ParseRule(s)
	if err != nil {
		return nil, err
	}
	if name, below := r.Name(); name == "" || below || r != r.Bare() {
		return nil, fmt.Errorf("model host %q: want one host's name", s)
	}
	return r.String(), nil
}

func parseRef(s string) (any, error) {
	if !strings.HasPrefix(s, "vault://") {
		return nil, fmt.Errorf("key %q: want vault://SCOPE/KEY", s)
	}
	return s, nil
}
