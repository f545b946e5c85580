package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/call"
	"palyra/call/egress"
	"palyra/internal/canon"
)

// Context describes a call to policies; [attributes] says how policies see its fields. Zero
// means none or unknown; no attribute is ever absent. There is no field for approval: Decide
// asks both ways itself, so no caller can claim one.
type Context struct {
	CapsuleDigest canon.Digest `json:"capsule_digest,omitzero"`
	Executable    Executable   `json:"executable,omitzero"`
	Argv0         string       `json:"argv0,omitempty"` // as the call spells it, links and all
	Args          []string     `json:"args,omitempty"`  // without argv[0]
	// LineArgs are the arguments in a script's #! lines, which come first in policies' args.
	LineArgs          []string `json:"line_args,omitempty"`
	Cwd               string   `json:"cwd,omitempty"`
	EgressHosts       []string `json:"egress_hosts,omitempty"`
	Capabilities      []string `json:"capabilities,omitempty"` // of the Cap constants
	Tier              string   `json:"tier,omitempty"`         // the floor: "a", "b", "c"
	Limits            Limits   `json:"limits,omitzero"`
	WorkspaceSource   string   `json:"workspace_source,omitempty"` // host directory; "" is an empty private one
	WorkspaceReadOnly bool     `json:"workspace_read_only,omitempty"`
	WorkspaceStaged   bool     `json:"workspace_staged,omitempty"`
	// Mounts are host directories that the program sees at their own paths, read-only.
	Mounts []string `json:"mounts,omitempty"`
	// Caches are names of folders that the program shares with other calls of its principal
	// and workspace.
	Caches []string `json:"caches,omitempty"`
	// Secrets are references of secrets that the program can read, each once. Decide asks about
	// each by itself, too.
	Secrets []string `json:"secrets,omitempty"`
	// EgressInspect are rules about requests to hosts, and EgressSecrets uses of secrets in them, as
	// package call/egress spells both. Decide asks about each use by itself, too.
	EgressInspect []string `json:"egress_inspect,omitempty"`
	EgressSecrets []string `json:"egress_secrets,omitempty"`
	// DeclaredWorkspace is the operator's name for the workspace, if Mounts, Caches and an
	// environment set, whose digest is DeclaredEnv, are those that the operator declared for it.
	DeclaredWorkspace string       `json:"declared_workspace,omitempty"`
	DeclaredEnv       canon.Digest `json:"declared_env,omitzero"`

	// MCP is the question of a call that asks a running server; zero: another call.
	MCP call.MCP `json:"mcp,omitzero"`

	TTY         bool   `json:"tty,omitempty"`         // the program has a terminal of its own
	Stdin       string `json:"stdin,omitempty"`       // "none", "sealed", "stream"; "" is "none"
	Network     string `json:"network,omitempty"`     // "egress", "fresh", "loopback", "session", "void"; "" is "fresh"
	Certificate string `json:"certificate,omitempty"` // "none", "proven", "refuted"; "" is "none"
	SessionID   string `json:"session_id,omitempty"`
	RunID       string `json:"run_id,omitempty"`
	DeviceID    string `json:"device_id,omitempty"`
	ChannelID   string `json:"channel_id,omitempty"`
	Sensitive   bool   `json:"sensitive,omitempty"` // as the tool's registration declares
	// Background says that the program goes on while its caller makes other calls, until its end,
	// its limits or that of its session.
	Background bool `json:"background,omitempty"`
	// Env is "NAME=VALUE" of the variables that differ from those of every call. A record has
	// no values, and EnvNames instead. EnvCode are the names that lead to code that isn't the
	// system's.
	Env      []string `json:"env,omitempty"`
	EnvNames []string `json:"env_names,omitempty"`
	EnvCode  []string `json:"env_code,omitempty"`
	// Unpinned are kinds of named files that aren't held, of vocabUnpinned.
	Unpinned []string `json:"unpinned,omitempty"`
	// Inputs are the origins of what the call's session has read, of package call.
	Inputs []string `json:"inputs,omitempty"`
	// Signals are signs in what a call that can reach hosts takes along, of vocabSignal.
	Signals []string `json:"signals,omitempty"`
	// Features are those that are on, for PermissionUse, ApprovalResolve and ApprovalSelf.
	Features []string `json:"features,omitempty"`
	// Answer is for ApprovalResolve and ApprovalSelf; the rest describes the call.
	Answer Answer `json:"answer,omitzero"`
}

// MaxApprovers bounds how many people a policy can ask for.
const MaxApprovers = 8

// Answer describes a yes to policies, beside the call that it's for.
type Answer struct {
	Tool      string `json:"tool,omitempty"`
	Requester string `json:"requester,omitempty"` // principal of the run: "uid:1000"
	Approver  string `json:"approver,omitempty"`  // principal that says yes
	Scope     string `json:"scope,omitempty"`     // "once", "session", "timed"; "" is "once"
	Sensitive bool   `json:"sensitive,omitempty"` // the call's tool is declared sensitive
	Pattern   bool   `json:"pattern,omitempty"`   // for every call that fits a pattern, not for this capsule alone
	Approvers int64  `json:"approvers,omitempty"` // people who have said yes, this one included
	Passkey   bool   `json:"passkey,omitempty"`   // a passkey of the approver's signed the yes
}

// Executable is the file that will run. Policy derives its names from Path and Interpreter, and
// never takes them from the caller.
type Executable struct {
	Path        string       `json:"path,omitempty"` // resolved, absolute
	Digest      canon.Digest `json:"digest,omitzero"`
	System      bool         `json:"system,omitempty"`      // only root can write the file and its directories
	Interpreter string       `json:"interpreter,omitempty"` // of a #! script: resolved path of the binary that reads it
}

// Limits are the bounds that the call asks for.
type Limits struct {
	Wall     time.Duration `json:"wall,omitempty"`      // ns
	CPU      time.Duration `json:"cpu,omitempty"`       // ns
	Memory   int64         `json:"memory,omitempty"`    // bytes
	PIDs     int64         `json:"pids,omitempty"`      //
	Output   int64         `json:"output,omitempty"`    // bytes
	FileSize int64         `json:"file_size,omitempty"` // bytes
}

// Signs in what a call takes along.
const (
	SignalHidden = "hidden" // text that people don't see
	SignalSecret = "secret"
)

// The closed vocabularies. A policy that compares with another value could never match and is
// refused (validate.go); a request with another value is denied.
var (
	vocabTier         = []string{"a", "b", "c"}
	vocabStdin        = []string{"none", "sealed", "stream"}
	vocabNetwork      = []string{NetworkEgress, NetworkFresh, NetworkHost, NetworkLoopback, NetworkPreflight, NetworkSession, NetworkVoid}
	vocabCertificate  = []string{CertificateNone, CertificateProven, CertificateRefuted}
	vocabScope        = []string{ScopeOnce, ScopeSession, ScopeTimed}
	vocabCapabilities = [...]string{CapFilesystemWrite, CapNetwork, CapProcessExec, CapSecretsRead, CapSecretsUse}
	vocabUnpinned     = []string{"absent", "directory", "library", "program", "special", "staged", "symlink", "too_large", "unreadable"}
	vocabKind         = []string{string(Shell), string(Interpreter), string(Loader), string(Wrapper), string(Other)}
	vocabOrigin       = call.Origins()
	vocabSignal       = []string{SignalHidden, SignalSecret}
	vocabRole         = []string{RoleAdmin, RoleOperator, RoleOwner}
	vocabFeature      = access.FeatureNames()
)

type contexts uint8

const (
	inOrigin   contexts = 1 << iota // every action but those below
	inCall                          // actions that run a program
	inUse                           // permission.use
	inAnswer                        // approval.resolve, approval.self
	everywhere = inOrigin | inCall | inUse | inAnswer
)

// attribute is one attribute of the context, in the only place that says that it exists.
// Deciding, checking, judging, printing and testing range over the rows; a foreign engine gets
// them from [Attributes].
type attribute struct {
	path string   // below context: "tier", "executable.path"
	in   contexts // the contexts that have it

	// from is its place in the JSON of a request's context: "limits.memory". It's "" for an
	// attribute that follows from others or from the decision itself. The others are checked: a
	// text, or a set's elements, must be in the closed list, or UTF-8 if there is none.
	from string

	// doc describes it in the schema and on docs/formats/policy.md; {} stands for the closed
	// list. page replaces doc on the page, or stands there alone. use and answer replace doc in
	// these contexts of the schema. The schema's bytes are part of every set's digest: changing
	// a sentence there changes all digests.
	doc, page, use, answer string

	of     []string // the closed list of its values, or of a set's elements
	absent string   // a text's value if the request has none

	// Exactly one of these is set. It reads the value and decides the type.
	text   func(*given) string
	set    func(*given) []string
	truth  func(*given) bool
	number func(*given) int64
	digest func(*given) canon.Digest // a text to policies
}

// given holds the values that attributes are read from: the context of a request, and those
// that the decision works out. kind and family are the executable's.
type given struct {
	*Context
	kind             Kind
	family           string
	tool             string        // of a call; "" until the decision begins
	principal        string        // who asks, by id; "" until the decision begins
	hosts            *egress.Lists // of the set; nil until the decision begins
	approved, byName bool          // context.approved and context.interpreter_permitted
	use              use           // of vault.use; zero for other questions
}

// use is one use of a secret as policies see it.
type use struct {
	host         string
	place        string
	methods      []string
	path         string
	keep, revoke bool
}

// attributes are the rows, in the order of the schema. A row's index is its bit in an attr;
// nothing else depends on it.
var attributes = [...]attribute{
	{path: "session", in: everywhere, from: "session_id", page: "the session that the call is part of",
		use: `"", and run too: the permission is asked about before them`, text: func(g *given) string { return g.SessionID }},
	{path: "run", in: everywhere, from: "run_id", page: "the run that makes the call", text: func(g *given) string { return g.RunID }},
	{path: "device", in: everywhere, from: "device_id", page: "the device that asks, or that answers", answer: "that answers",
		text: func(g *given) string { return g.DeviceID }},
	{path: "channel", in: everywhere, from: "channel_id", page: `the surface that the request came by, or the answer: "terminal", "unix", "unix_token" (a token at that socket), "http" or "console" (a browser that someone at that socket let in)`,
		use: `"terminal", "unix", "unix_token", "http" or "console"`, answer: "that the answer came by", text: func(g *given) string { return g.ChannelID }},
	{path: "sensitive", in: everywhere, from: "sensitive", doc: "whoever registered the tool declares it sensitive", use: "false",
		truth: func(g *given) bool { return g.Sensitive }},
	{path: "approved", in: everywhere, doc: "a person said yes to exactly this capsule", use: "nobody is asked about a permission",
		truth: func(g *given) bool { return g.approved }},

	{path: "capsule", in: inCall, from: "capsule_digest", doc: `"sha256:…", the identity of the call`,
		digest: func(g *given) canon.Digest { return g.CapsuleDigest }},
	{path: "executable.path", in: inCall | inAnswer, from: "executable.path", doc: "resolved: no symlinks left",
		text: func(g *given) string { return g.Executable.Path }},
	{path: "executable.dir", in: inCall | inAnswer, doc: "of path", text: func(g *given) string { return dirName(g.Executable.Path) }},
	{path: "executable.name", in: inCall | inAnswer, doc: "last element of path", text: func(g *given) string { return baseName(g.Executable.Path) }},
	{path: "executable.digest", in: inCall | inAnswer, from: "executable.digest", doc: `"sha256:…" of the bytes that will run`,
		digest: func(g *given) canon.Digest { return g.Executable.Digest }},
	{path: "executable.system", in: inCall | inAnswer, from: "executable.system", doc: "root's file in root's directories, writable by nobody else",
		truth: func(g *given) bool { return g.Executable.System }},
	{path: "executable.interpreter", in: inCall | inAnswer, from: "executable.interpreter",
		doc: `resolved path of the #! interpreter, "" for a binary`, text: func(g *given) string { return g.Executable.Interpreter }},
	{path: "executable.kind", in: inCall | inAnswer, doc: "{}", of: vocabKind, absent: string(Other), text: func(g *given) string { return string(g.kind) }},
	{path: "executable.family", in: inCall | inAnswer, doc: `"python" for /usr/bin/python3.11; for a script, its interpreter's`,
		text: func(g *given) string { return g.family }},
	{path: "interpreter_permitted", in: inCall, doc: `some policy permits "interpreter.run" for this family`, truth: func(g *given) bool { return g.byName }},
	{path: "argv0", in: inCall, from: "argv0", doc: `the name that the call gives the program, which some act on: "pkill" of /usr/bin/pgrep`,
		text: func(g *given) string { return g.Argv0 }},
	{path: "args", in: inCall, from: "args", doc: "without argv[0]; order is lost", set: allArgs},
	{path: "arg_count", in: inCall, page: "how many arguments the call has, without argv[0]", number: func(g *given) int64 { return int64(len(g.Args)) }},
	{path: "first_arg", in: inCall, page: `the argument behind argv[0], "" if there is none`, text: func(g *given) string { return first(g.Args) }},
	{path: "cwd", in: inCall, from: "cwd", page: "the working directory, as the program sees it", text: func(g *given) string { return g.Cwd }},
	{path: "egress_hosts", in: inCall | inAnswer, from: "egress_hosts", doc: `hosts and ports that the call may reach, in canonical form: "example.org:443", "*.example.org:443" (any name below it), "192.0.2.7:443", "10.1.0.0/16:5432"; none: it reaches no host. Their bounds stay away, which only narrow a call`, set: (*given).egressHosts},
	{path: "egress_unlisted", in: inCall, doc: "of these, those that no list of hosts of the policy directory has (*.hosts)", set: (*given).unlisted},
	{path: "capabilities", in: inCall | inAnswer, from: "capabilities", doc: `of "process_exec", "network", "secrets_read", "secrets_use", "filesystem_write"`,
		of: vocabCapabilities[:], set: func(g *given) []string { return g.Capabilities }},
	{path: "tier", in: inCall | inAnswer, from: "tier", doc: "the floor: {}", of: vocabTier, text: func(g *given) string { return g.Tier }},
	{path: "limits.wall_ms", in: inCall, from: "limits.wall", page: "time on the clock", number: func(g *given) int64 { return g.Limits.Wall.Milliseconds() }},
	{path: "limits.cpu_ms", in: inCall, from: "limits.cpu", page: "processor time", number: func(g *given) int64 { return g.Limits.CPU.Milliseconds() }},
	{path: "limits.memory", in: inCall, from: "limits.memory", doc: "bytes", page: "memory, in bytes", number: func(g *given) int64 { return g.Limits.Memory }},
	{path: "limits.pids", in: inCall, from: "limits.pids", page: "processes at a time", number: func(g *given) int64 { return g.Limits.PIDs }},
	{path: "limits.output", in: inCall, from: "limits.output", doc: "bytes", page: "what it may write to its output, in bytes", number: func(g *given) int64 { return g.Limits.Output }},
	{path: "limits.file_size", in: inCall, from: "limits.file_size", doc: "bytes", page: "the largest file that it may write, in bytes", number: func(g *given) int64 { return g.Limits.FileSize }},
	{path: "workspace.source", in: inCall, from: "workspace_source", doc: `host directory, "" for an empty private one`,
		text: func(g *given) string { return g.WorkspaceSource }},
	{path: "workspace.read_only", in: inCall, from: "workspace_read_only", page: "the program can't write it", truth: func(g *given) bool { return g.WorkspaceReadOnly }},
	{path: "workspace.staged", in: inCall, from: "workspace_staged", doc: "what the program writes there goes to a layer: nothing of the host changes",
		truth: func(g *given) bool { return g.WorkspaceStaged }},
	{path: "mounts", in: inCall, from: "mounts", doc: "further host directories, which the program sees read-only and at their own paths",
		set: func(g *given) []string { return g.Mounts }},
	{path: "caches", in: inCall, from: "caches", doc: "names of folders that the program fills and later calls of the same principal and workspace read",
		set: func(g *given) []string { return g.Caches }},
	{path: "secrets", in: inCall, from: "secrets", doc: `references of secrets that the program can read in files, "vault://global/token"; each takes a permit of "vault.expose", too`,
		set: func(g *given) []string { return g.Secrets }},
	{path: "secrets_of_others", in: inCall, doc: `of these and of those in egress_secrets, the references in the scope of another principal than the one who asks: "vault://principal:uid:1001/token" of uid:1000`,
		set: (*given).secretsOfOthers},
	{path: "egress_inspect", in: inCall, from: "egress_inspect", doc: `rules about the requests to hosts, whose connections palyra-egress reads: "GET,HEAD packages.example:443/simple/", "packages.example:443" (all requests)`,
		set: func(g *given) []string { return g.EgressInspect }},
	{path: "egress_secrets", in: inCall, from: "egress_secrets", doc: `secrets that palyra-egress puts into requests, and that the program can't read: "TOKEN=vault://global/npm header:authorization packages.example:443"; each takes a permit of "vault.use", too`,
		set: func(g *given) []string { return g.EgressSecrets }},
	{path: "use.host", in: inCall, doc: `asked about "vault.use", the host and port that the secret goes to: "packages.example:443"; else ""`,
		text: func(g *given) string { return g.use.host }},
	{path: "use.methods", in: inCall, doc: `so, the methods of the requests that it goes into: "GET"; none: all`, set: func(g *given) []string { return g.use.methods }},
	{path: "use.path", in: inCall, doc: `so, their path, which stands for those below it, too: "/simple/"; "" for all`, text: func(g *given) string { return g.use.path }},
	{path: "use.place", in: inCall, doc: `so, where it stands in these: "header:authorization", "query:key"`, text: func(g *given) string { return g.use.place }},
	{path: "use.keep", in: inCall, doc: `so, files that the call leaves may have its placeholder`, truth: func(g *given) bool { return g.use.keep }},
	{path: "use.revoke", in: inCall, doc: `so, its version expires if the placeholder leaks`, truth: func(g *given) bool { return g.use.revoke }},
	{path: "declared.workspace", in: inCall, from: "declared_workspace",
		doc:  `the operator's name for the workspace, if mounts and caches are those that the operator declared for it; "": the call's own, or none`,
		text: func(g *given) string { return g.DeclaredWorkspace }},
	{path: "declared.env", in: inCall, from: "declared_env", doc: `"sha256:…" of the variables that the operator declared for it, "" for none`,
		digest: func(g *given) canon.Digest { return g.DeclaredEnv }},
	{path: "mcp.server", in: inCall, from: "mcp.server", doc: `of a tool of an MCP server that runs already, the operator's name for the server; "" for any other call`,
		text: func(g *given) string { return g.MCP.Server }},
	{path: "mcp.tool", in: inCall, from: "mcp.tool", doc: `the server's name for the tool, or the method that it's asked, such as "resources/read"`, text: func(g *given) string { return g.MCP.Tool }},
	{path: "mcp.arguments", in: inCall, from: "mcp.arguments", doc: `"NAME=VALUE" of each argument: a string as it is, unless it is JSON itself ("5", "true") or begins with sha256:; such a one and other values as JSON, and one of more than 256 bytes as "sha256:…"`,
		set: func(g *given) []string { return g.MCP.Arguments }},
	{path: "stdin", in: inCall, from: "stdin", doc: "{}", of: vocabStdin, absent: "none", text: func(g *given) string { return g.Stdin }},
	{path: "tty", in: inCall, from: "tty", doc: "the program has a terminal of its own, on which stdin is typed; no terminal of the host",
		truth: func(g *given) bool { return g.TTY }},
	{path: "network", in: inCall, from: "network", doc: `{}; "egress" leads to egress_hosts, "host" and "preflight" are the host's network and lead wherever that does, and take a permit whose condition has the word, as in context.network == "host"; the others lead nowhere; in "egress" and in "loopback" the program may listen and connect to itself, and in "session" to running calls of its session, too`, of: vocabNetwork, absent: NetworkFresh,
		text: func(g *given) string { return g.Network }},
	{path: "background", in: inCall, from: "background", doc: "no caller waits for the program, which may run until its session ends",
		truth: func(g *given) bool { return g.Background }},
	{path: "env", in: inCall, from: "env", doc: `"NAME=VALUE" of each variable that does not have the value that every call's has`,
		set: func(g *given) []string { return g.Env }},
	{path: "env_names", in: inCall, from: "env_names", doc: "their names", set: (*given).envNames},
	{path: "env_code", in: inCall, from: "env_code", doc: "of these, those that lead the program to code that the call, or others than root, can write, and that is in no mount",
		set: func(g *given) []string { return g.EnvCode }},
	{path: "unpinned", in: inCall, from: "unpinned", doc: "what is named and can change until it is used: {}", of: vocabUnpinned,
		set: func(g *given) []string { return g.Unpinned }},
	{path: "certificate", in: inCall, from: "certificate", doc: "what the sandbox certificate of this boot says of the tier: {}", of: vocabCertificate,
		absent: CertificateNone, text: func(g *given) string { return g.Certificate }},

	{path: "inputs.untrusted", in: inCall | inAnswer, doc: "the session has read something from outside: web or tool is among the origins", answer: "the call's session has read something from outside",
		truth: func(g *given) bool { return call.Untrusted(g.Inputs) }},
	{path: "inputs.origins", in: inCall | inAnswer, from: "inputs", doc: `where what the session has read by now came from, as palyrad knows of the calls that it made: {}; none: nothing yet, or the call has no session`, of: vocabOrigin,
		set: func(g *given) []string { return g.Inputs }},

	{path: "signals", in: inCall, from: "signals", doc: "what arguments, variables and sealed input of a call that can reach hosts have by their looks (docs/formats/signals.md): {}, which stands there and isn't named", of: vocabSignal,
		set: func(g *given) []string { return g.Signals }},

	{path: "tool", in: inCall | inAnswer, from: "answer.tool", page: "the call's tool", text: func(g *given) string { return cmp.Or(g.tool, g.Answer.Tool) }},
	{path: "requester", in: inAnswer, from: "answer.requester", doc: `who wants the call: "uid:1000"`, text: func(g *given) string { return g.Answer.Requester }},
	{path: "approver", in: inAnswer, from: "answer.approver", doc: "who says yes: the principal", text: func(g *given) string { return g.Answer.Approver }},
	{path: "scope", in: inAnswer, from: "answer.scope", doc: "{}", of: vocabScope, absent: ScopeOnce, text: func(g *given) string { return g.Answer.Scope }},
	{path: "sensitive_call", in: inAnswer, from: "answer.sensitive", doc: `the call's tool is declared so; "sensitive" is about saying yes itself, and false`,
		truth: func(g *given) bool { return g.Answer.Sensitive }},
	{path: "pattern", in: inAnswer, from: "answer.pattern", doc: "to every call that fits a pattern, not to this capsule alone",
		truth: func(g *given) bool { return g.Answer.Pattern }},
	{path: "approvers", in: inAnswer, from: "answer.approvers", doc: "how many people said yes by now, this one included",
		number: func(g *given) int64 { return g.Answer.Approvers }},
	{path: "passkey", in: inAnswer, from: "answer.passkey", doc: "a passkey of the approver signed exactly this answer, in the console, and verified its person",
		truth: func(g *given) bool { return g.Answer.Passkey }},
	{path: "features", in: inUse | inAnswer, from: "features", doc: "what this installation has not turned off", page: "what this installation has on: {}",
		answer: "what this installation has not turned off", of: vocabFeature, set: func(g *given) []string { return g.Features }},
}

// allArgs returns the arguments that the program gets; a script's start with those in its #!
// lines.
func allArgs(g *given) []string {
	if len(g.LineArgs) > 0 {
		return slices.Concat(g.LineArgs, g.Args)
	}
	return g.Args
}

// principalScope begins the reference of a secret in a principal's scope: vault://principal:ID/KEY
// (crypt/vault).
const principalScope = "vault://principal:"

func (g *given) secretsOfOthers() (others []string) {
	refs := g.Secrets
	if len(g.EgressSecrets) > 0 {
		refs = slices.Clone(refs)
		for _, text := range g.EgressSecrets {
			if u, err := egress.ParseUse(text); err == nil {
				refs = append(refs, u.Ref)
			}
		}
	}
	for _, ref := range refs {
		if strings.HasPrefix(ref, principalScope) && !strings.HasPrefix(ref, principalScope+g.principal+"/") {
			others = append(others, ref)
		}
	}
	return others
}

func (c *Context) envNames() []string {
	names := slices.Clone(c.EnvNames)
	for _, e := range c.Env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	return names
}

func first(ss []string) string {
	if len(ss) == 0 {
		return ""
	}
	return ss[0]
}
