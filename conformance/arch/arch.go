// Package arch holds the rules of the tree as data, and the tests that hold
// the tree to them.
//
// The import table is [rooms]; it is printed into docs/ARCHITECTURE.md between
// markers. Changing it is a commit of its own. The other tables are the homes
// of third-party modules, what each binary may link, and the exceptions that
// have a reason. The tests read source text with go/parser and therefore see
// every platform's files at once; only the list of what a binary links comes
// from the go command.
//
//	go test ./conformance/arch            # check
//	go test ./conformance/arch -update    # rewrite the generated parts
//
// The rules don't protect against a package that stays in its room and does the wrong thing
// there.
package arch

import (
	"slices"
	"strings"
)

// Module is the path of the module that the tables speak about.
const Module = "palyra"

// Room is a row of the import table: a folder and what code below it may
// import from this module, besides its own room.
type Room struct {
	Path string   // folder; the row with the longest matching path counts
	Does string   // one line for the printed table
	May  []string // folders it may import from; nil is nothing
	Only []string // folders it may import without what lies below them
	Own  bool     // may import within Path

	Tests []string // folders that only _test.go files may import besides
}

// rooms is the import table of DESIGN §5, top to bottom.
var rooms = []Room{
	{Path: "cmd", Does: "flags, wiring, exit codes", Own: true,
		May: []string{"transport", "hub", "kernel", "agentloop", "authz", "isolate", "crypt", "call", "internal"}},
	{Path: "cmd/palyra-cell", Does: "the only one that starts the programs of calls; no signing keys, no policy, no network", Own: true,
		May: []string{"authz/grant", "isolate", "call", "internal/canon", "internal/fault"}},
	{Path: "cmd/palyra-egress", Does: "resolves, connects and inspects requests for calls; no policy, no keys of ours, no files", Own: true,
		May: []string{"call/egress", "isolate/egress", "isolate/selfconfine"}},
	{Path: "cmd/palyra-tool", Does: "the built-in tools; runs in a cell, links nothing that confines or decides", Own: true,
		May: []string{"internal/canon", "internal/fault", "internal/git", "internal/patch", "internal/toolproto", "internal/tools"}, Tests: []string{"internal/sample"}},
	{Path: "cmd/palyra-fetch", Does: "HTTP in cells", Own: true,
		May: []string{"agentloop/provider", "agentloop/turn", "call/egress", "internal/canon", "internal/fault", "internal/sse", "internal/toolproto", "internal/tools"}},
	{Path: "cmd/palyra-admin", Does: "reads configurations and backups without a daemon; no network, no gate", Own: true,
		May: []string{"cmd/internal", "hub/config", "hub/store", "internal"}},
	{Path: "cmd/palyra-mcp", Does: "serves agents as a client of palyrad; holds no keys, decides nothing; starts palyra alone", Own: true,
		May: []string{"cmd/internal", "hub", "transport/mcp", "internal"}, Tests: []string{"transport/api/apitest"}},
	{Path: "cmd/palyra-setup", Does: "edits agents' configurations; no network, no keys; starts palyra, palyrad and systemctl", Own: true,
		May: []string{"cmd/internal", "hub/place", "internal"}},
	{Path: "cmd/palyra-dev", Does: "judges hosts and policies, decides nothing", Own: true,
		May: []string{"bench", "cmd/internal", "authz/policy", "internal"}},
	{Path: "transport", Does: "bytes ↔ operations; no policy, no keys, no store", Own: true,
		Only: []string{"hub"}, May: []string{"agentloop/turn", "internal"}, Tests: []string{"hub", "kernel"}},
	{Path: "transport/httpapi/keystore", Does: "idempotency keys in the store", Only: []string{"transport/httpapi"},
		May: []string{"hub/store", "internal"}},
	{Path: "hub", Does: "the daemon: operations, runs, sessions, store, configuration", Own: true,
		May: []string{"kernel", "agentloop", "authz", "isolate", "crypt", "call", "internal"}},
	{Path: "kernel", Does: "the gate: decide → approve → run → evidence → sign → journal", Own: true,
		May: []string{"authz", "isolate", "crypt", "call", "internal"}},
	{Path: "agentloop", Does: "models: what they're asked, and which call comes next; no effects, no keys", Own: true, May: []string{"call", "internal"}},
	{Path: "authz", Does: "policy, approval, and the only mint of grants", Own: true, May: []string{"call", "internal"}},
	{Path: "isolate", Does: "confinement; knows of authz only the grant", Own: true, May: []string{"authz/grant", "call", "internal"},
		Tests: []string{"authz"}}, // a grant that verifies has one source
	{Path: "crypt", Does: "keys, journal, receipts, secrets", Own: true, May: []string{"call", "internal"}},
	{Path: "call", Does: "the vocabulary: the parts of a call that several formats have in common; data alone", Own: true, May: []string{"internal"}},
	{Path: "internal", Does: "mechanisms without meaning; standard library only", Own: true},
	{Path: "deploy", Does: "units, users and profiles for a host; no code", Own: true, Tests: []string{"hub/config"}},
	{Path: "conformance", Does: "from outside; nothing imports it", Own: true,
		May: []string{"cmd", "transport", "hub", "kernel", "agentloop", "authz", "isolate", "crypt", "call", "internal"}},
	{Path: "bench", Does: "from outside; only cmd/palyra-dev imports it", Own: true,
		May: []string{"transport", "hub", "kernel", "authz", "isolate", "crypt", "call", "internal"}},
}

// roomOf returns the row for a folder, nil if the tree has no such room.
func roomOf(dir string) *Room {
	var best *Room
	for i := range rooms {
		r := &rooms[i]
		if below(dir, r.Path) && (best == nil || len(r.Path) > len(best.Path)) {
			best = r
		}
	}
	return best
}

// below reports whether dir is parent or a folder in it.
func below(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}

// allows reports whether code in folder from may import folder to. test says
// that the code is in a _test.go file.
func allows(from, to string, test bool) bool {
	r := roomOf(from)
	switch {
	case r == nil:
		return false
	case r.Own && below(to, r.Path), inAny(to, r.May), slices.Contains(r.Only, to):
		return true
	}
	return test && inAny(to, r.Tests)
}

func inAny(dir string, parents []string) bool {
	for _, p := range parents {
		if below(dir, p) {
			return true
		}
	}
	return false
}

// home names the folders that may import a third-party module, and why we have it.
type home struct {
	Module   string   // import path prefix
	Dirs     []string // the folders that may import it
	Tests    []string // the folders whose _test.go files may import it besides
	TestOnly bool     // only from _test.go files, anywhere
	Why      string
}

// homes lists every third-party module that code here names. A module that is
// not listed may not be imported.
var homes = []home{
	{Module: "github.com/cedar-policy/cedar-go", Dirs: []string{"authz/policy"}, Why: "the policy language and its evaluator"},
	{Module: "github.com/BurntSushi/toml", Dirs: []string{"hub/config", "cmd/palyra-setup"}, Why: "the syntax of configurations: palyrad's, and Codex's"},
	{Module: "github.com/godbus/dbus/v5", Dirs: []string{"crypt/keyring/backend"}, Why: "D-Bus, over which desktops serve their keyrings"},
	{Module: "github.com/go-json-experiment/json", Dirs: []string{"internal/canon"}, Why: "JSON that refuses what encoding/json lets pass, and RFC 8785"},
	{Module: "github.com/modelcontextprotocol/go-sdk", Dirs: []string{"transport/mcp"}, Why: "the Model Context Protocol in each of its versions"},
	{Module: "github.com/landlock-lsm/go-landlock", Dirs: []string{"isolate/selfconfine"}, Why: "Landlock on every thread of a running Go process"},
	{Module: "golang.org/x/mod", Dirs: []string{"crypt/journal"}, Why: "Merkle tree hashes and signed notes"},
	{Module: "golang.org/x/net/bpf", Dirs: []string{"isolate/native/seccomp"}, Why: "assembling and, in tests, interpreting BPF"},
	{Module: "golang.org/x/net/dns/dnsmessage", Dirs: []string{"isolate/egress/dns", "conformance/world"}, Why: "messages of the DNS"},
	// It has several homes: it is a kernel interface, not a mechanism to hide, and no
	// package above isolate may reach isolate/internal. kernel/internal/pin needs openat2
	// and memfd, kernel/internal/planted openat2 and statx, cmd/internal/terminal the
	// ioctls and locks of terminals, crypt/keyring/backend Windows' Data Protection API. The
	// packages that attack us and type at us stand outside anyway.
	{Module: "golang.org/x/sys", Dirs: []string{"crypt/keyring/backend", "isolate/internal/sys", "kernel", "kernel/internal/pin", "kernel/internal/planted", "cmd/internal/terminal", "cmd/palyra-tool/internal/apply", "bench/selfbench", "conformance/escape", "conformance/lab", "conformance/pty", "conformance/world", "transport/httpapi"},
		Tests: []string{"isolate/native/landlock"}, Why: "system calls"},
	{Module: "filippo.io/age", Dirs: []string{"hub/store", "crypt/vault"}, Why: "encrypting backups and exports in a format that other tools read"},
	{Module: "golang.org/x/crypto", Dirs: []string{"crypt/seal"}, Why: "Argon2id, which makes keys of passphrases"},
	{Module: "modernc.org/sqlite", Dirs: []string{"hub/store"}, Why: "the working state: SQLite without cgo"},
	{Module: "github.com/rogpeppe/go-internal", TestOnly: true, Why: "testscript: command line tests as text"},
}

// unsafeHomes are the folders whose *_unsafe*.go files and tests may import
// unsafe. The first reads memory that Windows allocated. The last holds attacks, which are not
// linked into anything that ships.
var unsafeHomes = []string{"crypt/keyring/backend", "isolate/internal/sys", "conformance/escape/attack"}

// reach are packages of the standard library that give a process abilities
// worth seeing in review. The list of what a binary links names those it has.
var reach = []string{"net", "net/http", "crypto/tls", "os/exec", "plugin", "runtime/cgo", "debug/elf"}

// despite are packages that a binary links although forbidden has a folder above them: data,
// without imports of ours or reach.
var despite = map[string][]string{
	"cmd/palyra": {"palyra/hub/place"}, // where the user's palyrad listens, for palyra exec
}

// forbidden lists the folders of this module, modules, and packages of the standard library
// that a binary must not link, whatever its golden file says.
var forbidden = map[string][]string{
	"cmd/palyra-cell": {"palyra/crypt", "palyra/kernel", "palyra/hub", "palyra/authz/policy", "palyra/authz/approval",
		"net", "net/http", "os/exec", "crypto/tls", "plugin", "github.com/cedar-policy/cedar-go", "golang.org/x/mod"},
	"cmd/palyra-egress": {"palyra/crypt", "palyra/kernel", "palyra/hub", "palyra/authz", "palyra/transport", "palyra/isolate/cell", "palyra/isolate/egress/client",
		"os/exec", "plugin", "github.com/cedar-policy/cedar-go", "golang.org/x/mod", "golang.org/x/crypto", "modernc.org"},
	"cmd/palyra-tool": {"palyra/crypt", "palyra/kernel", "palyra/hub", "palyra/authz", "palyra/isolate", "net", "net/http", "crypto/tls", "os/exec",
		"plugin", "golang.org/x/mod", "golang.org/x/net"},
	"cmd/palyra-fetch": {"palyra/crypt", "palyra/kernel", "palyra/hub", "palyra/authz", "palyra/isolate", "os/exec", "plugin", "golang.org/x/mod", "golang.org/x/net"},
	// isolate/cell/serve, isolate/rlimit and isolate/internal/steps are there to fork.
	"cmd/palyra": {"palyra/isolate/cell/serve", "palyra/isolate/rlimit", "palyra/isolate/internal/steps", "palyra/hub", "palyra/transport", "palyra/bench", "palyra/authz/policy/lint", "net/http", "crypto/tls", "plugin"},
	// crypt/pair is the device's side of a pairing, and crypt/ca is how a device judges its hub's
	// certificate: neither opens a key of this installation's for it.
	"cmd/palyra-ctl": {"palyra/isolate", "palyra/authz/policy", "palyra/crypt/journal", "palyra/crypt/keyring", "palyra/crypt/receipt",
		"palyra/crypt/seal", "palyra/crypt/vault", "palyra/kernel", "palyra/bench", "palyra/hub/local", "palyra/hub/run",
		"palyra/hub/store", "palyra/hub/config", "os/exec", "plugin", "filippo.io", "github.com/BurntSushi", "github.com/cedar-policy",
		"github.com/landlock-lsm", "golang.org/x/crypto", "golang.org/x/mod", "modernc.org"},
	"cmd/palyra-mcp": {"palyra/isolate", "palyra/authz/policy", "palyra/crypt", "palyra/kernel", "palyra/bench", "palyra/hub/local", "palyra/hub/run",
		"palyra/hub/store", "palyra/hub/config", "palyra/transport/httpapi", "plugin", "filippo.io", "github.com/BurntSushi", "github.com/cedar-policy",
		"github.com/landlock-lsm", "golang.org/x/mod", "modernc.org"},
	"cmd/palyra-setup": {"palyra/isolate", "palyra/authz/policy", "palyra/crypt", "palyra/kernel", "palyra/bench", "palyra/transport", "palyra/hub/local",
		"palyra/hub/store", "palyra/hub/config", "net", "net/http", "crypto/tls", "plugin", "github.com/cedar-policy", "golang.org/x/mod", "modernc.org"},
	"cmd/palyra-admin": {"palyra/kernel", "palyra/isolate", "palyra/authz/policy", "palyra/bench", "palyra/transport", "palyra/hub/local", "palyra/hub/run",
		"net/http", "crypto/tls", "plugin", "github.com/cedar-policy/cedar-go"},
	"cmd/palyrad": {"palyra/isolate/cell/serve", "palyra/isolate/rlimit", "palyra/isolate/internal/steps", "palyra/bench", "palyra/authz/policy/lint", "palyra/conformance", "plugin"},
}

// skipReasons are the ways a test may begin the message with which it skips.
// Anything else fails: a host that ought to have the feature must not pass by
// not looking.
var skipReasons = []string{
	"needs root",
	"needs an unprivileged user",
	"needs user namespaces",
	"needs cgroup v2 delegation",
	"needs the built binaries",
	"the file system keeps no times of access",
	"needs systemd for a user",
	"needs systemd as a first process", // over a copy of the root: overlayfs over it
	"needs dbus-daemon",
	"needs gnome-keyring",
	"needs bwrap",
	"needs git",
	"needs npm",
	"needs strace",
	"needs linux",
	"needs systemd-analyze",
	"needs apparmor_parser",
	"host control missing",   // followed by the control's name from isolate/probe
	"reason: tier-b-no-proc", // a script by descriptor needs /dev/fd, which leads into /proc
	// This host delegates no cgroup v2 controllers; conformance/lab has a kernel that does.
	"reason: no-cgroup",
	"vector disabled", // followed by the vector's reason
}

// sleepers are test files that may call time.Sleep, with the reason.
var sleepers = map[string]string{}

// oddTags are build constraints other than platforms and "race", with the
// reason. A tag may remove a feature and never weaken one, but for the first,
// which cannot be shipped (knobs_test.go).
var oddTags = map[string]string{
	"palyra_knobs": "turns one mechanism off, so that tests can say what it stops; nothing that ships has the code",
	"spend":        "adds probes that speak TLS to the battery's hostile program: conformance/escape/attack",
}
