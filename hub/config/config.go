// Package config reads palyrad's configuration: one TOML file, overridden by
// PALYRA_* variables, checked whole before anything starts.
//
// The struct [Config] is the only place where a key exists. Its tags give the key's
// meaning, unit, default and bounds, whether SIGHUP applies it, and what weakening it
// costs. [Docs], [Schema], [Explain] and the checks are made from the tags, so none of them
// can disagree with the code.
//
//	c, err := config.Load("/etc/palyra/palyrad.toml", os.Environ())
//
// # Contract
//
// A key, table or PALYRA_ variable that doesn't exist is an error, with the line and the
// nearest name. So is a key in another case, a value of another type or out of bounds, and
// a file that others may write to. Load reports every problem at once, as [Problem] values
// in an error of kind bad_state. A profile is a floor and no preset: it changes no value,
// and refuses one that is weaker than it allows ([Floors]).
//
// Grammar: TOML 1.0. Durations are Go's ("90s", "5m"), sizes are bytes as a
// number or "64KiB", "16MiB", "1GiB", modes are octal text ("0660"). A variable
// PALYRA_SECTION_KEY holds the value of section.key as text; workspaces, models and
// what they allow stand in the file only.
//
// # What it does not protect against
//
// A user who may write the file decides. Secrets don't belong in it and no key takes one;
// Load refuses text that looks like a private key or a token, which catches an accident and
// not an intention. It compares paths as text: a symbolic link can lead a workspace
// elsewhere.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"palyra/internal/fault"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 256 << 10

// Config is palyrad's configuration. Make one with Load or Parse; after that it is
// immutable. The zero value is invalid.
type Config struct {
	Profile    string               `key:"profile" default:"local" oneof:"local single-vm worker-enabled" aka:"local_desktop=local remote_vps=single-vm" doc:"The floor for every other key: weaker values are refused." cost:"A lower profile allows what a higher one refuses."`
	Listen     Listen               `key:"listen" doc:"Under systemd's socket activation its descriptors replace these addresses; the checks stay."`
	Peer       Peer                 `key:"peer"`
	Pairing    Pairing              `key:"pairing"`
	State      State                `key:"state"`
	Policy     Policy               `key:"policy"`
	Cell       Cell                 `key:"cell" doc:"Confinement. Only palyra-cell starts other processes."`
	Egress     Egress               `key:"egress"`
	Tools      Tools                `key:"tools"`
	Vault      Vault                `key:"vault"`
	Memory     Memory               `key:"memory" doc:"Items that principals and their agents remember (docs/MEMORY.md). They are sealed under a key of the vault; without vault.identity there are none."`
	Workspaces map[string]Workspace `key:"workspaces" doc:"The only host directories that tools reach, by name (1 to 32 of a-z, 0-9, -)."`
	Models     map[string]Model     `key:"models" doc:"The language models that agents ask, by name (as workspaces). A turn of one is a call of model.turn, which reaches the url's host alone (docs/AGENT.md)."`
	Agent      Agent                `key:"agent"`
	Limits     Limits               `key:"limits" doc:"Bounds on clients; a principal's hold for all its credentials together. More is refused at once."`
	Budget     Budget               `key:"budget" doc:"A run's default and most; a single call is a run of one step."`
	Pool       Pool                 `key:"pool"`
	Approvals  Approvals            `key:"approvals"`
	Notify     Notify               `key:"notify" doc:"How people who are away learn that a question waits (docs/CONSOLE.md)."`
	Access     Access               `key:"access"`
	Features   Features             `key:"features" doc:"False turns one off for all callers, owners too: feature_off. Changes are journaled."`
	Journal    Journal              `key:"journal"`
	Keys       SigningKeys          `key:"keys"`
	Retention  Retention            `key:"retention" doc:"Unfinished runs and the journal are never removed; the journal records removals."`
	Daemon     Daemon               `key:"daemon"`

	path   string            // "" if there was no file
	source map[string]string // "file", "env"; what is missing is a default. Immutable after Parse
	lines  map[string]int    // of keys in the file. Immutable after Parse
}

// Listen has the places where palyrad listens.
type Listen struct {
	Socket      string `key:"socket" unit:"path" doc:"The unix socket. Empty: palyrad.sock in RUNTIME_DIRECTORY, else XDG_RUNTIME_DIR/palyra, else the state directory."`
	SocketMode  Mode   `key:"socket_mode" unit:"octal mode" default:"0660" doc:"Mode of the socket; connecting needs the write bit." cost:"With a bit for others every user of the host can ask, bounded by policy and quotas alone."`
	SocketGroup string `key:"socket_group" unit:"group name or number" doc:"Group of the socket. Empty: the process's." cost:"Each member may make calls of its own."`
	HTTP        string `key:"http" unit:"address:port" default:"127.0.0.1:7142" doc:"The HTTP listener, or off. Numeric, and loopback unless TLS is on." cost:"Beyond loopback every host that reaches the port can try tokens; it takes tls_cert, tls_key, http_auth = token and limits.requests_per_second."`
	HTTPAuth    string `key:"http_auth" default:"token" oneof:"token off" doc:"HTTP's credential; off serves /livez, /readyz and /metrics alone." cost:"With off the host's health and load are public."`
	TLSCert     string `key:"tls_cert" unit:"path" reload:"yes" doc:"PEM certificate chain for HTTP. Empty, with tls_key: no TLS."`
	TLSKey      string `key:"tls_key" unit:"path" reload:"yes" doc:"PEM private key for HTTP, readable by palyrad alone. TLS is 1.3."`
}

// Peer has the place where paired devices call.
type Peer struct {
	Listen string `key:"listen" unit:"address:port" default:"off" doc:"The HTTP API for paired devices, such as 0.0.0.0:7444, or off. Numeric. A device's certificate is the only credential, on TLS 1.3 alone." cost:"Every host that reaches the port can begin handshakes, within the bound on guests."`
}

// Pairing has the place where devices pair.
type Pairing struct {
	Listen string `key:"listen" unit:"address:port" default:"off" doc:"Where devices that have a code get a certificate (palyra devices pair), or off. Numeric; its TLS key is made at each start and named by the code. While no pairing waits it closes every connection." cost:"While a pairing waits, every host that reaches the port can try to be the device: without the code, in vain."`
}

// State has the place of everything that must survive a restart.
type State struct {
	Dir           string `key:"dir" unit:"path" doc:"Keys, journal, store and artifacts, mode 0700. Empty: STATE_DIRECTORY, else XDG_STATE_HOME/palyra, else HOME/.local/state/palyra."`
	ArtifactQuota Size   `key:"artifact_quota" unit:"bytes" default:"1GiB" min:"1MiB" max:"1024GiB" doc:"Space for artifacts; a result beyond it is refused."`
	LayersEach    Size   `key:"layer_quota_per_principal" unit:"bytes" default:"4GiB" min:"1MiB" max:"1024GiB" doc:"Space that one principal's layers of staged workspaces take when a call in one begins; the call adds at most its own limit. More: quota." cost:"One principal can take as much of the disk."`
	CachesEach    Size   `key:"cache_quota_per_principal" unit:"bytes" default:"16GiB" min:"1MiB" max:"1024GiB" doc:"Space that one principal's caches take when a call that uses some begins; each may grow to 4 GiB. More: quota." cost:"One principal can take as much of the disk."`
	ArtifactEach  Size   `key:"artifact_quota_per_principal" unit:"bytes" default:"512MiB" min:"1MiB" max:"1024GiB" doc:"One principal's part of artifact_quota; owners may use all. A result beyond it is lost: quota." cost:"One principal can take all the space."`
}

// Egress has the way to hosts.
type Egress struct {
	Enabled bool `key:"enabled" default:"true" doc:"Let calls reach the hosts that they name and policy permits, through palyra-egress (docs/EGRESS.md). palyrad has it started beside itself, unless the service manager passes a socket named egress, at which it connects." cost:"False refuses such calls, whatever policy says: egress_lost."`
}

// Policy names the policies that decide.
type Policy struct {
	Dir string `key:"dir" unit:"path" doc:"Directory of .cedar files; SIGHUP reads it again. Empty: the built-in set."`
}

// Cell names the program that confines.
type Cell struct {
	Path        string `key:"path" unit:"path" doc:"The palyra-cell binary. Empty: beside palyrad, else ../libexec/palyra; never PATH." cost:"A user who can write this file decides what confinement is."`
	Starter     string `key:"starter" unit:"path" doc:"Socket of a palyra-cell that palyra-cell.service started. Empty: palyrad starts its own."`
	Confinement string `key:"confinement" default:"enforce" oneof:"enforce report" doc:"If palyrad can't confine itself, enforce refuses to start; report starts and says so in status." cost:"With report an exploited palyrad may do all that its user may."`
}

// Tools are the built-in tools.
type Tools struct {
	Program string `key:"program" unit:"path" doc:"The palyra-tool binary. Empty: beside palyrad, else ../libexec/palyra. palyra-fetch is found beside it."`
}

// Vault says what opens the vault of the state directory.
type Vault struct {
	Identity string `key:"identity" unit:"path" doc:"File of an identity that opens the vault, 0600, outside state.dir; read at the start. Empty: systemd's credential palyra-vault, else calls with secrets are refused." cost:"Who reads the file and the state directory reads every secret."`
}

// Memory bounds what is remembered.
type Memory struct {
	ItemsEach  int64    `key:"items_per_principal" unit:"items" default:"10000" min:"1" max:"1000000" doc:"Items of one principal. More: 429, quota."`
	BytesEach  Size     `key:"bytes_per_principal" unit:"bytes" default:"16MiB" min:"64KiB" max:"16GiB" doc:"Sealed bytes of one principal's items, 256 or more each. More: 429, quota." cost:"One principal can take as much of the disk."`
	Expire     Duration `key:"expire" unit:"duration" default:"720h" min:"1h" max:"87600h" doc:"Items that agents wrote are forgotten after it, unless the agent named another time. Those of people stay."`
	Index      Size     `key:"index" unit:"bytes" default:"64MiB" min:"1MiB" max:"64GiB" doc:"Memory for the indexes of all principals; the one that was used least is dropped first, and made again when it's needed. One of 10000 items takes about 8MiB, and a byte more for each number of a vector of memory.embeddings."`
	Embeddings string   `key:"embeddings" unit:"name" doc:"Of [models.NAME], one of the kind embeddings: items and queries are compared by its vectors (docs/MEMORY.md). Empty: by hashes of words." cost:"Its provider is sent each item, and each query, prompts too."`
}

// Workspace is a directory that tools can reach.
type Workspace struct {
	Path     string `key:"path" unit:"path" doc:"Absolute; not /, nor the state or policy directory, nor above or below them, nor above cell.path, tools.program, an identity or listen.tls_key." cost:"Calls that policy allows to use it reach every file in it."`
	ReadOnly bool   `key:"read_only" default:"true" doc:"Mount it read-only in every cell." cost:"With false such calls can change and remove every file in it."`
	Staged   bool   `key:"staged" default:"false" doc:"Calls see it writable, read_only or not, and what they write goes to a layer of their session: palyra changes. Needs overlayfs of Linux 6.15."`

	// What process.run has in it, unless a call is bare.
	OwnPath  bool     `key:"own_path" default:"false" doc:"Programs see it at its path on the host, not at /workspace."`
	Network  string   `key:"network" default:"fresh" oneof:"fresh loopback session void" doc:"Network of process.run in it, where the call names none."`
	Timeout  Duration `key:"timeout" default:"1m" min:"1s" max:"24h" doc:"Wall time of process.run in it, where the call names none. budget.wall counts, too."`
	CPU      Duration `key:"cpu" default:"1m" min:"1s" max:"24h" doc:"Likewise the processor time of each process."`
	Memory   Size     `key:"memory" unit:"bytes" default:"1GiB" min:"1MiB" max:"1024GiB" doc:"Likewise the memory of all its processes."`
	PIDs     int64    `key:"pids" unit:"processes" default:"256" min:"1" max:"65536" doc:"Likewise its processes and threads."`
	Mounts   List     `key:"mounts" unit:"list of paths" doc:"At most 16 further directories, which process.run sees read-only and at their own paths: toolchains, module caches. Each is refused where a mount of palyra exec is, and above an identity or listen.tls_key." cost:"Calls that policy allows read every file in them."`
	Caches   List     `key:"caches" unit:"list of names" doc:"At most 8 folders /caches/NAME that process.run fills and later calls of the same principal in the workspace find again; go, npm and pip are found by their programs. home is HOME and tmp is /tmp, and both last for a session." cost:"What one call of a principal leaves there, its next ones read and may run."`
	Programs List     `key:"programs" unit:"list of paths" doc:"Directories, first in PATH and where process.run looks for programs named without a slash. Each lies in a mount, or where every cell shows the host's files, as /usr/local/go/bin does."`
	Env      List     `key:"env" unit:"list of NAME=VALUE" doc:"Variables of process.run, which calls can't replace, but for PATH and those of the dynamic loader, the C library and shells. Their values aren't secret: approvers and policies see them."`
}

// Model is a language model, and where it's asked. models.go checks it.
type Model struct {
	Provider  string `key:"provider" oneof:"openai openai_chat anthropic scripted" doc:"What is spoken: openai is the Responses API, openai_chat Chat Completions, anthropic Messages. scripted asks no one and answers what a script says, for tests and a first look."`
	URL       string `key:"url" unit:"URL" doc:"Where the provider's paths begin: https://api.openai.com/v1. http:// takes network. The scripted provider has none."`
	Model     string `key:"model" doc:"The provider's name of it. Empty: the name of this table."`
	Kind      string `key:"kind" oneof:"turns embeddings" default:"turns" doc:"What it answers with: turns are words, and calls of tools; embeddings are vectors of texts, for /v1/embeddings. anthropic has no embeddings."`
	Key       string `key:"key" unit:"vault reference" doc:"The secret that palyra-egress puts into each request, vault://SCOPE/KEY (palyra vault set): for anthropic as x-api-key, else as Authorization: Bearer. No other process has it. Empty: none."`
	Network   string `key:"network" unit:"NETWORK/BITS:PORT" doc:"For a server with a private address or of this host: the network with the url's port, as a call's --egress names it (docs/EGRESS.md). Empty: the url's host is on the Internet."`
	MaxTokens int64  `key:"max_tokens" unit:"tokens" default:"0" min:"0" max:"10000000" doc:"The longest answer. 0: as long as is asked for, or as the provider has it."`
	Context   int64  `key:"context" unit:"tokens" default:"128000" min:"1000" max:"100000000" doc:"The window: what question and answer have room for."`
	Fallback  string `key:"fallback" unit:"name" doc:"Of [models.NAME]: the one that is asked where this one fails and the run names none. Its provider reads the same. Empty: none."`
	Input     int64  `key:"price_input" unit:"number" default:"0" min:"0" max:"1000000000" doc:"What 1,000,000 tokens of questions cost, in a unit of your choice that's small enough for whole numbers, such as cents. [agent] cost bounds it."`
	Cached    int64  `key:"price_cached" unit:"number" default:"0" min:"0" max:"1000000000" doc:"Likewise those of questions that the provider has in its cache."`
	Output    int64  `key:"price_output" unit:"number" default:"0" min:"0" max:"1000000000" doc:"Likewise those of answers."`
	Script    string `key:"script" unit:"path" doc:"For scripted: a JSON file with its answers, read at the start. Empty: a built-in one."`
}

// Agent says how palyrad's own agent runs.
type Agent struct {
	Model         string `key:"model" unit:"name" doc:"Of [models.NAME]: the one that is asked where a run names none. Empty: the only one, if there is one."`
	Redact        bool   `key:"redact" default:"true" doc:"Tell models a name in place of each secret that is found in prompts and output (docs/formats/signals.md)." cost:"With false a provider is sent the passwords and keys that its model comes across."`
	Tokens        int64  `key:"tokens" unit:"tokens" default:"0" min:"0" max:"1000000000000" doc:"Of a run's questions and answers, as providers count them. With as many, no further turn is made: budget_tokens. 0: no bound."`
	Cost          int64  `key:"cost" unit:"number" default:"0" min:"0" max:"1000000000" doc:"Of a run, in the unit of [models.NAME] price_input. With as much, no further turn is made: budget_cost. 0: no bound."`
	SessionTokens int64  `key:"session_tokens" unit:"tokens" default:"0" min:"0" max:"1000000000000" doc:"Likewise of all turns in one session. With as many, none begins: budget_tokens. 0: no bound."`
	SessionCost   int64  `key:"session_cost" unit:"number" default:"0" min:"0" max:"1000000000" doc:"Likewise of one session: budget_cost. 0: no bound."`
	DayTokens     int64  `key:"day_tokens" unit:"tokens" default:"0" min:"0" max:"1000000000000" doc:"Likewise of all turns of one principal in a day, UTC, by agents, calls and clients of /v1/. 0: no bound."`
	DayCost       int64  `key:"day_cost" unit:"number" default:"0" min:"0" max:"1000000000" doc:"Likewise of one principal in a day. 0: no bound."`
	Instructions  bool   `key:"instructions" default:"true" doc:"Begin a run by reading the instructions of its workspace (PALYRA.md, AGENTS.md, CLAUDE.md or .cursorrules), one or two steps. The model is told them if its user has accepted them."`
}

// Limits bound what clients can ask for.
type Limits struct {
	Concurrency       int64 `key:"concurrency" unit:"calls" default:"8" min:"1" max:"1024" doc:"Runs at work, without those that wait for a person. Owners at the socket have an eighth more, rounded up." cost:"Each may use the memory and processors that its limits allow."`
	ConcurrencyEach   int64 `key:"concurrency_per_principal" unit:"calls" default:"0" min:"0" max:"1024" doc:"One principal's runs at work; more wait. Owners at the socket aren't bound. 0: half of the places, and more while a quarter stays free; at concurrency 1 all take turns." cost:"A run keeps its place until it ends, up to budget.wall, and others wait."`
	Queue             int64 `key:"queue" unit:"calls" default:"64" min:"0" max:"65536" doc:"Calls that wait, served by turns of principals, oldest first. More: unavailable. Owners at the socket have an eighth more."`
	QueueEach         int64 `key:"queue_per_principal" unit:"calls" default:"48" min:"0" max:"65536" doc:"One principal's calls that wait, at most three quarters of the queue. More: 429, too_many."`
	RunsPerSession    int64 `key:"runs_per_session" unit:"runs" default:"8" min:"1" max:"1024" doc:"Parallel runs of one session at work; more wait. Other runs of a session are made one after the other."`
	Background        int64 `key:"background" unit:"programs" default:"16" min:"1" max:"1024" doc:"Programs in the background (process.run with background, MCP servers that run), which take no place of limits.concurrency. Owners at the socket have an eighth more. More: 503, budget." cost:"Each may use the memory and processors that its limits allow, for hours."`
	BackgroundEach    int64 `key:"background_per_principal" unit:"programs" default:"8" min:"1" max:"1024" doc:"One principal's. More: 503, budget." cost:"One principal can take all places."`
	BackgroundSession int64 `key:"background_per_session" unit:"programs" default:"8" min:"1" max:"1024" doc:"One session's. More: 429, too_many."`
	LayersEach        int64 `key:"layers_per_principal" unit:"layers" default:"64" min:"1" max:"65536" doc:"Sessions of one principal with a layer of a staged workspace. More: 429, quota."`
	SecretsEach       int64 `key:"secrets_per_principal" unit:"secrets" default:"256" min:"1" max:"1000" doc:"Secrets of the vault that one principal has made, as long as they aren't removed. Owners at the socket aren't bound, and an eighth of the vault's 1000 places is theirs. More: 429, quota." cost:"One principal can take all places but the owners'."`
	SessionsEach      int64 `key:"sessions_per_principal" unit:"sessions" default:"256" min:"1" max:"65536" doc:"One principal's open sessions. More: 429, too_many."`
	Body              Size  `key:"body" unit:"bytes" default:"1MiB" min:"4KiB" max:"64MiB" doc:"Largest request body; an import of secrets has a fifth of all together, up to 24MiB. All together: 80MiB, or ten times this if larger." cost:"Requests under way can take as much memory."`
	SSEReaders        int64 `key:"sse_readers" unit:"connections" default:"1024" min:"0" max:"65536" doc:"Readers of tapes at a time, and sessions and calls at /mcp; a reader of output, and a request under /v1/, counts as five." cost:"Each holds a descriptor and a few KiB."`
	SSEReadersEach    int64 `key:"sse_readers_per_principal" unit:"connections" default:"512" min:"0" max:"65536" doc:"One principal's readers of tapes, and of output. More: 429, too_many." cost:"One principal can take all places."`
	Sealed            Size  `key:"sealed" unit:"bytes" default:"0" min:"0" max:"1024GiB" doc:"Memory for sealed files of calls, waiting ones too, plus eight times their capsules and the inputs of runs; an eighth is for owners at the socket. More: 503, budget. 0: three eighths of what the unit's MemoryMax leaves, else a quarter of the host's, at most 2GiB." cost:"Files that calls name can take as much memory."`
	SealedEach        Size  `key:"sealed_per_principal" unit:"bytes" default:"0" min:"0" max:"1024GiB" doc:"One principal's part of limits.sealed. 0: half." cost:"One principal can take the share of all."`
	RequestsPerSecond int64 `key:"requests_per_second" unit:"requests/s" default:"100" min:"0" max:"100000" doc:"One client's requests. 0: no bound." cost:"Without it one client can keep palyrad busy and try tokens at wire speed."`
}

// Budget bounds a run.
type Budget struct {
	Calls      int64    `key:"calls" unit:"calls" default:"256" min:"1" max:"1048576" doc:"Calls of a run. More: budget_calls." cost:"One run can keep a place for as many calls."`
	Wall       Duration `key:"wall" unit:"duration" default:"1h" min:"1s" max:"168h" doc:"Time of a run, waiting for people included; then its call is killed." cost:"One run can keep a place for as long."`
	Background Duration `key:"background" unit:"duration" default:"8h" min:"1s" max:"168h" doc:"Instead of wall, for a program in the background: with its wait for people. Its own limit is an hour, or what its call names." cost:"One program can hold memory and a place in the background for as long."`
	Bytes      Size     `key:"bytes" unit:"bytes" default:"256MiB" min:"1KiB" max:"1024GiB" doc:"Output kept of all calls of a run." cost:"One run can fill as much of state.artifact_quota."`
}

// Pool says what is made ahead of calls.
type Pool struct {
	Cells    int64    `key:"cells" unit:"cells" default:"4" min:"0" max:"64" doc:"Cells built before a call is known. 0: each call builds its own." cost:"At most 440 KiB of kernel memory each, used or not; 110 without network and cgroup of its own."`
	Networks int64    `key:"networks" unit:"namespaces" default:"4" min:"0" max:"256" doc:"Empty network namespaces, each for one call." cost:"210 KiB of kernel memory each."`
	MaxAge   Duration `key:"max_age" unit:"duration" default:"5m" min:"1s" max:"24h" doc:"Older cells are dropped; kinds of calls unused for ten times as long get none."`
}

// Approvals are questions to people.
type Approvals struct {
	Timeout   Duration `key:"timeout" unit:"duration" default:"5m" min:"1s" max:"168h" doc:"How long a question waits; no answer is a no." cost:"The host may have changed when the answer comes; sealed files are held until then."`
	AllowSelf bool     `key:"allow_self" default:"false" doc:"Let requesters approve their own calls." cost:"One credential is enough to run a sensitive call."`
}

// Notify is about people who are away.
type Notify struct {
	URL     string `key:"url" unit:"URL" doc:"Gets a POST with an opaque id and the number of questions that wait, and nothing of a call, when a new one does: at most one in 30 s. It's a call of http.fetch by the principal palyrad, which policy decides. Empty: none." cost:"Its host learns when questions come. Who manages members sees the URL in runs and receipts."`
	Secret  string `key:"secret" unit:"reference" doc:"A secret of the vault, such as vault://global/ntfy, that palyra-egress sends along as Authorization: Bearer, over https alone. palyrad and palyra-fetch don't see it in the call."`
	Network string `key:"network" unit:"network:port" doc:"The network of the URL's host where its address is private, such as 10.1.0.0/16:443."`
}

// Access is about credentials.
type Access struct {
	TokensEach  int64    `key:"tokens_per_principal" unit:"tokens" default:"256" min:"1" max:"65536" doc:"One principal's valid API tokens, and tokens that it makes or rotates in a day. More: 429, quota." cost:"Each takes memory and disk, and time at start."`
	TokenMaxAge Duration `key:"token_max_age" unit:"duration" default:"2160h" min:"1m" max:"8760h" doc:"Longest life of a new API token." cost:"A leaked token stays good for as long."`
}

// Features are surfaces that can be turned off; the keys are the names of
// access.Feature.
type Features struct {
	Tokens         bool `key:"tokens" default:"true" doc:"Mint and rotate API tokens. Existing ones stay valid."`
	HTTPApprovals  bool `key:"http_approvals" default:"true" doc:"Answer approvals over HTTP, not at the socket alone." cost:"A leaked token with the scope approval.resolve can say yes."`
	HTTPAdmin      bool `key:"http_admin" default:"true" doc:"Manage members, policies and backups over HTTP, not at the socket alone." cost:"A leaked token with such a scope can manage them."`
	StandingGrants bool `key:"standing_grants" default:"true" doc:"Let a yes stand for further calls, for a session or a time." cost:"One yes lets several calls through."`
	PatternGrants  bool `key:"pattern_grants" default:"true" doc:"Let such a yes cover the calls that fit a pattern." cost:"One yes lets unseen calls through."`
	MCP            bool `key:"mcp" default:"true" doc:"Serve the tools to agents at /mcp (docs/formats/mcp.md), beside palyra mcp serve."`
	Console        bool `key:"console" default:"true" doc:"Serve the console to browsers at listen.http; palyra console open lets one in." cost:"A browser holds a token of its user's for 12 hours."`
	OpenAI         bool `key:"openai" default:"true" doc:"Serve models and the agent at /v1/, as OpenAI's and Anthropic's APIs have them (docs/OPENAI.md)."`
}

// SigningKeys says how the signing keys of the state directory lie on the disk.
type SigningKeys struct {
	Identity string `key:"identity" unit:"path" doc:"File with the identity that opens sealed signing keys (palyra keys seal), read at the start: private to palyrad's user, or a credential of its systemd unit. It can't lie in state.dir."`
	Plain    bool   `key:"plain" default:"false" doc:"Says that signing keys may lie unsealed; otherwise doctor names them as missing, until palyra keys unseal asks for it." cost:"Whoever reads the disk or a copy of it can sign as this installation."`
}

// Journal is the log of intents and results.
type Journal struct {
	MinFree   Size `key:"min_free" unit:"bytes" default:"64MiB" min:"0" max:"1024GiB" doc:"With less free space for the state directory palyrad isn't ready and takes no new calls; reads go on." cost:"On a full disk calls are refused in their middle, not at the door."`
	QuotaEach Size `key:"quota_per_principal" unit:"bytes a day" default:"1GiB" min:"0" max:"1024GiB" doc:"What one principal may add to journal and store in a day, by calls (denied and failed ones too), sessions, idempotency keys and acts. It's paid back evenly over a day, across restarts. More: 429, quota. Owners at the socket aren't bound; their tokens are. 0: no bound." cost:"The journal is never trimmed: one principal can fill the disk, and calls stop."`
}

// Retention says when ended things are removed.
type Retention struct {
	Runs          Duration `key:"runs" unit:"duration" default:"720h" min:"0s" max:"87600h" reload:"yes" doc:"How long an ended run is kept, with tape, questions, artifacts and idempotency key, and the layers of an ended session after its last run. 0s: for ever." cost:"With 0s the store only grows."`
	ArtifactBytes Size     `key:"artifact_bytes" unit:"bytes" default:"768MiB" min:"0" max:"1024GiB" reload:"yes" doc:"While artifacts take more, the principal that holds most loses those of its oldest ended runs. 0: no bound but state.artifact_quota." cost:"At state.artifact_quota the next result that needs space is lost."`
	Caches        Duration `key:"caches" unit:"duration" default:"720h" min:"0s" max:"87600h" reload:"yes" doc:"A cache that no call used for so long is removed. One that is HOME goes with its session. 0s: never." cost:"With 0s caches stay until palyra caches rm."`
	Sessions      Duration `key:"sessions" unit:"duration" default:"168h" min:"0s" max:"87600h" reload:"yes" doc:"An open session without a run for so long is ended. 0s: never." cost:"With 0s the sessions of clients that died stay open, up to limits.sessions_per_principal."`
	Every         Duration `key:"every" unit:"duration" default:"1h" min:"1s" max:"168h" reload:"yes" doc:"How often palyrad looks for data to remove."`
}

// Daemon has the settings of the process.
type Daemon struct {
	DrainTimeout Duration `key:"drain_timeout" unit:"duration" default:"25s" min:"0s" max:"10m" reload:"yes" doc:"Time for calls to end after SIGTERM, below the unit's TimeoutStopSec."`
	Watchdog     bool     `key:"watchdog" default:"true" doc:"Tell systemd that palyrad answers, at half of the unit's WatchdogSec." cost:"A hung palyrad isn't restarted."`
	ReadyAfter   Duration `key:"ready_after" unit:"duration" default:"10s" min:"0s" max:"10m" doc:"A start is good once palyrad was ready for so long; three bad ones lead to safe mode."`
	LogLevel     string   `key:"log_level" default:"info" oneof:"debug info warn error" reload:"yes" doc:"Level on standard error; never arguments, output or secrets."`
}

// Load reads the file at path, or none if path is "", applies the PALYRA_*
// variables of env and checks the whole.
func Load(path string, env []string) (*Config, error) {
	if path == "" {
		return Parse("", nil, env)
	}
	op := fmt.Sprintf("config %q", path)
	b, err := readFile(path)
	switch {
	case errors.Is(err, fault.ErrUnsafeFile):
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.BadState, "bad_file", op, err).WithHint("palyrad without --config starts with the defaults")
	case err != nil:
		return nil, fault.New(fault.BadState, "bad_file", op, err)
	}
	return Parse(path, b, env)
}

// Parse is Load for a file that was read already. path is for messages.
func Parse(path string, src []byte, env []string) (*Config, error) {
	c := &Config{path: path, source: make(map[string]string), lines: make(map[string]int)}
	p := &parser{c: c}
	p.defaults()
	p.file(src)
	p.variables(env)
	if len(p.problems) == 0 {
		c.resolve(env)
		p.problems = append(p.problems, c.check()...)
	}
	if len(p.problems) > 0 {
		return nil, invalid(path, p.problems)
	}
	return c, nil
}

// Path returns the file that the configuration came from, "" if there was none.
func (c *Config) Path() string { return c.path }

// Problem is one fault of a configuration.
type Problem struct {
	Key  string `json:"key"`  // "listen.http"; "" if it is about the whole file
	Line int    `json:"line"` // in the file; 0 if it is not about a line
	Text string `json:"text"`
	Fix  string `json:"fix"` // "" if there is no one answer
}

// String returns "line 3: listen.http: text".
func (p Problem) String() string {
	s := p.Text
	if p.Key != "" {
		s = p.Key + ": " + s
	}
	if p.Line > 0 {
		s = fmt.Sprintf("line %d: %s", p.Line, s)
	}
	return s
}

// Problems is the error that Load and Parse return inside a *fault.Error.
type Problems []Problem

// Error lists the problems, separated by "; ".
func (ps Problems) Error() string {
	var s []string
	for _, p := range ps {
		s = append(s, p.String())
	}
	return strings.Join(s, "; ")
}

// invalid returns the error for a configuration with problems; the first one, in the
// order of the file, gives it the hint.
func invalid(path string, ps []Problem) error {
	op := fmt.Sprintf("config %q", path)
	if path == "" {
		op = "configuration without a file"
	}
	return fault.New(fault.BadState, "config_invalid", op, Problems(ps)).WithHint(ps[0].Fix)
}
