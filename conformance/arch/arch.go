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
// What it does not protect against: meaning. A package may stay in its room
// and still do the wrong thing there.
package arch

import "strings"

// Module is the path of the module that the tables speak about.
const Module = "palyra"

// Room is a row of the import table: a folder and what code below it may
// import from this module, besides its own room.
type Room struct {
	Path string   // folder; the row with the longest matching path counts
	Does string   // one line for the printed table
	May  []string // folders it may import from; nil is nothing
	Own  bool     // may import within Path

	Tests []string // folders that only _test.go files may import besides
}

// rooms is the import table of DESIGN §5, top to bottom.
var rooms = []Room{
	{Path: "cmd", Does: "flags, wiring, exit codes", Own: true, May: []string{"transport", "kernel", "authz", "isolate", "crypt", "internal"}},
	{Path: "cmd/palyra-cell", Does: "the only forker; holds no keys and speaks to no network", Own: true,
		May: []string{"authz/grant", "isolate", "internal/canon", "internal/fault"}},
	{Path: "cmd/palyra-tool", Does: "the built-in tools; runs inside a cell, links nothing of what confines or decides", Own: true,
		May: []string{"internal/canon", "internal/fault", "internal/patch", "internal/toolproto"}},
	{Path: "transport", Does: "bytes ↔ kernel calls; no policy, no keys", Own: true, May: []string{"kernel", "internal"}},
	{Path: "kernel", Does: "the gate: decide → approve → run → evidence → sign → journal", Own: true,
		May: []string{"authz", "isolate", "crypt", "internal"}},
	{Path: "authz", Does: "policy, approval, and the only mint of grants", Own: true, May: []string{"internal"}},
	{Path: "isolate", Does: "confinement; knows of authz only the grant", Own: true, May: []string{"authz/grant", "internal"},
		Tests: []string{"authz"}}, // a grant that verifies has one source
	{Path: "crypt", Does: "keys, journal, receipts", Own: true, May: []string{"internal"}},
	{Path: "internal", Does: "mechanisms without meaning; standard library only", Own: true},
	{Path: "deploy", Does: "units, users and profiles for a host; no code", Own: true, Tests: []string{"kernel/config"}},
	{Path: "conformance", Does: "from outside; nobody imports it", Own: true,
		May: []string{"cmd", "transport", "kernel", "authz", "isolate", "crypt", "internal"}},
	{Path: "bench", Does: "from outside; nobody imports it", Own: true,
		May: []string{"transport", "kernel", "authz", "isolate", "crypt", "internal"}},
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
	case r.Own && below(to, r.Path), inAny(to, r.May):
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

// home says which folder may import a third-party module, and why we have it.
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
	{Module: "github.com/BurntSushi/toml", Dirs: []string{"kernel/config"}, Why: "the syntax of the configuration file"},
	{Module: "github.com/landlock-lsm/go-landlock", Dirs: []string{"isolate/selfconfine"}, Why: "Landlock on every thread of a running Go process"},
	{Module: "golang.org/x/mod", Dirs: []string{"crypt/journal"}, Why: "Merkle tree hashes and signed notes as the Go checksum database uses them"},
	{Module: "golang.org/x/net/bpf", Dirs: []string{"isolate/native/seccomp"}, Why: "assembling and, in tests, interpreting BPF"},
	// More than one home: it is a kernel interface, not a mechanism to hide, and
	// nobody above isolate may reach isolate/internal. kernel/internal/pin
	// needs openat2 and memfd, kernel/internal/planted openat2 and statx, cmd/internal/terminal
	// the ioctls and locks of terminals; what attacks and what types at us stands outside anyway.
	{Module: "golang.org/x/sys", Dirs: []string{"isolate/internal/sys", "kernel", "kernel/internal/pin", "kernel/internal/planted", "cmd/internal/terminal", "conformance/escape", "conformance/lab", "conformance/pty"},
		Tests: []string{"isolate/native/landlock"}, Why: "system call numbers and structures"},
	{Module: "filippo.io/age", Dirs: []string{"kernel/store"}, Why: "encrypting backups in a format that other tools read"},
	{Module: "modernc.org/sqlite", Dirs: []string{"kernel/store"}, Why: "the working state: SQLite without cgo"},
	{Module: "github.com/rogpeppe/go-internal", TestOnly: true, Why: "testscript: command line tests as text"},
}

// unsafeHomes are the folders whose *_unsafe*.go files and tests may import
// unsafe. The second holds attacks, which are not linked into anything that ships.
var unsafeHomes = []string{"isolate/internal/sys", "conformance/escape/attack"}

// reach are packages of the standard library that give a process abilities
// worth seeing in review. The list of what a binary links names those it has.
var reach = []string{"net", "net/http", "crypto/tls", "os/exec", "plugin", "runtime/cgo", "debug/elf"}

// forbidden says what a binary must not link, whatever its golden file says:
// folders of this module, modules, or packages of the standard library.
var forbidden = map[string][]string{
	"cmd/palyra-cell": {"palyra/crypt", "palyra/kernel", "palyra/authz/policy", "palyra/authz/approval",
		"net/http", "crypto/tls", "plugin", "github.com/cedar-policy/cedar-go", "golang.org/x/mod"},
	"cmd/palyra-tool": {"palyra/crypt", "palyra/kernel", "palyra/authz", "palyra/isolate", "net", "net/http", "crypto/tls", "os/exec",
		"plugin", "golang.org/x"},
	"cmd/palyra": {"net/http", "crypto/tls", "plugin"},
	"cmd/palyra-ctl": {"palyra/isolate", "palyra/authz/policy", "palyra/crypt/receipt", "palyra/kernel/hub/local", "palyra/kernel/run",
		"plugin", "github.com/cedar-policy/cedar-go"},
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
	"needs bwrap",
	"needs npm",
	"needs strace",
	"needs linux",
	"needs systemd-analyze",
	"needs apparmor_parser",
	"host control missing", // followed by the control's name from isolate/probe
	"short mode",
	"reason: tier-b-no-proc", // a script by descriptor needs /dev/fd, which leads into /proc
	"reason: no-cgroup",      // this host delegates no cgroup v2 controllers; conformance/lab has a kernel that does
	"vector disabled",        // followed by the vector's reason
}

// sleepers are test files that may call time.Sleep, with the reason.
var sleepers = map[string]string{}

// oddTags are build constraints other than platforms and "race", with the
// reason. A tag may remove a feature and never weaken one, but for the first,
// which cannot be shipped (knobs_test.go).
var oddTags = map[string]string{
	"palyra_knobs": "turns one mechanism off, so that tests can say what it stops; nothing that ships has the code",
}
