package programs

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/cmd/internal/command"
)

// tabled are the commands that print a table.
var tabled = map[string]bool{"sessions ls": true, "sessions show": true, "runs ls": true, "runs show": true, "runs cancel": true, "tools ls": true,
	"approvals ls": true, "approvals grants": true, "policy ls": true, "policy reload": true, "policy diff": true, "policy try": true,
	"journal ls": true, "keys ls": true, "keys rotate": true, "changes ls": true, "changes show": true, "token ls": true, "token revoke": true, "passkeys ls": true, "passkeys revoke": true, "members ls": true, "mcp ls": true, "models ls": true, "agent instructions": true, "agent usage": true, "config show": true, "devices pairings": true,
	"devices ls": true, "devices revoke": true, "devices root": true, "vault ls": true, "vault history": true, "vault recipients": true, "memory ls": true, "memory search": true}

// takes says what the operands of commands are; see command.Command.
var takes = map[string][]string{
	"call": {"@tool"}, "sessions show": {"@session"}, "sessions end": {"@session"}, "runs show": {"@run"}, "runs cancel": {"@run"}, "runs tape": {"@run"}, "runs output": {"@run"}, "agent attach": {"@run"}, "agent tell": {"@run"},
	"tools show": {"@tool"}, "approvals show": {"@approval"}, "approvals approve": {"@approval"}, "approvals deny": {"@approval"}, "approvals revoke": {"@grant"},
	"artifact get": {"@run"}, "token revoke": {"@token"}, "token rotate": {"@token"}, "passkeys revoke": {"@passkey"}, "members set": {"@member", roles}, "members rm": {"@member"},
	"config explain": {"@key"}, "devices show": {"@device"}, "devices revoke": {"@device"}, "devices rm": {"@device"}, "devices approve": {"@pairing"}, "devices deny": {"@pairing"},
	"vault recipients": {"ls|add|rm"}, "agent instructions": {"ls|show|accept|revoke"},
	"complete": {"approval|device|grant|key|member|model|pairing|passkey|run|session|token|tool"},
}

// valuesOf says what a flag takes that does not say it itself.
func valuesOf(command, flag string) string {
	switch command + " --" + flag {
	case "memory purge --origin":
		return "memory|model|operator|person|project|tool|web" // call.Origins, which not each program links
	case "memory add --session", "memory search --session", "memory purge --session", "agent run --session", "agent chat --session", "agent usage --session", "call --session", "runs ls --session", "runs start --session":
		return "@session"
	case "token create --principal", "agent usage --principal":
		return "@member"
	case "sessions ls --state":
		return "open|ended"
	case "tools export --format":
		return "openai|anthropic|mcp"
	case "runs ls --state":
		return "pending|accepted|in_progress|waiting_approval|done|failed|cancelled"
	case "approvals ls --state":
		return "pending|approved|denied|expired|withdrawn|all"
	case "approvals approve --scope":
		return "once|session"
	case "approvals approve --pattern":
		return "same|content|within="
	case "token create --scope", "pair --scope", "devices pair --scope", "devices approve --scope":
		var names []string
		for _, p := range access.All().List() {
			names = append(names, string(p))
		}
		return strings.Join(names, "|")
	}
	return ""
}

const roles = "operator|admin|owner"

var (
	flagStaged   = command.Flag{Name: "staged", Help: "what calls write to a workspace goes to a layer of their\nsession (palyra changes), also where palyrad's\nconfiguration doesn't say so"}
	flagParallel = command.Flag{Name: "parallel", Help: "it may be made while others of its session are that may,\ntoo; else it waits for them"}
	flagJSON     = command.Flag{Name: "json", Help: "print one JSON document with sorted keys"}
	flagWide     = command.Flag{Name: "wide", Help: "cut nothing, and show ids whole, as it is where the output\nis no terminal"}
	connection   = []command.Flag{
		{Name: "socket", Arg: "PATH", Help: "palyrad's unix socket (default $PALYRA_SOCKET, else\nthe first there is of $XDG_RUNTIME_DIR/palyra/palyrad.sock,\npalyrad.sock in the state directory, /run/palyra/palyrad.sock)"},
		{Name: "url", Arg: "URL", Help: "palyrad over HTTP instead, such as http://127.0.0.1:7142;\nneeds --token-file"},
		{Name: "token-file", Arg: "FILE", Help: "file with an API token, which --url needs; at the\nsocket it counts instead of the user"},
	}
	paging = []command.Flag{
		{Name: "limit", Arg: "N", Help: "how many at most (default 100, at most 1000)", Parse: command.Count(1000)},
		{Name: "after", Arg: "CURSOR", Help: "go on after the page that ended with this cursor"},
	}
	flagDevice = command.Flag{Name: "device", Arg: "DIR", Help: "palyrad at another host, as the device that palyra pair\nput into DIR; --url says where, unless DIR does"}

	flagVersion = command.Flag{Name: "version", Arg: "N", Help: "only if it is still this version (default: whichever it\nis now)", Parse: command.Count(1 << 53)}

	// exits are those of every command of palyra-ctl.
	exits = []command.Exit{
		{Code: "1", Meaning: "no such thing, or an internal error"},
		{Code: "4", Meaning: "denied: a permission is missing"},
		{Code: "75", Meaning: "palyrad is not reachable, busy, or the thing has changed meanwhile"},
	}
)

func daemon() []command.Command {
	return []command.Command{
		{Name: "status", Short: "how palyrad is: mode, confinement, pools, counts",
			Examples: []command.Example{{Line: "palyra status --json", Does: "for a monitor"}}},
		{Name: "doctor", Short: "what is missing, what that costs and what fixes it",
			Long: `
Tries each control of the host, then looks at policies, disk, clock, sandbox
certificate, where the identity of its vault is kept, and palyrad's own
confinement, and at the way from here to palyrad: its socket and the group that
may use it. A no whose absence costs something is counted as missing.`,
			Exits:    []command.Exit{{Code: "3", Meaning: "something is missing"}},
			Examples: []command.Example{{Line: "palyra doctor", Does: "lists findings; the fix is a command where one is known"}}},
		{Name: "stop", Short: "end every run at once",
			Long: `
Ends every run of every user, processes included. The goal is 100 ms. palyrad
answers within about two seconds, and names what isn't done by then. With
--deny-new it refuses new runs and calls until palyra resume, also after a
restart. The stop is an entry in the journal.`,
			Flags: []command.Flag{{Name: "all", Help: "required: the runs of all users"},
				{Name: "deny-new", Help: "and refuse new ones until palyra resume"}},
			Examples: []command.Example{{Line: "palyra stop --all --deny-new", Does: "the emergency stop"}}},
		{Name: "resume", Short: "take new runs again after stop --deny-new",
			Examples: []command.Example{{Line: "palyra resume", Does: "lifts the stop"}}},
		{Name: "console open", Short: "let a browser in: questions, runs, changes, journal",
			Long: `
Prints the address of palyrad's console with a code that is good for a minute
and one browser, and opens it where there is a desktop (xdg-open). The browser
gets a token of yours for 12 hours, or 2 without a click; palyra token ls lists
it as console. There it can add a passkey, and come back without a code. At the
socket alone.`,
			Flags: []command.Flag{{Name: "print", Help: "only print the address"},
				{Name: "qr", Help: "and as a QR code, for a phone: where the console\nis reached over TLS"},
				{Name: "app", Help: "open a window of its own, by Chromium, Chrome or\nEdge"}},
			Examples: []command.Example{{Line: "palyra console open", Does: "then answer questions there"}}},
	}
}

func work() []command.Command {
	return []command.Command{
		{Name: "call", Operands: "TOOL [JSON]", Min: 1, Max: 2, Short: "call a tool and wait for it",
			Long: `
JSON is the tool's input, an object; - reads it from standard input. What the
tool writes goes to standard output and standard error as it is, while a tool
that takes long still runs; on a terminal control characters in it are shown as
text, and it waits while a question is on the same terminal. With --json it
comes at the end. A call that needs approval waits, and says on standard error
what is asked. Interrupted, it cancels the call. If palyrad doesn't answer for
10 s, it ends with status 75: the call may have run, as runs show will say.`,
			Flags: []command.Flag{
				{Name: "session", Arg: "ID", Help: "session to call in (default: one of its own)"},
				{Name: "key", Arg: "KEY", Help: "idempotency key: the same call again is not made again"},
				flagStaged, flagParallel,
				{Name: "max-wall", Arg: "D", Help: "end it after this long, waiting included", Parse: command.Duration},
				{Name: "receipt", Arg: "FILE", Help: "write the receipt (a Sigstore bundle) to FILE"}, FlagRaw},
			Exits: []command.Exit{{Code: "0-123", Meaning: "the tool's own status"}, {Code: "124", Meaning: "timed out"},
				{Code: "125", Meaning: "refused, it failed to start, or its outcome is unknown"}, {Code: "126", Meaning: "denied by policy or by the approver"},
				{Code: "128+n", Meaning: "the tool ended by signal n"}},
			Examples: []command.Example{
				{Line: `palyra call palyra.echo '{"text":"hello"}'`, Does: "the smallest call"},
				{Line: `palyra call process.run '{"argv":["/usr/bin/id"]}'`, Does: "runs a program in a cell"},
				{Line: `palyra call --session ses_... process.run '{"argv":["sleep","60"],"background":true}'`, Does: "prints run_... when it has started"}}},
		{Name: "agent run", Operands: "PROMPT", Min: 1, Max: 1, Short: "have a model work on a prompt",
			Long: `
A model that palyrad's configuration declares is asked, with palyrad's tools,
until it answers without calling one; - reads PROMPT from standard input. What
the model says goes to standard output as it comes, its calls and what became
of them to standard error. Each turn of the model and each call is a step of one
run: decided by policy, bounded by its budget, and with a receipt. A call that
needs approval waits; who may answer is asked on this terminal. The session
stays open: --session goes on with what was said. Interrupted, it cancels the
run. If palyrad stops, the run goes on when it's back: agent attach.`,
			Flags: append([]command.Flag{{Name: "session", Arg: "ID", Help: "session to go on with (default: a new one)"},
				{Name: "key", Arg: "KEY", Help: "idempotency key: the same prompt again makes no other run"}}, agentFlags...),
			Exits: []command.Exit{{Code: "0", Meaning: "the model answered"}, {Code: "1", Meaning: "the run ended without an answer"}},
			Examples: []command.Example{
				{Line: `palyra agent run "mend..."`, Does: "prints what the model says and does"},
				{Line: `palyra agent run --session ses_... "commit..."`, Does: "goes on"},
				{Line: "palyra agent run -", Does: "reads the prompt from standard input"}}},
		{Name: "agent chat", Short: "talk with a model",
			Long: `
Each line of standard input is a prompt, as with agent run, in one session. It
ends with the input.`,
			Flags:    append([]command.Flag{{Name: "session", Arg: "ID", Help: "session to go on with (default: a new one)"}}, agentFlags...),
			Examples: []command.Example{{Line: "palyra agent chat --model main", Does: "asks for prompts"}}},
		{Name: "agent attach", Operands: "RUN", Min: 1, Max: 1, Short: "follow the run of an agent to its end",
			Exits:    []command.Exit{{Code: "0", Meaning: "the model answered"}, {Code: "1", Meaning: "the run ended without an answer"}},
			Examples: []command.Example{{Line: "palyra agent attach run_...", Does: "what was said before comes first"}}},
		{Name: "agent tell", Operands: "RUN TEXT", Min: 2, Max: 2, Short: "say something to an agent at work",
			Long: `
It's told before the model's next turn. Calls that the model wants and that
haven't been made yet aren't made then. - reads TEXT from standard input.`,
			Flags: []command.Flag{{Name: "now", Help: "end the call that is under way, too"}, {Name: "after", Help: "wait until the model has answered; the run goes on with it"}},
			Examples: []command.Example{{Line: `palyra agent tell run_... "leave..."`, Does: "steers it"},
				{Line: `palyra agent tell --after run_... "then..."`, Does: "is the next task of the same run"}}},
		{Name: "agent instructions", Operands: "[ls | show WORKSPACE | accept WORKSPACE | revoke WORKSPACE]", Max: 2, Short: "say which project instructions your agents follow",
			Long: `
A workspace's PALYRA.md, AGENTS.md, CLAUDE.md or .cursorrules, the first that
there is, has instructions for agents. A model is told them as such only if you
have accepted the file's digest; a changed file has another. "accept" shows the
file, and with --digest accepts it. Agents' tokens can't.`,
			Flags: []command.Flag{{Name: "digest", Arg: "DIGEST", Help: "of accept: the digest that was shown"}, {Name: "anyway", Help: "of accept: although it has text that people don't see"}},
			Examples: []command.Example{{Line: "palyra agent instructions accept src", Does: "shows what would be accepted, and how"},
				{Line: "palyra agent instructions ls", Does: "what you have accepted"}}},
		{Name: "agent usage", Short: "sum what turns of models took, and what is left",
			Long: `
By day (UTC) and model: the turns of your agents, of calls of model.turn and of
clients of /v1/, those under way included; and what is left of the budgets that
[agent] of palyrad's configuration sets. Costs are in the unit of the models'
prices. A day's sum stays when its runs are removed.`,
			Flags: []command.Flag{{Name: "session", Arg: "ID", Help: "those of one session"},
				{Name: "principal", Arg: "P", Help: "those of another principal, for who may manage members"},
				{Name: "all", Help: "a sum for each principal and model, likewise"},
				{Name: "days", Arg: "N", Help: "of the last N days, today's included (default 7, and all\nof a session's)", Parse: command.Count(366)}},
			Examples: []command.Example{{Line: "palyra agent usage --days 31", Does: "what took it, by day and model"}}},
		{Name: "sessions ls", Short: "list sessions", Flags: append(paging[:2:2], command.Flag{Name: "state", Arg: "STATE", Help: "open or ended"}),
			Examples: []command.Example{{Line: "palyra sessions ls --state open", Does: "newest first"}}},
		{Name: "sessions new", Operands: "[TITLE]", Max: 1, Short: "open a session and print its id",
			Examples: []command.Example{{Line: "palyra sessions new nightly-build", Does: "prints ses_..."}}},
		{Name: "sessions show", Operands: "ID", Min: 1, Max: 1, Short: "show a session and its runs",
			Examples: []command.Example{{Line: "palyra sessions show ses_...", Does: "state, owner, what it has read, runs"}}},
		{Name: "sessions end", Operands: "ID", Min: 1, Max: 1, Short: "cancel a session's runs and end it", Flags: []command.Flag{flagVersion},
			Examples: []command.Example{{Line: "palyra sessions end ses_...", Does: "ending twice is no error"}}},
		{Name: "runs ls", Short: "list runs", Flags: append(paging[:2:2], command.Flag{Name: "session", Arg: "ID", Help: "only those of a session"},
			command.Flag{Name: "state", Arg: "STATE", Help: "pending, accepted, in_progress, waiting_approval, done,\nfailed or cancelled; may be given more than once", Repeat: true},
			command.Flag{Name: "background", Help: "only programs in the background that haven't ended"}),
			Examples: []command.Example{{Line: "palyra runs ls --state in_progress", Does: "what runs now"},
				{Line: "palyra runs ls --background", Does: "what agents left running: runs output reads it, runs cancel ends it"}}},
		{Name: "runs start", Operands: "FILE", Min: 1, Max: 1, Short: "queue a run and print its id",
			Long: `
FILE holds a JSON array of steps, [{"tool":NAME,"input":{...}}, ...]; - reads
standard input.`,
			Flags: []command.Flag{
				{Name: "session", Arg: "ID", Help: "session to run in (required)"},
				{Name: "key", Arg: "KEY", Help: "idempotency key: the same run again is not started again"},
				flagStaged, flagParallel,
				{Name: "keep-going", Help: "go on after a step that did not end well"},
				{Name: "max-calls", Arg: "N", Help: "budget: calls", Parse: command.Count(1 << 40)},
				{Name: "max-wall", Arg: "D", Help: "budget: time, waiting included", Parse: command.Duration},
				{Name: "max-bytes", Arg: "SIZE", Help: "budget: output", Parse: command.Size}},
			Examples: []command.Example{{Line: "palyra runs start --session ses_... steps.json", Does: "prints run_..."}}},
		{Name: "runs show", Operands: "ID", Min: 1, Max: 1, Short: "show a run with its steps",
			Examples: []command.Example{{Line: "palyra runs show run_...", Does: "what became of each step"}}},
		{Name: "runs cancel", Operands: "ID", Min: 1, Max: 1, Short: "end a run, down to its processes",
			Examples: []command.Example{{Line: "palyra runs cancel run_...", Does: "cancelling one that has ended is no error"}}},
		{Name: "runs tape", Operands: "ID", Min: 1, Max: 1, Short: "print a run's events, and follow until it has ended",
			Long: `
One line per event. With --json one JSON document per line (NDJSON).`,
			Flags: []command.Flag{{Name: "after", Arg: "SEQ", Help: "only events after this one", Parse: command.Count(1 << 53)},
				{Name: "tools", Help: "in the words of the original: tool_proposal, tool_decision,\ntool_approval_request and _response, tool_result and\ntool_attestation, made of the tape and the receipts"}},
			Examples: []command.Example{{Line: "palyra runs tape --after 7 run_...", Does: "goes on where another reader stopped"}}},
		{Name: "runs output", Operands: "ID", Min: 1, Max: 1, Short: "print what a run's steps have written",
			Long: `
Each stream goes to the stream of the same name, as palyra call has it. It can
be read while the run goes on and afterwards, beyond 8 KiB until the session
ends. With --json one JSON document per part and line (NDJSON).`,
			Flags: []command.Flag{{Name: "follow", Help: "and what they write, until the run has ended"},
				{Name: "step", Arg: "N", Help: "begin with this step (default 0, the first)", Parse: command.Count(1 << 20)}, FlagRaw},
			Examples: []command.Example{{Line: "palyra runs output --follow run_...", Does: "from the beginning"}}},
		{Name: "tools ls", Short: "list the tools", Examples: []command.Example{{Line: "palyra tools ls", Does: "name, capabilities, what it does"}}},
		{Name: "tools show", Operands: "NAME", Min: 1, Max: 1, Short: "show a tool with the schema of its input",
			Examples: []command.Example{{Line: "palyra tools show fs.read_file", Does: "what its input may hold"}}},
		{Name: "models ls", Short: "list the language models that the operator declared",
			Long: `
A model is declared in palyrad's configuration, as [models.NAME]. One that can't
be asked now says why.`,
			Examples: []command.Example{{Line: "palyra models ls", Does: "provider, window, which is the default"}}},
	}
}

var agentFlags = []command.Flag{
	{Name: "model", Arg: "NAME", Help: "the model to ask (default: palyrad's)"},
	{Name: "workspace", Arg: "NAME", Help: "whose project instructions it's told, if you accepted them\n(default: the only workspace)"},
	{Name: "turns", Arg: "N", Help: "how often it may be asked (default: as often as palyrad lets it)", Parse: command.Count(1 << 20)},
	flagStaged,
	{Name: "max-calls", Arg: "N", Help: "end it after so many turns and calls", Parse: command.Count(1 << 40)},
	{Name: "max-wall", Arg: "D", Help: "end it after this long, waiting included", Parse: command.Duration}}

// FlagRaw is of the commands that hand on what a program wrote.
var FlagRaw = command.Flag{Name: "raw", Help: "let control characters in the output act on the terminal;\nfiles and pipes get every byte in any case"}

func approvals() []command.Command {
	return []command.Command{
		{Name: "approvals ls", Short: "list requests for approval", Flags: append(paging[:2:2], command.Flag{Name: "state", Arg: "STATE", Help: "pending (default), approved, denied, expired, withdrawn\nor all"}),
			Examples: []command.Example{{Line: "palyra approvals ls", Does: "what waits for an answer"}}},
		{Name: "approvals show", Operands: "ID", Min: 1, Max: 1, Short: "show what is asked",
			Examples: []command.Example{{Line: "palyra approvals show apr_...", Does: "what will run, where, and which policy asks"}}},
		{Name: "approvals approve", Operands: "ID", Min: 1, Max: 1, Short: "say yes to one call, or to others like it for a while",
			Long: `
Shows the request on the controlling terminal, page by page if it is long, and
asks for digits that are drawn then. Without a terminal --capsule must give the
capsule's whole digest: an approver has seen the call.

A yes is for this call, once. With --scope session or --for it stands for
further calls of the same requester: those of this very capsule, or with
--pattern those of this program, workspace, network and tier whose arguments
differ only as the pattern allows. palyra first shows which recent calls such a
yes would have let through. Only the built-in tools and ordinary programs for
files (cat, grep, rm, ...) get a pattern.`,
			Flags: []command.Flag{{Name: "capsule", Arg: "DIGEST", Help: "the capsule's digest, all of it; then it doesn't ask", Parse: parseDigest},
				{Name: "comment", Arg: "TEXT", Help: "kept with the answer"},
				{Name: "scope", Arg: "SCOPE", Help: "once (default) or session", Parse: parseScope},
				{Name: "for", Arg: "TIME", Help: "for a time: 1s to 24h, such as 10m", Parse: parseFor},
				{Name: "uses", Arg: "N", Help: "for so many calls at most, this one included", Parse: command.Count(1 << 31)},
				{Name: "pattern", Arg: "WHAT", Help: "same, within=2,3 (arguments that may be any path below the\nworking directory) or content (other input, other content)", Repeat: true, Parse: parsePattern},
				{Name: "preview", Help: "show what the yes would let through, and stop"}},
			Exits: []command.Exit{{Code: "5", Meaning: "not approved: the digits or the digest are not those of the request"}},
			Examples: []command.Example{{Line: "palyra approvals approve apr_...", Does: "asks, then answers"},
				{Line: "palyra approvals approve --for 10m --pattern within=2 apr_...", Does: "and whatever file the second argument names, for ten minutes"}}},
		{Name: "approvals grants", Short: "list what was approved for a session or a time",
			Examples: []command.Example{{Line: "palyra approvals grants", Does: "who may do what without being asked, and until when"}}},
		{Name: "approvals revoke", Operands: "GRANT", Min: 1, Max: 1, Short: "take back what was approved for a session or a time",
			Examples: []command.Example{{Line: "palyra approvals revoke grt_...", Does: "at once; what runs because of it runs on"}}},
		{Name: "approvals deny", Operands: "ID", Min: 1, Max: 1, Short: "say no",
			Flags:    []command.Flag{{Name: "comment", Arg: "TEXT", Help: "kept with the answer"}},
			Examples: []command.Example{{Line: "palyra approvals deny apr_...", Does: "the call ends as not approved"}}},
		{Name: "approvals watch", Short: "print requests as they come, or answer them full-screen",
			Long: `
One line per request that waits, and one when it is answered, until interrupted.
With --json one JSON document per line (NDJSON).

With --answer it shows what waits, full-screen, and takes answers:
  j, k, arrows  choose a request
  Enter         show its card: space, b and arrows turn its pages
  a             approve, once, for the session or for a time: asks for digits
                below the card, as palyra approvals approve does
  d             deny, with a comment for the caller
  q, Esc        back; in the list, end
Keys typed before a card was shown are no answer to it, nor is an answer for
another request than the one that was shown. A request that is answered
elsewhere, or expires, goes from the screen, which says so.`,
			Flags: []command.Flag{{Name: "answer", Help: "full-screen, on the controlling terminal: at least 8 rows of\n30 columns, and TERM is not dumb"}},
			Exits: []command.Exit{{Code: "7", Meaning: "--answer: not on this system"}, {Code: "78", Meaning: "--answer: the terminal is too small"}},
			Examples: []command.Example{{Line: "palyra approvals watch", Does: "for the second terminal"},
				{Line: "palyra approvals watch --answer", Does: "to answer there, over ssh too"}}},
	}
}

// The flags of what looks back at decisions. palyra itself serves it where they
// are given, from the journal in a state directory; else palyrad is asked.
var recall = []command.Flag{
	{Name: "local", Help: "what palyra exec decided, from this user's state\ndirectory, instead of asking palyrad"},
	{Name: "state", Arg: "DIR", Help: "the same, from that state directory"},
	{Name: "policy", Arg: "DIR", Help: "with --local or --state: the policy directory that is in\nforce (default: the built-in set)"},
}

var flagLast = command.Flag{Name: "last", Arg: "N", Help: "how many of the newest decisions (default 100)", Parse: command.Count(10000)}

func policies() []command.Command {
	return []command.Command{
		{Name: "policy ls", Short: "list the policies that palyrad decides by", Examples: []command.Example{{Line: "palyra policy ls", Does: "and the digest of the set"}}},
		{Name: "policy why", Operands: "DECISION", Min: 1, Max: 1, Short: "say why something was denied or allowed, and what would change it",
			Long: `
DECISION is the id that every denial carries, or its first eight digits or more.
Prints the layer that said no, its rules, and a change that would allow calls of
that shape: a diff that says how wide it is, with the change for that call alone.
Looks into this user's state directory first, then asks palyrad.`,
			Flags:    recall,
			Exits:    []command.Exit{{Code: "8", Meaning: "the journal does not check"}, {Code: "78", Meaning: "state or policies cannot be used"}},
			Examples: []command.Example{{Line: "palyra policy why 5c0ffee0", Does: "what the denial named, in full"}}},
		{Name: "policy diff", Operands: "DIR", Min: 1, Max: 1, Short: "decide recent calls again by a candidate",
			Long: `
Decides the newest calls again, once by the set in force and once by the
candidate in DIR, and lists the differences. Nothing runs.`,
			Flags:    append([]command.Flag{flagLast}, recall...),
			Exits:    []command.Exit{{Code: "3", Meaning: "some would be decided otherwise"}, {Code: "8", Meaning: "the journal does not check"}, {Code: "78", Meaning: "the candidate cannot be used"}},
			Examples: []command.Example{{Line: "palyra policy diff ./policy", Does: "before it is put into force"}}},
		{Name: "policy try", Short: "decide recent calls again with a change, before it is applied",
			Long: `
Like policy diff, for a directory, for a unified diff against the set in force,
or for the change that a denial offers. The candidate must load: its own policy
tests are run, too.`,
			Flags: append([]command.Flag{
				{Name: "candidate", Arg: "DIR", Help: "a policy directory"},
				{Name: "diff", Arg: "FILE", Help: "a unified diff; - reads standard input"},
				{Name: "fix", Arg: "DECISION", Help: "the change that the denial with this id offers"},
				flagLast}, recall...),
			Exits: []command.Exit{{Code: "3", Meaning: "some would be decided otherwise"}, {Code: "8", Meaning: "the journal does not check"}, {Code: "78", Meaning: "the candidate cannot be used"}},
			Examples: []command.Example{
				{Line: "palyra policy try --fix 5c0ffee0", Does: "what else that change would let through"},
				{Line: "palyra policy try --local --diff fix.diff", Does: "against what palyra exec decided"}}},
		{Name: "policy export", Operands: "DECISION", Min: 1, Max: 1, Short: "write a decision so that another Cedar engine can make it again",
			Long: `
One JSON document: policies, schema, entities, the request, each question to
Cedar with its answer, and what followed. Looks into this user's state directory
first, then asks palyrad.`,
			Flags:    append([]command.Flag{{Name: "out", Arg: "FILE", Help: "write it to FILE (default: standard output)"}}, recall...),
			Exits:    []command.Exit{{Code: "8", Meaning: "made again it is another decision"}, {Code: "78", Meaning: "state or policies cannot be used"}},
			Examples: []command.Example{{Line: "palyra policy export --out decision.json 5c0ffee0", Does: "node conformance/cedar-js/bundle.mjs decision.json makes it again"}}},
		{Name: "policy reload", Short: "read the policies again; on an error the old ones stay",
			Examples: []command.Example{{Line: "palyra policy reload", Does: "as SIGHUP does, and prints what is in force"}}},
	}
}

func records() []command.Command {
	return []command.Command{
		{Name: "attest get", Operands: "INDEX", Min: 1, Max: 1, Short: "fetch a receipt from palyrad",
			Flags:    []command.Flag{{Name: "out", Arg: "FILE", Help: "write it to FILE (default: standard output)"}},
			Examples: []command.Example{{Line: "palyra attest get --out r.json 12", Does: "then palyra attest verify r.json, anywhere"}}},
		{Name: "journal ls", Short: "list palyrad's journal entries", Flags: []command.Flag{
			{Name: "from", Arg: "INDEX", Help: "first entry (default: the newest 100)", Parse: command.Count(1 << 53)}, paging[0]},
			Examples: []command.Example{{Line: "palyra journal ls", Does: "one line per entry"}}},
		{Name: "journal status", Short: "size, origin and checkpoint of palyrad's journal",
			Examples: []command.Example{{Line: "palyra journal status", Does: "the checkpoint is what a witness keeps"}}},
		{Name: "artifact get", Operands: "RUN DIGEST", Min: 2, Max: 2, Short: "fetch output that was too large for a result",
			Flags:    []command.Flag{{Name: "out", Arg: "FILE", Help: "write it to FILE (default: standard output)"}, FlagRaw},
			Examples: []command.Example{{Line: "palyra artifact get --out log.txt run_... sha256:...", Does: "checked against its digest"}}},
	}
}

// permissions returns the names of all, in lines.
func permissions() string {
	var b strings.Builder
	width := 0
	for _, p := range access.All().List() {
		if width += len(p) + 1; width > 78 {
			b.WriteByte('\n')
			width = len(p) + 1
		} else if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(string(p))
	}
	return b.String()
}

func members() []command.Command {
	return []command.Command{
		{Name: "token create", Operands: "NAME", Min: 1, Max: 1, Short: "make an API token and print it once",
			Long: `
It may do no more than its principal; docs/ROUTES.md has what each operation
wants. Permissions:
` + permissions(),
			Flags: []command.Flag{
				{Name: "scope", Arg: "PERMISSION", Help: "what it may do; may be given more than once, at least once", Repeat: true},
				{Name: "ttl", Arg: "D", Help: "how long it is good, such as 12h or 30d (required)", Parse: parseTTL},
				{Name: "principal", Arg: "NAME", Help: "whom it stands for (default: the caller)"}},
			Examples: []command.Example{{Line: "palyra token create ci --scope run.start --scope session.read --ttl 30d", Does: "prints palyra_...; it cannot be shown again"}}},
		{Name: "token ls", Short: "list tokens without their secrets", Flags: paging,
			Examples: []command.Example{{Line: "palyra token ls", Does: "with expiry and last use"}}},
		{Name: "token revoke", Operands: "ID", Min: 1, Max: 1, Short: "end a token for good", Flags: []command.Flag{flagVersion},
			Examples: []command.Example{{Line: "palyra token revoke tok_...", Does: "at once, and not to be undone"}}},
		{Name: "token rotate", Operands: "ID", Min: 1, Max: 1, Short: "make a token's successor and print it once",
			Flags: []command.Flag{{Name: "ttl", Arg: "D", Help: "how long the new one is good (required)", Parse: parseTTL},
				{Name: "overlap", Arg: "D", Help: "how long the old one stays good (default: not at all)", Parse: parseTTL}, flagVersion},
			Examples: []command.Example{{Line: "palyra token rotate --ttl 30d --overlap 1h tok_...", Does: "the old one ends after an hour"}}},
		{Name: "passkeys ls", Short: "list the passkeys that let browsers into the console",
			Examples: []command.Example{{Line: "palyra passkeys ls", Does: "of whom they are, and when they were last used"}}},
		{Name: "passkeys revoke", Operands: "ID", Min: 1, Max: 1, Short: "end a passkey for good",
			Long: `
Its member's browsers leave the console, too: any of them may have come in by it.
palyra console open lets them in again.`,
			Examples: []command.Example{{Line: "palyra passkeys revoke psk_...", Does: "at once, and not to be undone"}}},
		{Name: "members ls", Short: "list who has which role", Examples: []command.Example{{Line: "palyra members ls", Does: "owners, admins, operators"}}},
		{Name: "members set", Operands: "PRINCIPAL ROLE", Min: 2, Max: 2, Short: "give a principal a role", Flags: []command.Flag{flagVersion},
			Examples: []command.Example{{Line: "palyra members set uid:1000 operator", Does: "members can't give more than they have"}}},
		{Name: "members rm", Operands: "PRINCIPAL", Min: 1, Max: 1, Short: "take a principal's role", Flags: []command.Flag{flagVersion},
			Examples: []command.Example{{Line: "palyra members rm uid:1000", Does: "the last owner stays"}}},
	}
}

func configs() []command.Command {
	return []command.Command{
		{Name: "config show", Short: "the settings in force and where each comes from",
			Examples: []command.Example{{Line: "palyra config show", Does: "default, file or environment"}}},
		{Name: "config validate", Program: Admin, Operands: "FILE", Min: 1, Max: 1, Short: "check a configuration file without a daemon",
			Exits:    []command.Exit{{Code: "78", Meaning: "the file is wrong; the message names key and line"}},
			Examples: []command.Example{{Line: "palyra config validate /etc/palyra/palyrad.toml", Does: "before a reload"}}},
		{Name: "config explain", Program: Admin, Operands: "KEY", Min: 1, Max: 1, Short: "what a key means, its default, and what turning it costs",
			Examples: []command.Example{{Line: "palyra config explain pool.cells", Does: "from the struct that palyrad reads"}}},
		{Name: "config schema", Program: Admin, Short: "print the JSON Schema of the configuration",
			Examples: []command.Example{{Line: "palyra config schema", Does: "for an editor"}}},
	}
}

func completions() []command.Command {
	return []command.Command{
		{Name: "complete", Operands: "KIND", Min: 1, Max: 1, Short: "list ids of a kind, one a line, for completion scripts",
			Long: `
KIND is approval, device, grant, key, member, pairing, run, session, token or
tool. It asks palyrad, for a second at most; a key is one of the configuration.`,
			Examples: []command.Example{{Line: "palyra complete run", Does: "what palyra runs show can be given; the scripts of palyra completion ask so"}}},
	}
}

func backups() []command.Command {
	return []command.Command{
		{Name: "backup keygen", Program: Admin, Operands: "FILE", Min: 1, Max: 1, Short: "make a key pair for backups and print the public key",
			Long: `
Writes the private key into FILE, which must not exist, as age-keygen would; it
is the age identity that backup verify and restore want. Keep it away from
the host: it opens every backup made for it, and without it none can be read.`,
			Examples: []command.Example{{Line: "palyra backup keygen key.txt", Does: "prints age1..., for backup create --recipient"}}},
		{Name: "backup create", Operands: "FILE", Min: 1, Max: 1, Short: "write an encrypted copy of palyrad's working state and journal",
			Flags:    []command.Flag{{Name: "recipient", Arg: "AGE", Help: "age public key, age1...; may be given more than once,\nat least once", Repeat: true}},
			Examples: []command.Example{{Line: "palyra backup create --recipient age1... state.age", Does: "without private keys"}}},
		{Name: "backup verify", Program: Admin, Operands: "FILE", Min: 1, Max: 1, Short: "read a backup whole and check every digest",
			Flags:    []command.Flag{{Name: "identity", Arg: "FILE", Help: "file with the age identity (required)"}},
			Exits:    []command.Exit{{Code: "8", Meaning: "it does not check"}},
			Examples: []command.Example{{Line: "palyra backup verify --identity key.txt state.age", Does: "writes nothing"}}},
		{Name: "backup restore", Program: Admin, Operands: "FILE DIR", Min: 2, Max: 2, Short: "unpack a backup into an empty directory",
			Flags:    []command.Flag{{Name: "identity", Arg: "FILE", Help: "file with the age identity (required)"}},
			Exits:    []command.Exit{{Code: "8", Meaning: "it does not check"}, {Code: "78", Meaning: "DIR is a file, or has files"}},
			Examples: []command.Example{{Line: "palyra backup restore --identity key.txt state.age /var/lib/palyra", Does: "refuses a directory that is not empty"}}},
	}
}

// parseTTL reads a duration up to 400 days; "30d" is 30 times 24 hours.
func parseTTL(s string) (any, error) {
	var d time.Duration
	var err error
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		if n < 1 || n > 400 { // before it is multiplied, which may overflow
			n, err = 0, strconv.ErrRange
		}
		d = time.Duration(n) * 24 * time.Hour
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil || d < time.Second || d > 400*24*time.Hour {
		return nil, fmt.Errorf("duration %q: want 1s to 400d, such as 12h or 30d", s)
	}
	return d, nil
}

func parseScope(s string) (any, error) {
	if s != "once" && s != "session" {
		return nil, fmt.Errorf("scope %q: want once or session; --for is for a time", s)
	}
	return s, nil
}

func parseFor(s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || d > 24*time.Hour {
		return nil, fmt.Errorf("time %q: want 1s to 24h, such as 10m", s)
	}
	return d, nil
}

// Pattern is what one --pattern says.
type Pattern struct {
	Within  []int
	Content bool
}

func parsePattern(s string) (any, error) {
	switch list, ok := strings.CutPrefix(s, "within="); {
	case s == "same":
		return Pattern{}, nil
	case s == "content":
		return Pattern{Content: true}, nil
	case ok:
		var p Pattern
		for n := range strings.SplitSeq(list, ",") {
			i, err := strconv.Atoi(n)
			if err != nil || i < 1 || i > 10000 {
				return nil, fmt.Errorf("pattern %q: want positions of arguments, from 1", s)
			}
			p.Within = append(p.Within, i)
		}
		return p, nil
	}
	return nil, fmt.Errorf("pattern %q: want same, content or within=2,3", s)
}

// parseDigest reads a digest, all of it.
func parseDigest(s string) (any, error) {
	s = strings.ToLower(strings.TrimPrefix(s, "sha256:"))
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("digest %q: want 64 hexadecimal digits", s)
	}
	return s, nil
}
