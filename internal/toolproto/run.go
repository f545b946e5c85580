package toolproto

import "errors"

// RunInput is the input of process.run when the call is made by its input.
type RunInput struct {
	Argv      []string `json:"argv" tool:"required,min=1,max=4096,maxlen=131071" doc:"program and arguments; no shell reads them. The program is a name for the search path, an absolute path, or a path in the workspace that holds a slash"`
	Env       []string `json:"env" tool:"max=256,maxlen=131071" doc:"NAME=VALUE, on top of the environment that the kernel builds"`
	Workspace string   `json:"workspace,omitempty" tool:"min=1,max=64" doc:"name of a workspace, seen at /workspace or, where the operator says so, at its own path; left out, an empty private one"`
	Bare      bool     `json:"bare,omitempty" doc:"do without what the operator declared for the workspace: its own path, mounts, caches, variables, programs in PATH"`
	Secrets   []string `json:"secrets,omitempty" tool:"max=8,maxlen=512" doc:"NAME=vault://SCOPE/KEY: secrets of the vault, each of which the program reads in the file /run/secrets/NAME, if policy permits that"`
	ReadOnly  bool     `json:"read_only" doc:"the program cannot write in the workspace"`
	Cwd       string   `json:"cwd" tool:"default=.,min=1,max=16380" doc:"folder of the workspace to start in"`
	Stdin     string   `json:"stdin" doc:"standard input, in the encoding"`
	Encoding  string   `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how stdin spells bytes"`
	TTY       bool     `json:"tty,omitempty" doc:"the program has a terminal of its own, of 24 rows and 80 columns, as standard input, output and error: stdin is typed there with the key for its end behind it, and all output is one stream, stdout, with the terminal's sequences. Nothing can be typed later"`
	// Background is read by the hub, too: such a call is answered when its program has started.
	Background bool `json:"background,omitempty" doc:"let it run in the background: the call is answered when the program has started, with the id of its run for process.status, process.output and process.stop. It ends with its session at the latest"`

	EgressHosts []string `json:"egress_hosts,omitempty" tool:"max=64,maxlen=300" doc:"HOST:PORT, or HOST for port 443: the hosts that the program may reach, if policy permits that, by the names that it asks for, and no other. A NAME is that name alone, *.NAME every name below it; an address or a network (10.1.0.0/16:5432) must be listed to be reached; behind one may stand bounds of what it has: rate:10/s and open:4 and connections:100 of connections, sent:10MiB, received:1GiB, time:90s of each connection; @LIST is the hosts of a list that the operator made. Left out, none"`

	EgressInspect []string `json:"egress_inspect,omitempty" tool:"max=64,maxlen=700" doc:"[METHODS ]HOST[:PORT][/PATH][ websocket][ body:SIZE][ answer:SIZE][ pin:sha256/BASE64]: requests that pass, such as GET,HEAD packages.example:443/simple/ (that path and those below it). palyra-egress reads the connections to such a host, by a certificate that the program's environment trusts, and refuses other requests. With websocket they may become WebSockets; body:1MiB and answer:10MiB bound each one's body and its answer's; with pins, the host's public key must be one of them. Its host needs no entry in egress_hosts"`

	EgressSecrets []string `json:"egress_secrets,omitempty" tool:"max=16,maxlen=1500" doc:"NAME=vault://SCOPE/KEY PLACE [METHODS] HOST[:PORT][/PATH], such as TOKEN=vault://global/npm header:authorization packages.example: the variable NAME holds a placeholder, in place of which palyra-egress puts the secret into requests to that host, in header:NAME or query:NAME, if policy permits that. The program can't read the secret. The placeholder anywhere else, in output and files too, ends the call; keep at the end lets files have it"`

	Network   string `json:"network,omitempty" tool:"enum=fresh|host|loopback|preflight|session|void" doc:"left out, the workspace's, else fresh; with egress_hosts it's left out, loopback or preflight. fresh: a network namespace of its own with nothing in it; loopback: the same, with 127.0.0.1 and ::1, where programs of this call may listen and connect; session: such a one that the running calls of this session share, those in the background too; void: no sockets at all, which starts faster; host, if policy permits it by name: the network of the host, in which nothing is enforced; preflight, likewise: the same after egress_hosts were looked up and judged"`
	Tmp       string `json:"tmp,omitempty" tool:"enum=private|session" doc:"left out, the workspace's, else private. private: /tmp is of this call alone, and in memory; session: it's a folder that the calls of this session in this workspace share, and that goes with the session"`
	TimeoutMS int64  `json:"timeout_ms,omitempty" tool:"min=1,max=86400000" doc:"wall-clock limit in milliseconds; left out, 3600000 in the background, else the workspace's, else 60000"`
	CPUMS     int64  `json:"cpu_ms,omitempty" tool:"min=1,max=86400000" doc:"processor limit of each process in milliseconds; left out, 1200000 in the background, else the workspace's, else 60000"`
	Memory    int64  `json:"memory,omitempty" tool:"min=1048576,max=17592186044416" doc:"memory limit in bytes; left out, the workspace's, else 1073741824"`
	PIDs      int64  `json:"pids,omitempty" tool:"min=1,max=65536" doc:"limit of processes and threads; left out, the workspace's, else 256"`
	Output    int64  `json:"output" tool:"default=16777216,min=1,max=1099511627776" doc:"bytes of standard output and error that are kept"`
}

// The values of RunInput.Tmp.
const (
	TmpPrivate = "private"
	TmpSession = "session"
)

// Bytes returns the standard input.
func (in *RunInput) Bytes() ([]byte, error) { return decodeContent(in.Stdin, in.Encoding) }

// Hosts reports whether the program may reach hosts, through a network of its own.
func (in *RunInput) Hosts() bool {
	return len(in.EgressHosts)+len(in.EgressInspect)+len(in.EgressSecrets) > 0
}

// Check checks what the bounds of single members do not.
func (in *RunInput) Check() error {
	if _, err := in.Bytes(); err != nil {
		return err
	}
	if in.Workspace == "" && (in.Cwd != "." || in.ReadOnly || in.Bare || in.Tmp == TmpSession) {
		return usage("invalid_input", "check workspace", errors.New("cwd, read_only, bare and the session's /tmp need a workspace"))
	}
	if in.Network == "preflight" && len(in.EgressInspect)+len(in.EgressSecrets) == 0 && len(in.EgressHosts) > 0 {
		return checkPath(in.Cwd, true)
	}
	if in.Hosts() && in.Network != "" && in.Network != "loopback" {
		return usage("invalid_input", "check network", errors.New("a call with egress_hosts has a network of its own, with 127.0.0.1 and ::1: leave network out"))
	}
	return checkPath(in.Cwd, true)
}
