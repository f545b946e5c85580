// Package config reads palyrad's configuration: one TOML file, overridden by
// PALYRA_* variables, checked whole before anything starts.
//
// The struct [Config] is the only place where a key exists. Its tags say what
// the key means, its unit, default and bounds, whether SIGHUP applies it, and
// what weakening it costs; [Docs], [Schema], [Explain] and the checks are made
// from them, so that none of them can say something else than the code does.
//
//	c, err := config.Load("/etc/palyra/palyrad.toml", os.Environ())
//
// # Contract
//
// A key, table or PALYRA_ variable that does not exist is an error, with the
// line and the nearest name. So is a key in another case, a value of another
// type or out of bounds, and a file that others may write to. Every problem is
// reported at once, as [Problem] values in an error of kind bad_state. A
// profile is a floor and no preset: it changes no value, it refuses a value
// that is weaker than it allows ([Floors]).
//
// Grammar: TOML 1.0. Durations are Go's ("90s", "5m"), sizes are bytes as a
// number or "64KiB", "16MiB", "1GiB", modes are octal text ("0660"). A variable
// PALYRA_SECTION_KEY holds the value of section.key as text; workspaces and
// what they allow stand in the file only.
//
// # What it does not protect against
//
// Whoever may write the file decides. Secrets do not belong into it and no key
// takes one; text that looks like a private key or a token is refused, which
// finds an accident and not an intention. Paths are compared as text: a
// symbolic link can lead a workspace elsewhere.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 256 << 10

// Config is palyrad's configuration. Make one with Load or Parse; it is
// immutable then. The zero value is not a valid one.
type Config struct {
	Profile    string               `key:"profile" default:"local" oneof:"local single-vm worker-enabled" aka:"local_desktop=local remote_vps=single-vm" doc:"The floor that every other key is held to. It changes no value; it refuses weaker ones." cost:"A lower profile allows the settings that the floors of a higher one refuse."`
	Listen     Listen               `key:"listen" doc:"Where palyrad answers. Under socket activation the descriptors of systemd take the place of these addresses; the checks stay the same."`
	State      State                `key:"state" doc:"What must survive a restart."`
	Policy     Policy               `key:"policy" doc:"What decides."`
	Cell       Cell                 `key:"cell" doc:"What confines. palyra-cell is the only process that starts others."`
	Tools      Tools                `key:"tools" doc:"The built-in tools."`
	Workspaces map[string]Workspace `key:"workspaces" doc:"The only directories of the host that a tool can reach, by the name that calls use. Names are 1 to 32 of a-z, 0-9 and -. They stand in the file only: no variable can add one."`
	Limits     Limits               `key:"limits" doc:"Bounds on what clients can ask for. Each queue has one; what exceeds it is refused at once."`
	Budget     Budget               `key:"budget" doc:"What a run may use that asks for nothing, and what none can ask for more than. A call of its own is a run of one step."`
	Pool       Pool                 `key:"pool" doc:"Cells and network namespaces made ahead of calls."`
	Approvals  Approvals            `key:"approvals" doc:"Questions to people."`
	Access     Access               `key:"access" doc:"Credentials of clients that do not come through the socket."`
	Features   Features             `key:"features" doc:"Surfaces that can be turned off for everybody, whatever they hold. What is off is refused as feature_off, stands in status and in the context of policies, and each change is in the journal."`
	Journal    Journal              `key:"journal" doc:"The log of intents and results."`
	Retention  Retention            `key:"retention" doc:"What is removed of what has ended, and when. A run that has not ended is never touched, nor is the journal: it has the receipt of every call for ever, and says what was removed."`
	Daemon     Daemon               `key:"daemon" doc:"How the process lives."`

	path   string            // "" if there was no file
	source map[string]string // "file", "env"; what is missing is a default. Immutable after Parse
	lines  map[string]int    // of keys in the file. Immutable after Parse
}

// Listen is where palyrad answers.
type Listen struct {
	Socket      string `key:"socket" unit:"path" doc:"The unix socket; who connects is known by the kernel's word. Empty: palyrad.sock in RUNTIME_DIRECTORY, else in XDG_RUNTIME_DIR/palyra, else in the state directory."`
	SocketMode  Mode   `key:"socket_mode" unit:"octal mode" default:"0660" doc:"Mode of the socket. Connecting needs the write bit." cost:"A bit for others lets every user of the host ask; policy and quotas are then the only bound."`
	SocketGroup string `key:"socket_group" unit:"group name or number" doc:"Group of the socket. Empty: that of the process." cost:"Every member may make calls as themselves."`
	HTTP        string `key:"http" unit:"address:port" default:"127.0.0.1:7142" doc:"The HTTP listener, or off. The address is numeric; without TLS it is a loopback address." cost:"Beyond loopback every host that reaches the port can try tokens; needs listen.tls_cert, listen.tls_key, listen.http_auth = token and limits.requests_per_second."`
	HTTPAuth    string `key:"http_auth" default:"token" oneof:"token off" doc:"What the HTTP listener asks of a client. With off it serves /livez, /readyz and /metrics and nothing else." cost:"With off the health and the load of this host can be read without a credential."`
	TLSCert     string `key:"tls_cert" unit:"path" reload:"yes" doc:"Certificate chain of the HTTP listener, PEM. SIGHUP reads the file again. Empty with tls_key: no TLS."`
	TLSKey      string `key:"tls_key" unit:"path" reload:"yes" doc:"Private key of the HTTP listener, PEM, readable by palyrad only. TLS is 1.3 or nothing."`
}

// State is what must survive a restart.
type State struct {
	Dir           string `key:"dir" unit:"path" doc:"Keys, journal, working state and artifacts, 0700. Empty: STATE_DIRECTORY, else XDG_STATE_HOME/palyra, else HOME/.local/state/palyra."`
	ArtifactQuota Size   `key:"artifact_quota" unit:"bytes" default:"1GiB" min:"1MiB" max:"1024GiB" doc:"Space for results that are kept by digest. A full quota refuses the next result that would need it."`
	ArtifactEach  Size   `key:"artifact_quota_per_principal" unit:"bytes" default:"512MiB" min:"1MiB" max:"1024GiB" doc:"The part of it that one principal's runs hold, whatever credentials it uses. The next result that would need more is lost: quota_artifacts. Owners have all of it." cost:"One principal can take the space of all."`
}

// Policy is what decides.
type Policy struct {
	Dir string `key:"dir" unit:"path" doc:"Directory of .cedar files. Empty: the built-in set. SIGHUP reads the files again and keeps the old set if any is refused."`
}

// Cell is what confines.
type Cell struct {
	Path        string `key:"path" unit:"path" doc:"The palyra-cell binary. Empty: beside palyrad, else ../libexec/palyra. Not looked up in PATH." cost:"Who can write this file decides what confinement is."`
	Starter     string `key:"starter" unit:"path" doc:"Socket of a palyra-cell that another service started (palyra-cell.service). Empty: palyrad starts its own before it confines itself."`
	Confinement string `key:"confinement" default:"enforce" oneof:"enforce report" doc:"What happens where palyrad cannot put itself under Landlock and seccomp: enforce refuses to start, report starts and says so in status." cost:"With report an exploited palyrad may do all that its user may."`
}

// Tools are the built-in tools.
type Tools struct {
	Program string `key:"program" unit:"path" doc:"The palyra-tool binary that runs inside cells. Empty: beside palyrad, else ../libexec/palyra."`
}

// Workspace is a directory that tools can reach.
type Workspace struct {
	Path     string `key:"path" unit:"path" doc:"Absolute path of the directory. Not the root of the host, not the state or policy directory, and not above or below those." cost:"Whatever lies beneath it is within reach of every call that policy allows to use it."`
	ReadOnly bool   `key:"read_only" default:"true" doc:"Mount it read-only in every cell." cost:"With false a call that policy allows can change and remove every file beneath it."`
}

// Limits bound what clients can ask for.
type Limits struct {
	Concurrency       int64 `key:"concurrency" unit:"calls" default:"8" min:"1" max:"1024" doc:"Calls that run at the same time." cost:"Each may use the memory and processors that its limits allow."`
	Queue             int64 `key:"queue" unit:"calls" default:"64" min:"0" max:"65536" doc:"Calls that wait for a place. One more is refused as unavailable."`
	QueueEach         int64 `key:"queue_per_principal" unit:"calls" default:"48" min:"0" max:"65536" doc:"Calls of one principal that wait for a place, whatever credentials it uses. One more is refused: 429, too_many_runs." cost:"One principal can take the whole queue."`
	SessionsEach      int64 `key:"sessions_per_principal" unit:"sessions" default:"256" min:"1" max:"65536" doc:"Open sessions of one principal. One more is refused: 429, too_many_sessions."`
	Body              Size  `key:"body" unit:"bytes" default:"1MiB" min:"4KiB" max:"64MiB" doc:"Largest body of a request." cost:"What bodies may take together grows with it: ten of them, if that is more than 80 MiB."`
	SSEReaders        int64 `key:"sse_readers" unit:"connections" default:"1024" min:"0" max:"65536" doc:"Readers of tapes at the same time." cost:"Each holds a descriptor and a few KiB."`
	SSEReadersEach    int64 `key:"sse_readers_per_principal" unit:"connections" default:"512" min:"0" max:"65536" doc:"Readers of tapes of one principal. One more is refused: 429, too_many_streams." cost:"One principal can take the places of all."`
	Sealed            Size  `key:"sealed" unit:"bytes" default:"0" min:"0" max:"1024GiB" doc:"Memory of sealed copies of files, of all calls together, those that wait for an answer included; an eighth of it is for owners at the socket alone. One more copy is refused: 503, budget_sealed. 0: half of what the unit's MemoryMax leaves, else a quarter of the host's memory, at most 2GiB." cost:"The files that calls name can take as much memory."`
	SealedEach        Size  `key:"sealed_per_principal" unit:"bytes" default:"0" min:"0" max:"1024GiB" doc:"The same of one principal. 0: half of what is for all." cost:"One principal can take the share of all."`
	RequestsPerSecond int64 `key:"requests_per_second" unit:"requests/s" default:"100" min:"0" max:"100000" doc:"Requests of one client; 0: no bound." cost:"Without it one client can keep palyrad busy, and tokens can be tried at wire speed."`
}

// Budget is what a run may use.
type Budget struct {
	Calls int64    `key:"calls" unit:"calls" default:"256" min:"1" max:"1048576" doc:"Calls of a run. What comes after is refused as budget_calls." cost:"One run can keep a place for as many calls."`
	Wall  Duration `key:"wall" unit:"duration" default:"1h" min:"1s" max:"168h" doc:"Time of a run, waiting for people included. The call at work is killed then." cost:"One run can keep a place for as long."`
	Bytes Size     `key:"bytes" unit:"bytes" default:"256MiB" min:"1KiB" max:"1024GiB" doc:"Output of a run that is kept, of all its calls." cost:"One run can fill state.artifact_quota by as much."`
}

// Pool is what is made ahead of calls.
type Pool struct {
	Cells    int64    `key:"cells" unit:"cells" default:"4" min:"0" max:"64" doc:"Cells that wait in their last step before a call is known. 0: each call builds its own." cost:"Memory of each, whether it is used or not: at most 440 KiB of the kernel's, 110 without a network and a cgroup of its own."`
	Networks int64    `key:"networks" unit:"namespaces" default:"4" min:"0" max:"256" doc:"Empty network namespaces made ahead, each for one call." cost:"210 KiB of the kernel's memory for each."`
	MaxAge   Duration `key:"max_age" unit:"duration" default:"5m" min:"1s" max:"24h" doc:"A cell that waited longer serves no call and is thrown away. None is made any more for calls that have not come for ten times as long."`
}

// Approvals are questions to people.
type Approvals struct {
	Timeout   Duration `key:"timeout" unit:"duration" default:"5m" min:"1s" max:"168h" doc:"How long a question waits. No answer is a no." cost:"The host may be another one when the answer comes; what was sealed is held until then."`
	AllowSelf bool     `key:"allow_self" default:"false" doc:"Let whoever asked for a call approve it." cost:"One credential is then enough to run a sensitive call."`
}

// Access is about credentials.
type Access struct {
	TokensEach  int64    `key:"tokens_per_principal" unit:"tokens" default:"256" min:"1" max:"65536" doc:"API tokens of one principal that are good at a time, and that it makes or rotates in a day. One more is refused: 429, quota_tokens." cost:"Each is kept in memory and on disk, and looked at when a registry is opened."`
	TokenMaxAge Duration `key:"token_max_age" unit:"duration" default:"2160h" min:"1m" max:"8760h" doc:"Longest life that a new API token can be given." cost:"A token that leaked stays good for as long."`
}

// Features are surfaces that can be turned off; the keys are the names of
// access.Feature.
type Features struct {
	Tokens         bool `key:"tokens" default:"true" doc:"API tokens are minted and rotated. Those that there are stay good."`
	HTTPApprovals  bool `key:"http_approvals" default:"true" doc:"Approvals are answered through HTTP, and not through the socket alone." cost:"With true a token that leaked, with approval.resolve among its scopes, can say yes."`
	HTTPAdmin      bool `key:"http_admin" default:"true" doc:"Members, policies and backups are managed through HTTP, and not through the socket alone." cost:"With true a token that leaked, with such a scope, can manage them."`
	StandingGrants bool `key:"standing_grants" default:"true" doc:"A yes can stand for further calls, for a session or a time." cost:"With true one yes lets more than one call through."`
	PatternGrants  bool `key:"pattern_grants" default:"true" doc:"Such a yes can be to the calls that fit a pattern." cost:"With true one yes lets calls through that nobody has seen."`
}

// Journal is the log of intents and results.
type Journal struct {
	MinFree   Size `key:"min_free" unit:"bytes" default:"64MiB" min:"0" max:"1024GiB" doc:"With less free space on the state directory's disk palyrad says that it is not ready and takes no new calls; reads go on." cost:"On a full disk an intent cannot be logged, so that calls are refused in their middle instead of at the door."`
	QuotaEach Size `key:"quota_per_principal" unit:"bytes a day" default:"1GiB" min:"0" max:"1024GiB" doc:"What one principal may add to the journal and the working state in a day, whatever credentials it uses: calls, denied ones too, their arguments and output, sessions, and acts such as making tokens. One call or session more is refused: 429, quota_journal. What was added is forgotten evenly over a day, and not by a restart. Owners are not bound. 0: no bound." cost:"The journal is never trimmed: one principal can fill the disk, and then no call is made."`
}

// Retention is what is removed of what has ended.
type Retention struct {
	Runs          Duration `key:"runs" unit:"duration" default:"720h" min:"0s" max:"87600h" reload:"yes" doc:"How long an ended run is kept, with its tape, its questions and its artifacts. 0s: for ever. An idempotency key is forgotten with its run." cost:"With 0s the store grows for as long as palyrad is used."`
	ArtifactBytes Size     `key:"artifact_bytes" unit:"bytes" default:"768MiB" min:"0" max:"1024GiB" reload:"yes" doc:"While all artifacts take more, ended runs of the principal that holds most lose theirs, the oldest first. 0: no bound but state.artifact_quota." cost:"At state.artifact_quota the next result that would need space is lost."`
	Every         Duration `key:"every" unit:"duration" default:"1h" min:"1s" max:"168h" reload:"yes" doc:"How often it is looked what can go. It is removed in small transactions."`
}

// Daemon is how the process lives.
type Daemon struct {
	DrainTimeout Duration `key:"drain_timeout" unit:"duration" default:"25s" min:"0s" max:"10m" reload:"yes" doc:"After SIGTERM, how long calls may go on before they are killed. TimeoutStopSec of the unit must be longer."`
	Watchdog     bool     `key:"watchdog" default:"true" doc:"Tell systemd that the kernel answers, at half of the unit's WatchdogSec." cost:"Without it a palyrad that hangs is not restarted."`
	ReadyAfter   Duration `key:"ready_after" unit:"duration" default:"10s" min:"0s" max:"10m" doc:"How long palyrad must have been ready before its start counts as good. Three starts that were not lead to safe mode."`
	LogLevel     string   `key:"log_level" default:"info" oneof:"debug info warn error" reload:"yes" doc:"What is logged to standard error. No level logs arguments, output or secrets."`
}

// Load reads the file at path, or none if path is "", applies the PALYRA_*
// variables of env and checks the whole.
func Load(path string, env []string) (*Config, error) {
	if path == "" {
		return Parse("", nil, env)
	}
	op := fmt.Sprintf("config %q", path)
	if err := checkFile(path); err != nil {
		return nil, err
	}
	b, err := durable.ReadRegular(path, MaxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.BadState, "config_missing", op, err).WithHint("palyrad without --config starts with the defaults")
	case err != nil:
		return nil, fault.New(fault.BadState, "config_unreadable", op, err)
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

// Path is the file that the configuration came from, "" if there was none.
func (c *Config) Path() string { return c.path }

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Reason string `json:"reason"` // config_syntax, config_unknown_key, config_bad_value, config_floor, config_listener, ...
	Key    string `json:"key"`    // "listen.http"; "" if it is about the whole file
	Line   int    `json:"line"`   // in the file; 0 if it is not about a line
	Text   string `json:"text"`
	Fix    string `json:"fix"` // "" if there is no one answer
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

// invalid is the error for a configuration with problems; the first one, in the
// order of the file, gives it reason and hint.
func invalid(path string, ps []Problem) error {
	op := fmt.Sprintf("config %q", path)
	if path == "" {
		op = "configuration without a file"
	}
	return fault.New(fault.BadState, ps[0].Reason, op, Problems(ps)).WithHint(ps[0].Fix)
}
