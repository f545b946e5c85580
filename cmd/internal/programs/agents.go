package programs

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/internal/fault"
)

// ServeArgs returns the arguments with which an agent, wherever it stands, has palyra serve
// it as inv's flags say.
func ServeArgs(inv *command.Invocation) ([]string, error) {
	args := []string{"mcp", "serve"}
	for _, name := range []string{"socket", "url", "token-file", "workspace", "server"} {
		v := command.Value(inv, name, "")
		if v == "" {
			continue
		}
		if name == "socket" || name == "token-file" {
			abs, err := filepath.Abs(v)
			if err != nil {
				return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, err)
			}
			v = abs
		}
		args = append(args, "--"+name, v)
	}
	if inv.Has("staged") || inv.Command.Name == "setup" && !inv.Has("direct") {
		args = append(args, "--staged")
	}
	if d := command.Value(inv, "patience", time.Duration(0)); d > 0 {
		args = append(args, "--patience", d.String())
	}
	return args, nil
}

// Servers are the members of mcpServers in a configuration that starts palyra with these
// arguments, and the configuration as text.
func Servers(name, palyra string, args []string) (map[string]any, string, error) {
	servers := map[string]any{name: map[string]any{"command": palyra, "args": args}}
	b, err := json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
	if err != nil {
		return nil, "", fault.New(fault.Internal, "internal", "print the entry", err)
	}
	return servers, string(b) + "\n", nil
}

// Quote makes one word of a text for a POSIX shell, which expands nothing in it.
func Quote(s string) string {
	if s != "" && strings.Trim(s, "/-_.+,:@%0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// agents returns the commands of palyra-mcp and of palyra-setup.
func agents() []command.Command {
	return []command.Command{
		{Name: "mcp serve", Program: Agents, Short: "serve palyrad's tools to an agent, over MCP",
			Long: `
An agent starts it and speaks with it on standard input and output; --print
prints the entry for the agent's configuration. It is a client of palyrad and
decides nothing: each call is decided, asked about, confined and recorded as
every other. A call ends with the agent's request, and all end with the agent. A
call that needs a person's yes waits: the person answers with palyra approvals,
never through the agent.`,
			Flags: []command.Flag{
				{Name: "workspace", Arg: "NAME", Help: "the workspace of calls that name none"},
				{Name: "server", Arg: "NAME", Help: "serve the accepted tools of this MCP server (palyra mcp\nls), under their own names, instead of palyrad's"},
				flagStaged,
				{Name: "patience", Arg: "D", Help: "how long a request waits before it is answered as\npending (default 45s, or without a bound where the agent\ntakes progress notifications)", Parse: command.Duration},
				{Name: "print", Help: "print the entry of an MCP configuration, with these\nflags, and serve nothing"}},
			Examples: []command.Example{
				{Line: "palyra mcp serve --print --workspace src", Does: "prints what stands in an agent's MCP configuration"},
				{Line: "palyra mcp serve --token-file agent.token", Does: "serves with the rights of a token"}}},
		{Name: "mcp add", Operands: "NAME {COMMAND [ARG...] | URL}", Min: 2, Max: -1, Short: "add an MCP server that runs in a cell, behind palyrad",
			Long: `
COMMAND, behind --, is a server that speaks the Model Context Protocol on its
standard input and output. URL is one that is reached over HTTP: its program is
palyra-fetch, in a cell that leads to that host alone. It is started for the first
call in a session and ends with it, in a cell that reaches no host but those of
--egress; both its start and each call of its tools are decided by policy. Nothing
is started now: palyra mcp accept NAME does, and shows its tools. Agents then find
them at /mcp/NAME of palyrad and by palyra mcp serve --server NAME. Values of --env
and --header are seen by policy, approvers and the journal: a token goes into the
vault, and --egress-secret has it sent.`,
			Program: Client,
			Flags: []command.Flag{
				{Name: "workspace", Arg: "NAME", Help: "a workspace of palyrad's configuration that it sees"},
				{Name: "read-only", Help: "it can't write the workspace"},
				{Name: "mount", Arg: "DIR", Help: "a further folder of the host, read-only, at its own path;\nmay be given more than once", Repeat: true},
				{Name: "env", Arg: "NAME=VALUE", Help: "a variable; may be given more than once", Repeat: true},
				{Name: "network", Arg: "MODE", Help: "fresh, loopback or void (default fresh); none leads\nanywhere"},
				{Name: "egress", Arg: "HOST[:PORT]", Help: "a host that it may reach, or @LIST, as with palyra exec;\nmay be given more than once", Repeat: true},
				{Name: "inspect", Arg: "RULE", Help: "requests that it may make, as with palyra exec; may be\ngiven more than once", Repeat: true},
				{Name: "egress-secret", Arg: "USE", Help: "a secret that is put into its requests, as with palyra\nexec; may be given more than once", Repeat: true},
				{Name: "header", Arg: "NAME: VALUE", Help: "sent to URL with each request; may be given more than\nonce", Repeat: true},
				{Name: "transport", Arg: "NAME", Help: "http or stdio; the words say which it is anyway"},
				{Name: "memory", Arg: "SIZE", Help: "memory limit (default 1GiB)", Parse: command.Size},
				{Name: "pids", Arg: "N", Help: "limit of processes and threads (default 256)", Parse: command.Count(1 << 16)},
				{Name: "timeout", Arg: "D", Help: "for the answer to a call (default 1m)", Parse: command.Duration},
				{Name: "life", Arg: "D", Help: "of a started server (default 1h, which a run's budget\nbounds, too)", Parse: command.Duration}},
			Examples: []command.Example{{Line: "palyra mcp add files --workspace src --mount /opt/mcp -- /opt/mcp/files /workspace", Does: "a server that is installed in /opt/mcp"},
				{Line: "palyra mcp add tracker https://mcp.example/v1 --header 'X-Team: lib'", Does: "a server over HTTP; --egress-secret gives it a token"}}},
		{Name: "mcp ls", Program: Client, Short: "list the MCP servers",
			Examples: []command.Example{{Line: "palyra mcp ls", Does: "names, states, how many tools"}}},
		{Name: "mcp show", Program: Client, Operands: "NAME", Min: 1, Max: 1, Short: "show an MCP server and its accepted tools",
			Examples: []command.Example{{Line: "palyra mcp show files", Does: "its command, its cell, its tools with their pins"}}},
		{Name: "mcp accept", Program: Client, Operands: "NAME", Min: 1, Max: 1, Short: "start an MCP server, show its tools, and accept them",
			Long: `
Without --digest it starts the server in your name, which policy decides, shows
each tool with its description and what differs from the accepted ones, and names
the digest of the list. With --digest exactly those tools are accepted. A tool
whose name, description, schema or hints differ from then on isn't called:
tool_changed. A server's hints, such as readOnlyHint, are its own word.`,
			Flags: []command.Flag{{Name: "digest", Arg: "DIGEST", Help: "accept the tools that it listed last, which have this\ndigest"}},
			Examples: []command.Example{{Line: "palyra mcp accept files", Does: "shows the tools and the command that accepts them"},
				{Line: "palyra mcp accept files --digest sha256:...", Does: "accepts them"}}},
		{Name: "mcp rm", Program: Client, Operands: "NAME", Min: 1, Max: 1, Short: "remove an MCP server, and end it",
			Examples: []command.Example{{Line: "palyra mcp rm files", Does: "its tools can't be called any more"}}},
		{Name: "tools export", Program: Agents, Short: "print the tools for a model's interface, as JSON",
			Long: `
The names have an underscore in place of the dot. openai and anthropic are the
member tools of a request (chat completions, messages), for programs that call
palyrad's HTTP API themselves; mcp is what palyra mcp serve lists.`,
			Flags:    []command.Flag{{Name: "format", Arg: "NAME", Help: "openai, anthropic or mcp (required)"}},
			Examples: []command.Example{{Line: "palyra tools export --format anthropic", Does: "prints an array"}}},
		{Name: "hook", Program: Agents, Operands: "claude|codex", Min: 1, Max: 1, Short: "answer an agent's hook: let its shell commands run in cells",
			Long: `
The agent starts it before each of its tool calls (PreToolUse), with the call on
standard input. A shell command that policy denies is refused, with the reason
in words for the model; any other is replaced by one that has palyra sh run it
in a cell. Tools that start no program pass, others are refused. Whatever goes
wrong is a refusal. palyra setup claude --hook enters it.

--workspace NAME has palyrad run the commands, --policy DIR palyra exec; with
both, palyra exec does when palyrad doesn't answer. For Claude Code the next
command starts in the folder where one ended. Codex runs commands in a sandbox
of its own, where palyra can start no cell and they fail: docs/formats/hook.md.`,
			Flags: append([]command.Flag{
				{Name: "refuse", Arg: "TOOL", Help: "refuse a tool of the agent's, such as Edit; a name that\nends with * stands for all that begin so; may be given\nmore than once", Repeat: true},
				{Name: "pass", Arg: "TOOL", Help: "let a tool pass that would be refused, unconfined; may\nbe given more than once", Repeat: true}}, shell...),
			Examples: []command.Example{{Line: "palyra hook claude --policy ~/palyra-policy", Does: "in settings.json, for every project, without palyrad"},
				{Line: "palyra hook claude --workspace src --dir ~/src --refuse Edit", Does: "palyrad runs the commands; the agent's Edit is refused"}}},
		{Name: "sh", Program: Agents, Operands: "LINE", Max: -1, Short: "run one line of a shell in a cell, for agents",
			Long: `
Runs LINE with a shell of this host (bash, else sh) in a cell, in the folder of
the workspace in which it is called, without standard input, and prints what it
wrote when it has ended. A refusal is said in words for a model.

palyra-sh is a link to palyra: it is palyra sh -- with the flags of the variable
PALYRA_SH, separated by spaces. An agent can have it as its shell (-c LINE), and
Claude Code in CLAUDE_CODE_SHELL_PREFIX; then palyra mcp serve and palyra hook
pass, which Claude Code starts through it, and its own hooks run in cells.`,
			Flags: append([]command.Flag{
				{Name: "cwd-link", Arg: "PATH", Help: "if LINE ends well, make PATH a link to the folder where\nit ended"},
				{Name: "packed", Arg: "TEXT", Help: "flags and LINE as palyra hook packs them"}}, shell...),
			Exits: []command.Exit{{Code: "0-123", Meaning: "the line's own status (and any other that it chose)"}, {Code: "124", Meaning: "timed out"},
				{Code: "125", Meaning: "it couldn't be run, or what became of it is unknown"}, {Code: "126", Meaning: "denied by policy or by a person"},
				{Code: "137", Meaning: "it was killed"}},
			Examples: []command.Example{{Line: "palyra sh --workspace src -- 'go vet ./... | tail'", Does: "palyrad runs the line in the folder of src where you are"}}},
		{Name: "setup", Program: Setup, Operands: "[claude|codex|cursor|palyrad]", Max: 1, Short: "have an agent use palyra's tools: edit its configuration",
			Long: `
Enters palyra mcp serve into the configuration of Claude Code, Codex or Cursor:
the user's, or with --project the one in the working directory (not for Codex).
It shows each change, keeps the file as it was as FILE.before-palyra, and leaves
everything else in it as it stands; a file that it can't read so is refused.
Then it makes a call as the agent will, of true, and prints the receipt's index.

Where no palyrad answers and none is named, it makes one of this user's first:
~/.config/palyra/palyrad.toml with the working directory as a staged workspace,
the policies of the preset coding beside it, and a socket of the user's systemd
that starts palyrad; without systemd it starts palyrad itself. setup palyrad does
that alone. Set up in another folder, it adds a workspace. For it setup declares
the toolchains and module caches of the project's languages, read-only, caches
and a network of the calls' own.

The agent's own shell and its tools that write would pass Palyra by: they are
turned off for a staged project (--own-tools leaves them). With --hook setup
enters palyra hook claude instead: Claude Code keeps its Bash, and each of its
commands runs in a cell. Both may stand beside each other.

--undo takes out what setup put in, and nothing else; of setup palyrad, the
workspace and the units. For any other agent, palyra setup --print prints the
entry, with the same flags, and neither writes nor calls anything.`,
			Flags: []command.Flag{
				{Name: "project", Help: "the files of the project in the working directory"},
				{Name: "workspace", Arg: "NAME", Help: "the workspace of calls that name none"},
				{Name: "direct", Help: "calls write to the workspace itself (default: to a layer of\ntheir session, which palyra changes shows)"},
				{Name: "hook", Help: "for Claude Code: confine its Bash instead; --workspace is\nthen the working directory's name"},
				{Name: "policy", Arg: "DIR", Help: "with --hook: policy directory for palyra exec, which runs\nthe commands where no palyrad answers"},
				{Name: "mode", Arg: "MODE", Help: "with --policy: of the project, staged (default), rw or ro", Values: modes, Parse: parseMode},
				{Name: "own-tools", Help: "leave the agent's own tools on"},
				{Name: "own-tools-off", Help: "turn off the agent's own shell and, for Claude Code, its\ntools that write (default for Codex and with --project,\nnot with --direct); Cursor has no setting for that"},
				{Name: "undo", Help: "take out what setup put in"},
				{Name: "dry-run", Help: "show the changes; write and call nothing"},
				{Name: "print", Help: "without an agent: print the entry of an MCP configuration\nfor any other, staged unless --direct"}},
			Exits: []command.Exit{{Code: "1", Meaning: "nothing to undo, or an internal error"},
				{Code: "3", Meaning: "set up, but the call was not executed: no palyrad answers,\n         policy denies it, or it waits for a person"},
				{Code: "78", Meaning: "a file that cannot be edited: not what the agent reads, a\n         symbolic link, changed meanwhile, or with an entry palyra\n         that is another's; nothing is written"}},
			Examples: []command.Example{
				{Line: "palyra setup claude --project", Does: "Claude Code works through Palyra in this project"},
				{Line: "palyra setup claude --project --hook --policy ~/palyra-policy", Does: "its Bash runs in cells, without palyrad"},
				{Line: "palyra setup codex --dry-run", Does: "shows what would stand in ~/.codex/config.toml"},
				{Line: "palyra setup --print --workspace src", Does: "prints the entry for another agent's configuration"},
				{Line: "palyra setup claude --project --undo", Does: "as it was"}}},
	}
}

// shell are the flags of a shell's line.
var shell = []command.Flag{
	{Name: "dir", Arg: "DIR", Help: "folder that is the workspace (default: the agent's\nproject; of sh, the working directory)"},
	{Name: "workspace", Arg: "NAME", Help: "name that palyrad has for it"},
	{Name: "policy", Arg: "DIR", Help: "policy directory for palyra exec"},
	{Name: "mode", Arg: "MODE", Help: "of the workspace with palyra exec: staged (default), rw\nor ro", Values: modes, Parse: parseMode},
	{Name: "layer", Arg: "NAME", Help: "layer of a staged workspace (default: the session's; of\nsh, a new one); its lines wait for each other", Parse: parseLayer},
	{Name: "network", Arg: "NAME", Help: "fresh, loopback or void (default: what palyrad has for the\nworkspace; with palyra exec fresh)", Values: networks, Parse: parseNetwork},
	{Name: "egress", Arg: "HOST[:PORT]", Help: "host that its lines may reach, or @LIST, as of palyra exec;\nmay be given more than once", Repeat: true, Parse: parseHost},
	{Name: "timeout", Arg: "D", Help: "limit of a line, also of each process's processor time\n(default 10m)", Parse: command.Duration},
}

const (
	modes    = "staged|rw|ro"
	networks = "fresh|loopback|void"
)

// parseHost takes the spelling of a host. The rule or list that it is reads who makes the call.
func parseHost(s string) (any, error) {
	if s == "" || len(s) > 300 {
		return nil, fmt.Errorf("host of %d bytes: want 1 to 300", len(s))
	}
	return s, nil
}

// parseMode takes words with commas between. Which ones there are is palyra exec's matter.
func parseMode(s string) (any, error) {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz-,") != "" {
		return nil, fmt.Errorf("mode %q: want one such as %s", s, strings.ReplaceAll(modes, "|", ", "))
	}
	return s, nil
}

func parseLayer(s string) (any, error) {
	if len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("layer %q: want 1 to 64 of a-z, 0-9 and -", s)
	}
	return s, nil
}

func parseNetwork(s string) (any, error) {
	if !slices.Contains(strings.Split(networks, "|"), s) {
		return nil, fmt.Errorf("network %q: want one of %s", s, strings.ReplaceAll(networks, "|", ", "))
	}
	return s, nil
}
