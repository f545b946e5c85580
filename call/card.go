package call

import "palyra/internal/canon"

// Card is the part of a capsule that a person judges, with the policies that ask. The
// approver is shown it, the store keeps its JSON and clients get the same JSON.
type Card struct {
	Principal     string         `json:"principal"` // who wants it, as Cedar writes it: `Palyra::User::"alice"`
	Tool          string         `json:"tool"`
	Argv          []string       `json:"argv"`                     // as it was asked for
	Executable    string         `json:"executable"`               // resolved path
	Digest        canon.Digest   `json:"digest"`                   // of the executable
	Script        string         `json:"script,omitempty"`         // path of a #! script; Executable is then its interpreter
	ScriptDigest  canon.Digest   `json:"script_digest,omitzero"`   //
	Operands      []CardOperand  `json:"operands"`                 // files named in arguments, pinned
	EnvNames      []string       `json:"env_names"`                // of the whole environment
	EnvChanged    []string       `json:"env_changed,omitempty"`    // "NAME=VALUE" of each variable that doesn't have the value that every call's has
	Cwd           string         `json:"cwd"`                      //
	Workspace     string         `json:"workspace,omitempty"`      // host directory; "": a private, empty one
	ReadOnly      bool           `json:"read_only"`                // the workspace
	Staged        bool           `json:"staged,omitempty"`         // the workspace: writes go to a layer
	Layer         string         `json:"layer,omitempty"`          // its name, if it holds changes of earlier calls, which the program reads
	Mounts        []string       `json:"mounts,omitempty"`         // host directories that the program sees at their own paths, read-only
	Caches        []string       `json:"caches,omitempty"`         // names of folders that the program shares with other calls of the principal in the workspace
	Secrets       []Secret       `json:"secrets,omitempty"`        // that the program can read
	Declared      *Declared      `json:"declared,omitempty"`       // the operator declared the mounts, the caches and an environment set for the workspace
	MCP           *MCP           `json:"mcp,omitempty"`            // the question to a server that runs already; the rest describes the server
	Stdin         string         `json:"stdin"`                    // "none", "sealed" or "stream"
	EgressHosts   []string       `json:"egress_hosts"`             // that the program can reach, each with its port; package call/egress has the spelling
	EgressInspect []string       `json:"egress_inspect,omitempty"` // requests to these that pass; palyra-egress reads them
	EgressSecrets []EgressSecret `json:"egress_secrets,omitempty"` // that palyra-egress puts into them, and that the program can't read
	Capabilities  []string       `json:"capabilities"`             //
	Tier          string         `json:"tier"`                     // floor
	Limits        string         `json:"limits"`                   // one line, "wall 30s, memory 512 MiB"
	Inputs        Inputs         `json:"inputs,omitempty"`         // where what the session has read by now came from, with the first call of each
	Why           []CardWhy      `json:"why"`                      // which policies ask

	// For patterns and for policy's word on the answer. Older cards lack some of it,
	// and fit no pattern then.
	EnvDigest   canon.Digest  `json:"env_digest,omitzero"`   // of the whole environment
	StdinDigest canon.Digest  `json:"stdin_digest,omitzero"` // of a sealed one
	StdinSize   int64         `json:"stdin_size,omitempty"`  // bytes of a sealed one
	StdinText   string        `json:"stdin_text,omitempty"`  // StdinHead, escaped to printable ASCII
	TTY         *TTY          `json:"tty,omitempty"`         // the program's own terminal
	Network     string        `json:"network,omitempty"`     // "", "void", "loopback", "session", "egress", which leads to EgressHosts, or the host's: "host", or "preflight" after these were looked up
	Bounds      CardLimits    `json:"bounds,omitzero"`       //
	Kind        string        `json:"kind,omitempty"`        // of the program: "shell", "interpreter", "loader", "wrapper" or "other"; "" is unknown
	System      bool          `json:"system,omitempty"`      // only root can write the program's files and folders
	Sensitive   bool          `json:"sensitive,omitempty"`   // the tool is declared so
	Background  bool          `json:"background,omitempty"`  // no caller waits for the program's end
	Loose       []string      `json:"loose,omitempty"`       // arguments that name something that is not held, as the program sees it
	Absent      []string      `json:"absent,omitempty"`      // arguments that name nothing yet
	Libraries   []string      `json:"libraries,omitempty"`   // places that are not the system's, where the program's loader looks for libraries
	Folders     []string      `json:"folders,omitempty"`     // arguments that name folders
	Planted     []CardPlanted `json:"planted,omitempty"`     // what a built-in tool is about to write where other programs run or obey it

	// Only while the question is asked.
	Called    []string      `json:"-"` // the program's arguments before those of Argv: its name, and what the #! lines of scripts add
	Readers   []CardOperand `json:"-"` // scripts that read that one: Script's interpreter, the interpreter of that, up to Executable
	StdinHead string        `json:"-"` // the first bytes of a sealed input, as they are: foreign
	Named     []string      `json:"-"` // what each of Argv names: "file" (of Operands), "folder", "loose" or ""; nil is unknown
}

// CardLimits are the limits of a call, in nanoseconds and bytes. They may be zero:
// an older card has none.
type CardLimits Limits

// CardOperand is a file that an argument names, with the digest that it was sealed with.
type CardOperand struct {
	Path   string       `json:"path"`
	Digest canon.Digest `json:"digest"`
}

// CardPlanted is a file that other programs run or obey because of its place.
type CardPlanted struct {
	Path string `json:"path"` // as the tool was given it
	Kind string `json:"kind"` // "hook", "editor", "agent", …: package toolproto lists them
	Why  string `json:"why"`  // "git runs it, or what it names, as a hook"
}

// CardWhy is one policy that asks.
type CardWhy struct {
	Policy string `json:"policy"` // id
	Reason string `json:"reason"` // its @reason
	Where  string `json:"where"`  // "30-sensitive.cedar:29"
}
