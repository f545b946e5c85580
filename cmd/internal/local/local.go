// Package local is the table of the commands that palyra itself does. With those that
// palyra hands to other programs it's the table of all commands (Table). It's data, and a
// package so that palyra-dev can print it as manual pages and completion scripts.
package local

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/isolate"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
	"palyra/kernel/certify"
)

var (
	flagJSON    = command.Flag{Name: "json", Help: "print one JSON document with sorted keys"}
	flagWide    = command.Flag{Name: "wide", Help: "cut nothing, as it is where the output is no terminal"}
	flagState   = programs.FlagState
	flagTrust   = command.Flag{Name: "trust", Arg: "DIR", Help: "directory with the public keys to verify against\n(default the trust folder of the state directory)"}
	flagPolicy  = programs.FlagPolicy
	flagNetwork = parsed(programs.FlagNetwork, parseNetwork)

	flagKey = command.Flag{Name: "key", Arg: "FILE", Help: "identity that opens sealed signing keys (palyra keys\nseal; default ~/.config/palyra/vault.key)"}

	flagMount = parsed(programs.FlagMount, parseMount)
	flagCache = parsed(programs.FlagCache, parseCache)

	flagEgress = parsed(programs.FlagEgress, parseEgress)

	exitOK        = command.Exit{Code: "0", Meaning: "ok"}
	exitUsage     = command.Exit{Code: "2", Meaning: "usage: the command line is wrong"}
	exitIntegrity = command.Exit{Code: "8", Meaning: "integrity failure: a signature, digest, proof or log does not check"}
	exitNoDir     = command.Exit{Code: "1", Meaning: "no such directory"}
	exitBusy      = command.Exit{Code: "75", Meaning: "busy, out of a resource, or the output cannot be written:\n         try again"}
	exitState     = command.Exit{Code: "78", Meaning: "state directory, key or configuration unsafe or unreadable"}
)

// Table is every command of palyra. Help, flags, parsing and the documented
// exit statuses come from here and from nowhere else.
func Table() *command.Table {
	own := []command.Command{
		Exec, runCommand, attestVerifyCommand, attestShowCommand, journalVerifyCommand, journalShowCommand,
		cachesLsCommand, cachesRmCommand,
		keysSealCommand, keysUnsealCommand,
		vaultInitCommand, vaultMigrateCommand, vaultIdentityCommand,
		policyInitCommand, policyCheckCommand, policyLearnCommand, policyExplainCommand, policyTestCommand, sandboxProbeCommand, sandboxExplainCommand, sandboxCertifyCommand, versionCommand, helpCommand,
	}
	for i := range own {
		if own[i].UsageExit == 0 {
			own[i].Exits = front.WithCommon(own[i].Exits)
		}
	}
	return &command.Table{Program: "palyra", Summary: "decide, confine and attest the tool calls of agents",
		Begin: []command.Example{
			{Line: "palyra setup claude --project", Does: "in a project: its agent works through Palyra (or codex, cursor)"},
			{Line: "palyra approvals watch --answer", Does: "answer what the agent waits for"},
			{Line: "palyra changes show", Does: "what it wrote, to a layer over the project; then changes apply"},
			{Line: "palyra exec -- CMD ARG...", Does: "one command, without an agent: confined, with a receipt"},
		},
		Commands: append(own, programs.Commands()...), Exits: front.Statuses(), Groups: []command.Group{
			{Title: "Calls", Nouns: []string{"exec", "run", "changes", "caches", "call", "setup", "tools", "mcp", "hook", "sh", "sessions", "runs", "artifact"}},
			{Title: "Agents of palyrad's own", Nouns: []string{"agent", "models", "memory"}},
			{Title: "Approvals and policies", Nouns: []string{"approvals", "policy"}},
			{Title: "Secrets", Nouns: []string{"vault"}},
			{Title: "Evidence", Nouns: []string{"attest", "journal", "keys"}},
			{Title: "The host", Nouns: []string{"sandbox", "bench", "fuzz"}},
			{Title: "palyrad", Nouns: []string{"status", "console", "doctor", "stop", "resume", "config", "backup", "members", "token", "passkeys", "devices", "pair"}},
			{Title: "This program", Nouns: []string{"help", "man", "completion", "complete", "version"}},
		}}
}

// TableFor is Table, or of it what a call needs: building the rest takes longer
// than reading the call's flags.
func TableFor(args []string) *command.Table {
	if len(args) == 0 || args[0] != Exec.Name {
		return Table()
	}
	return &command.Table{Program: "palyra", Commands: []command.Command{Exec}}
}

// Exec is palyra exec, the command that makes a call, with all of its values parsed.
var Exec = execParsed()

func execParsed() command.Command {
	c := programs.Exec
	c.Flags = slices.Clone(c.Flags)
	parsers := map[string]func(string) (any, error){"tier": parseTier, "mount": parseMount, "cache": parseCache, "layer": parseLayer, "secret": parseSecret, "network": parseNetwork, "egress": parseEgress, "inspect": parseInspect, "egress-secret": parseUse}
	for i := range c.Flags {
		if p := parsers[c.Flags[i].Name]; p != nil {
			c.Flags[i].Parse = p
		}
	}
	return c
}

// parsed is a flag with what checks and converts its value.
func parsed(f command.Flag, parse func(string) (any, error)) command.Flag {
	f.Parse = parse
	return f
}

var attestVerifyCommand = command.Command{
	Name: "attest verify", Operands: "FILE", Min: 1, Max: 1,
	Short: "verify a receipt offline",
	Long: `
Checks the signature, the log entry, its inclusion proof and the signed
checkpoint against the public keys in the trust directory. A good receipt of a
denied call is still a good receipt: read the outcome.`,
	Flags: []command.Flag{flagTrust, flagState, flagJSON},
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "the file or the trust directory cannot be read"}, exitUsage, exitIntegrity, exitState},
	Examples: []command.Example{
		{Line: "palyra attest verify out.json", Does: "verifies against the keys of this user's state directory"},
		{Line: "palyra attest verify --trust ./trust out.json", Does: "verifies as a stranger would, who was given the public keys"},
	},
}

var attestShowCommand = command.Command{
	Name: "attest show", Operands: "FILE", Min: 1, Max: 1,
	Short: "show what a receipt says, without verifying it",
	Long: `
Prints the statement: what ran, who allowed it, what the kernel was observed to
enforce. Nothing is verified; use attest verify for that.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, {Code: "1", Meaning: "the file cannot be read"}, exitUsage, exitIntegrity},
	Examples: []command.Example{{Line: "palyra attest show --json out.json", Does: "prints the whole statement"}},
}

var journalVerifyCommand = command.Command{
	Name:  "journal verify",
	Short: "check the whole journal",
	Long: `
Recomputes every leaf, every tile and the root, checks every signature, and
that each intent has exactly one result. An intent without a result, or with the
result outcome_unknown, is a finding: how that call ended is unknown. With
--witnesses the journal is also held to what paired devices saw of it: whose
checkpoint has more entries, or others, is the proof that some were taken back or
changed.`,
	Flags: []command.Flag{flagTrust, flagState, {Name: "witnesses", Help: "say which devices saw how much of it, and when"}, flagJSON},
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "there is no journal"}, exitUsage, {Code: "3", Meaning: "sound, with findings: intents without a result, or unknown outcomes"}, exitIntegrity, exitBusy, exitState},
	Examples: []command.Example{
		{Line: "palyra journal verify", Does: "checks this user's journal"},
		{Line: "palyra journal verify --witnesses", Does: "and holds it to what devices saw"},
	},
}

var journalShowCommand = command.Command{
	Name: "journal show", Operands: "[INDEX]", Max: 1,
	Short: "list the entries of the journal, or show one",
	Long: `
Without INDEX one line per entry: index, time, kind, outcome, command. With
INDEX that entry's statement. Nothing is verified; use journal verify for that.`,
	Flags:    []command.Flag{flagState, flagWide, flagJSON},
	Exits:    []command.Exit{exitOK, {Code: "1", Meaning: "no journal, or no such entry"}, exitUsage, exitIntegrity, exitState},
	Examples: []command.Example{{Line: "palyra journal show 3", Does: "shows the entry with index 3"}},
}

var policyInitCommand = command.Command{
	Name: "policy init", Operands: "DIR", Min: 1, Max: 1,
	Short: "write the built-in policies, or a preset, into a new directory",
	Long: `
Makes DIR, or takes one that is empty, and writes the built-in policies and
their tests into it, or those of a preset: coding for one developer and an agent
(programs run in their cells without a question), ci where no person answers
(nothing asks), strict (two people say yes to all but reading).

A policy directory replaces the built-in set: what DIR says afterwards is all
that holds, with palyra exec --policy DIR or as policy.dir in palyrad.toml. The
change that a denial offers is a diff against such a directory.`,
	Flags: []command.Flag{{Name: "preset", Arg: "NAME", Help: "coding, ci or strict", Values: strings.Join(policy.Presets(), "|")},
		{Name: "hosts", Arg: "NAME", Help: "write a list of hosts to begin with, too, whose names\nlead nowhere: npm, pip, go, git; may be given more\nthan once", Repeat: true},
		{Name: "schema", Help: "write the schema, too, for other Cedar tools; a directory\nwith one is refused by a version with another schema"}, flagJSON},
	Exits: []command.Exit{exitOK, exitUsage, {Code: "78", Meaning: "DIR is not empty, or others can write to it"}},
	Examples: []command.Example{{Line: "palyra policy init ./policy", Does: "then edit ./policy and palyra exec --policy ./policy -- CMD"},
		{Line: "palyra policy init --preset coding ./policy", Does: "for an agent's work in a project"}},
}

var policyCheckCommand = command.Command{
	Name: "policy check", Operands: "[DIR]", Max: 1,
	Short: "load a policy directory and run its tests",
	Long: `
Loads DIR (default: the built-in set) exactly as palyra exec --policy would: any
syntax error, unknown action or failing policy test refuses the whole directory.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, exitNoDir, exitUsage, exitState},
	Examples: []command.Example{{Line: "palyra policy check ./policy", Does: "says whether the directory can be used, and its digest"}},
}

var policyLearnCommand = command.Command{
	Name: "policy learn", Operands: "LIST", Min: 1, Max: 1,
	Short: "propose the hosts that calls were denied for a list of hosts",
	Long: `
Looks at the newest calls in the journal of the state directory, and shows the
hosts that their programs asked for and didn't get, because no rule of the call
named them and no list of the policy directory has them. If you type the digits at
the terminal they are added to LIST.hosts in DIR: palyra exec --egress @LIST names
all hosts of the list, and what a list has needs no question of its own. A private
or special address, and a name that leads to one, isn't proposed. The directory is
loaded again and its tests are run; if one fails, the list stays as it was. --json
prints what --print shows, and adds nothing.`,
	Flags: []command.Flag{{Name: "policy", Arg: "DIR", Help: "the policy directory, required"},
		{Name: "session", Arg: "ID", Help: "calls of this session of palyrad's alone"},
		{Name: "run", Arg: "ID", Help: "calls of this run of palyrad's alone"},
		{Name: "last", Arg: "N", Help: "how many calls to look at (default 1000)", Parse: command.Count(10000)},
		{Name: "print", Help: "show the rules and add none"}, flagState, flagJSON},
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "no journal, or no such directory"}, exitUsage, {Code: "5", Meaning: "the person didn't say yes, or can't be asked"}, exitState},
	Examples: []command.Example{{Line: "palyra policy learn npm --policy ./policy --print", Does: "shows what would be added to ./policy/npm.hosts"},
		{Line: "palyra policy learn npm --policy ./policy --session ses_01", Does: "asks, and adds what the calls of a session were denied"}},
}

var policyExplainCommand = command.Command{
	Name: "policy explain", Operands: "-- CMD ARG...", Min: 0, Max: -1, Rest: true,
	Short: "say how a call would be decided, and why; runs nothing",
	Long: `
Seals and decides the call as palyra exec would, and stops there: effect,
determining policies, and the change that would allow a denied call.
Nothing runs, no person is asked and nothing is written to the journal.

With --tool the call is one of that tool, as palyrad would make it; behind -- is
its input, a JSON object (default {}), and the workspace that the input names is
that of --workspace.`,
	Flags: []command.Flag{flagPolicy,
		{Name: "tool", Arg: "NAME", Help: "explain a call of a tool, such as fs.read_file"},
		{Name: "tier", Arg: "b|c", Help: "tier floor (default c)", Parse: parseTier},
		{Name: "workspace", Arg: "DIR[:MODE]", Help: "host directory shown at /workspace; MODE is as in exec", Parse: programs.ParseWorkspace},
		flagMount, flagCache,
		{Name: "env", Arg: "NAME=VALUE", Help: "add a variable; may be given more than once", Repeat: true, Parse: command.Env},
		flagNetwork, flagEgress, flagState, flagJSON},
	Exits: []command.Exit{{Code: "0", Meaning: "allowed"}, {Code: "1", Meaning: "CMD or the policy directory not found, or CMD cannot be sealed"}, exitUsage,
		{Code: "4", Meaning: "denied"}, {Code: "5", Meaning: "needs approval"},
		{Code: "7", Meaning: "with --tool: palyra-tool is missing or cannot be used"}, exitState},
	Examples: []command.Example{{Line: "palyra policy explain -- bash -c id", Does: "shows which policy forbids bash"},
		{Line: `palyra policy explain --tool palyra.echo -- {"text":"hello"}`, Does: "a call of a tool; quote its input for your shell"}},
}

var policyTestCommand = command.Command{
	Name: "policy test", Operands: "[DIR]", Max: 1,
	Short: "run the tests of a policy directory and list each",
	Long: `
The tests also run whenever the directory is loaded; this command lists them.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, exitNoDir, exitUsage, {Code: "3", Meaning: "a test failed"}, exitState},
	Examples: []command.Example{{Line: "palyra policy test ./policy", Does: "one line per test"}},
}

var sandboxProbeCommand = command.Command{
	Name:  "sandbox probe",
	Short: "try what this host can enforce",
	Long: `
Tries each kernel control instead of reading a version: yes, no, or could not
tell, and which tiers follow from that.`,
	Flags: []command.Flag{flagJSON},
	Exits: []command.Exit{{Code: "0", Meaning: "tier C can be enforced"}, exitUsage,
		{Code: "3", Meaning: "only tier B can be enforced"}, {Code: "7", Meaning: "no tier can be enforced"}},
	Examples: []command.Example{{Line: "palyra sandbox probe", Does: "lists the controls and the tiers"}},
}

var sandboxExplainCommand = command.Command{
	Name: "sandbox explain", Operands: "-- CMD ARG...", Min: 1, Max: -1, Rest: true,
	Short: "say how a call would be confined, step by step; runs nothing",
	Long: `
Seals the call as palyra exec would and has palyra-cell prepare it up to the
first process: tier, network, mounts, the numbered list of system calls between
clone and CMD with the reason for each, the system call filter, the Landlock
rules and the limits.

The receipt of the same call on this host has the same digest of the list, if
the cell is built for the call, as palyra exec does; with --warm, if a cell
waited for it, as palyrad's do by default. Tier B differs if the user has other
processes (without root, or in a directory), because the list has the number of
processes that there may be.

Nothing runs, no person is asked and nothing is written to the journal. It
doesn't matter whether policy would deny the call.`,
	Flags: append(append(slices.DeleteFunc(slices.Clone(Exec.Flags), func(f command.Flag) bool {
		return f.Name == "receipt" || f.Name == "no-daemon" || f.Name == "json" // exec holds the output in its document
	}), flagJSON), command.Flag{Name: "warm", Help: "print the steps of a cell that waited for the call\ninstead; --json has both lists"}),
	Exits: []command.Exit{exitOK, {Code: "1", Meaning: "CMD or the policy directory not found, or CMD cannot be sealed"}, exitUsage,
		{Code: "7", Meaning: "refused: the host cannot enforce the tier"}, exitBusy, exitState},
	Examples: []command.Example{
		{Line: "palyra sandbox explain -- /bin/true", Does: "prints what stands between this host and true"},
		{Line: "palyra sandbox explain --warm -- /bin/true", Does: "the same for a cell that waited for the call"},
		{Line: "palyra sandbox explain --tier b --json -- /bin/true", Does: "the same without namespaces, as one document"},
	},
}

var sandboxCertifyCommand = command.Command{
	Name:  "sandbox certify",
	Short: "test the sandbox here from both sides, and sign the result",
	Long: `
Makes one attempt for each mechanism of the sandbox, once outside, where it must
succeed, and once in a cell of each kind, where it must be stopped. A claim is
proven, refuted, or inconclusive with the reason, or absent on a kernel that is
older than the mechanism; a tier that this host cannot give is refused and
claims nothing. It takes seconds.

The result is signed and journaled as an administrative act, with boot id,
kernel, and the digests of both programs and of the system calls that built the
cells. Its receipt is kept in the state directory as certificate.json, and
attest verify checks it offline like any other.`,
	Flags: []command.Flag{flagState, flagKey, {Name: "kind", Arg: "KIND", Repeat: true, Parse: parseKind,
		Help: "only cells of this kind: b, c.cold, c.warm, c.void or\nc.loop; may be given more than once. Then\ncertificate.json stays as it is"},
		{Name: "out", Arg: "FILE", Help: "also write the receipt (a Sigstore bundle) to FILE"}, flagJSON},
	Exits: []command.Exit{{Code: "0", Meaning: "nothing is refuted, and tier C can be had"}, exitUsage,
		{Code: "3", Meaning: "nothing is refuted; only tier B can be had, or a claim is\ninconclusive"}, {Code: "7", Meaning: "a claim is refuted, or no tier can be had"},
		exitIntegrity, exitBusy, exitState},
	Examples: []command.Example{
		{Line: "palyra sandbox certify", Does: "prints a table of claims and kinds of cells"},
		{Line: "palyra sandbox certify --out certificate.json", Does: "leaves a file for an auditor, who has the trust directory"},
	},
}

var versionCommand = command.Command{
	Name: "version", Short: "print version, Go version and platform",
	Flags: []command.Flag{flagJSON}, Exits: []command.Exit{exitOK, exitUsage},
	Examples: []command.Example{{Line: "palyra version --json", Does: "for bug reports"}},
}

var helpCommand = command.Command{
	Name: "help", Operands: "[COMMAND]", Max: 2, Short: "show this overview, or the help of one command",
	Exits:    []command.Exit{exitOK, exitUsage},
	Examples: []command.Example{{Line: "palyra help exec", Does: "flags, exit statuses and examples of exec"}},
}

// parseTier reads the floor of a call. There is no tier A here: it runs WASM,
// not commands.
func parseTier(s string) (any, error) {
	if t, err := tier.Parse(s); err == nil && t != tier.A {
		return t, nil
	}
	return nil, fmt.Errorf("tier %q: want b or c", s)
}

// parseEgress checks a host that a call may reach, or the name of a list of hosts, which the kernel
// reads.
func parseEgress(s string) (any, error) {
	if name, list := strings.CutPrefix(s, "@"); list && egress.ListName(name) {
		return s, nil
	}
	_, err := egress.ParseRule(s)
	return s, err
}

// parseInspect checks a rule about requests, and parseUse a use of a secret, which the kernel
// reads.
func parseInspect(s string) (any, error) {
	_, err := egress.ParseInspect(s)
	return s, err
}

func parseUse(s string) (any, error) {
	_, err := egress.ParseUse(s)
	return s, err
}

// parseNetwork reads the network of a call. Only the last two lead anywhere.
func parseNetwork(s string) (any, error) {
	switch s {
	case policy.NetworkFresh:
		return isolate.NetworkFresh, nil
	case policy.NetworkVoid:
		return isolate.NetworkVoid, nil
	case policy.NetworkLoopback:
		return isolate.NetworkLoopback, nil
	case policy.NetworkHost:
		return isolate.NetworkHost, nil
	case policy.NetworkPreflight:
		return isolate.NetworkPreflight, nil
	case policy.NetworkSession:
		return nil, fmt.Errorf("network %q: a call of this command has no session; want fresh, loopback, void, preflight or host", s)
	}
	return nil, fmt.Errorf("network %q: want fresh, loopback, void, preflight or host", s)
}

func parseMount(s string) (any, error) {
	if s == "" || strings.ContainsRune(s, 0) {
		return nil, fmt.Errorf("mount %q: want a directory", s)
	}
	return s, nil
}

func parseCache(s string) (any, error) {
	if err := isolate.CheckCache(s); err != nil {
		return nil, fmt.Errorf("cache %q: want 1 to 32 of a-z, 0-9 and -, not - first", s)
	}
	return s, nil
}

// parseSecret checks the name of a secret; the vault reads the reference.
func parseSecret(s string) (any, error) {
	name, ref, ok := strings.Cut(s, "=")
	if !ok || !strings.HasPrefix(ref, "vault://") {
		return nil, errors.New("want NAME=vault://SCOPE/KEY")
	}
	return s, isolate.CheckSecret(name)
}

func parseLayer(s string) (any, error) {
	if err := stage.CheckName(s); err != nil {
		return nil, fmt.Errorf("layer %q: want 1 to 64 of a-z, 0-9 and -", s)
	}
	return s, nil
}

func parseKind(s string) (any, error) {
	if !slices.Contains(certify.Kinds(), s) {
		return nil, fmt.Errorf("kind %q: want one of %s", s, strings.Join(certify.Kinds(), ", "))
	}
	return s, nil
}
