package programs

import (
	"fmt"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
)

// ExecRefused is the status of a palyra exec that ran nothing, as docker run has it.
const ExecRefused = 125

// maxPIDs is the kernel's own bound on process ids (PID_MAX_LIMIT).
const maxPIDs = 4 << 20

// maxFiles bounds --files.
const maxFiles = 1 << 24

// The flags of palyra exec that other commands have, too. palyra alone parses the values of five
// (palyra/cmd/internal/local): only a kernel of its own takes them.
var (
	FlagState   = command.Flag{Name: "state", Arg: "DIR", Help: "state directory (default $XDG_STATE_HOME/palyra,\nelse ~/.local/state/palyra); created 0700 with its keys"}
	FlagPolicy  = command.Flag{Name: "policy", Arg: "DIR", Help: "policy directory (default: the built-in set)"}
	FlagNetwork = command.Flag{Name: "network", Arg: "NETWORK", Help: "fresh: an empty network namespace of its own (default);\nloopback: one with 127.0.0.1 and ::1, on which programs\nof this call may listen and connect; void: a shared one,\nin which no socket can be made; where policy names it,\nhost: this host's, with nothing enforced, or preflight:\nthe same after the hosts of --egress were looked up;\ntier c"}
	FlagReceipt = command.Flag{Name: "receipt", Arg: "FILE", Help: "also write the receipt (a Sigstore bundle) to FILE"}
	FlagMount   = command.Flag{Name: "mount", Arg: "DIR", Help: "host directory shown read-only at its own path, such as\n~/go/pkg/mod; may be given more than once; tier c", Repeat: true}
	FlagCache   = command.Flag{Name: "cache", Arg: "NAME", Help: "writable folder /caches/NAME, kept for later calls in\nthis workspace; go, npm and pip find theirs; may be\ngiven more than once; tier c (palyra caches)", Repeat: true}
	FlagLayer   = command.Flag{Name: "layer", Arg: "NAME", Help: "the layer of a staged workspace (default: a new one)"}
	FlagSecret  = command.Flag{Name: "secret", Arg: "NAME=REF", Help: "a secret of the vault, such as token=vault://global/t,\nwhich CMD reads in the file /run/secrets/NAME; policy\ndecides about each (vault.expose); may be given more\nthan once; tier c", Repeat: true}

	FlagEgress = command.Flag{Name: "egress", Arg: "HOST[:PORT]", Help: "a host that CMD may reach, such as packages.example:443\n(the port if none is given) or *.cdn.example:443, with\nbounds such as rate:10/s and sent:10MiB behind it; or\n@LIST, the hosts of a list of the policy directory; every\nother stays out of reach; may be given more than once;\ntier c", Repeat: true}

	FlagInspect = command.Flag{Name: "inspect", Arg: "RULE", Help: "requests that pass, such as 'GET,HEAD packages.example'\nor packages.example:443/simple/; palyra-egress reads the\nconnections to such a host and refuses other requests;\nbody:1MiB and answer:10MiB behind it bound bodies; may\nbe given more than once; tier c", Repeat: true}

	FlagEgressSecret = command.Flag{Name: "egress-secret", Arg: "USE", Help: "a secret that goes into requests and that CMD can't\nread, such as 'TOKEN=vault://global/npm\nheader:authorization packages.example': $TOKEN is a\nplaceholder; policy decides about each (vault.use); keep\nat its end lets files have it; may be given more than\nonce; tier c", Repeat: true}

	FlagVaultKey        = command.Flag{Name: "key", Arg: "FILE", Help: "identity that opens the vault, and sealed signing\nkeys (default: where the vault's folder says that it\nis kept, else $XDG_CONFIG_HOME/palyra/vault.key or\n~/.config/palyra/vault.key)"}
	FlagVaultPassphrase = command.Flag{Name: "passphrase", Arg: "FILE", Help: "file with a passphrase that opens it instead; one\nnewline at its end isn't part of it"}
)

// Exec is palyra exec, the command that makes a call. palyra does it, or palyra-ctl where the user
// has a palyrad.
var Exec = command.Command{
	Name: "exec", Operands: "-- CMD ARG...", Min: 1, Max: -1, Rest: true, UsageExit: ExecRefused,
	Short: "decide, approve, run in a sandbox, and write a receipt",
	Long: `
Runs CMD with exactly these arguments, no shell between. Policy decides first.
A sensitive call asks on the controlling terminal, never on standard input;
without a terminal it is denied, and no flag answers instead of a person.
On a terminal, control characters in CMD's output are shown as text.

By default: tier C (namespaces, Landlock, seccomp), no network (--egress names
hosts, which palyra-egress resolves, connects and counts), no workspace
but an empty private one, limits on everything. The workspace is /workspace
and the working directory; arguments that name regular files in it are part
of what is approved. The environment is built, not inherited: only --env adds
to it.

After a CMD that failed, a line on standard error says what was observed (a
limit, a signal), else what its error text suggests, and which flag changes it.

Every decided call gets a receipt, in the journal and with --receipt in FILE.

Where this user has a palyrad (its socket stands at the usual place), palyrad
decides and runs the call, by its own policies, and a line on standard error
says so. DIR is then a workspace of palyrad's configuration, with all that is
declared for it, and a question is asked here if this user may answer it; else
it waits in palyrad's queue. Secrets are those of palyrad's vault. What only
palyra itself can give (a terminal, a layer by name, further mounts) is refused.
With --no-daemon, --state or --policy palyra makes the call itself.`,
	Flags: []command.Flag{
		{Name: "tier", Arg: "b|c", Help: "tier floor: c namespaces (default), b without namespaces;\nwhat the host cannot enforce is refused, never skipped"},
		{Name: "workspace", Arg: "DIR[:MODE]", Help: "host directory shown at /workspace; :ro for read-only,\n:staged to write to a layer (palyra changes); with\n:own-path or ,own-path shown at its own path", Parse: ParseWorkspace},
		FlagMount, FlagCache,
		FlagLayer, FlagSecret,
		{Name: "env", Arg: "NAME=VALUE", Help: "add a variable; may be given more than once", Repeat: true, Parse: command.Env},
		{Name: "stdin", Help: "give the program our standard input (default: empty);\nup to 1MiB is read before the decision and is part of\nwhat is approved, more is declared a stream"},
		{Name: "tty", Help: "give the program a terminal of its own, with our\nstandard input typed there and output as one stream;\nkeys are the program's while it runs; tier c"},
		FlagNetwork, FlagEgress, FlagInspect, FlagEgressSecret,
		{Name: "timeout", Arg: "D", Help: "wall clock limit, such as 1.5s (default 1m); the deadline\ncovers the whole process tree", Parse: command.Duration},
		{Name: "cpu", Arg: "D", Help: "processor time per process, whole seconds rounded up\n(default 1m)", Parse: command.Duration},
		{Name: "memory", Arg: "SIZE", Help: "memory, such as 64M (powers of 1024; default 1GiB)", Parse: command.Size},
		{Name: "pids", Arg: "N", Help: "processes and threads (default 256)", Parse: command.Count(maxPIDs)},
		{Name: "max-output", Arg: "SIZE", Help: "bytes of stdout and stderr kept, the rest is counted\n(default 16MiB)", Parse: command.Size},
		{Name: "max-file", Arg: "SIZE", Help: "bytes per file written (default 256MiB)", Parse: command.Size},
		{Name: "disk", Arg: "SIZE", Help: "bytes in each private folder, and in a layer\n(default 256MiB)", Parse: command.Size},
		{Name: "files", Arg: "N", Help: "files in each of them (default 16384)", Parse: command.Count(maxFiles)},
		FlagPolicy, FlagState,
		FlagVaultKey, FlagVaultPassphrase,
		{Name: "no-daemon", Help: "make the call here, also where this user has a palyrad"},
		FlagReceipt,
		FlagRaw,
		{Name: "json", Help: "print one JSON document instead of streaming: decision,\napproval, outcome, receipt, and stdout and stderr as\n{encoding, data} with encoding utf-8 or base64"},
	},
	Exits: []command.Exit{
		{Code: "0-123", Meaning: "the program's own status (and any other that it chose)"},
		{Code: "124", Meaning: "timed out"},
		{Code: "125", Meaning: "refused: usage, internal error, or the host cannot enforce the tier;\n         or outcome_unknown: palyra-cell died, and CMD may have run"},
		{Code: "126", Meaning: "denied by policy or by the approver"},
		{Code: "127", Meaning: "CMD not found"},
		{Code: "128+n", Meaning: "the program, or palyra itself, ended by signal n (130 is ctrl-C)"},
	},
	Examples: []command.Example{
		{Line: "palyra exec -- /usr/bin/id", Does: "runs id in a cell: no network, no host files but a read-only /usr"},
		{Line: "palyra exec --egress packages.example -- curl -sS https://packages.example/", Does: "asks, then reaches that host at port 443, and no other"},
		{Line: "palyra exec --workspace . --receipt out.json -- sort names.txt", Does: "asks, because the workspace is writable, then runs what was approved"},
		{Line: "palyra exec --workspace .:staged -- sort -o names.txt names.txt", Does: "changes a layer, and nothing of this host: palyra changes diff shows it"},
		{Line: "palyra exec --tty --timeout 1h --workspace . -- vim notes.txt", Does: "an editor on a terminal of its own, and nothing of yours in its reach"},
		{Line: "palyra exec --no-daemon -- /usr/bin/id", Does: "by the built-in policies, also where a palyrad of yours has others"},
		{Line: "palyra exec --timeout 5s --memory 256M --workspace src:ro -- grep -r TODO .", Does: "reads a directory that it cannot change"},
	},
}

// Workspace is a parsed --workspace.
type Workspace struct {
	Dir      string
	ReadOnly bool
	Staged   bool
	OwnPath  bool
}

// ParseWorkspace reads DIR[:MODE]. MODE is ro or staged, own-path, or both with a comma between.
func ParseWorkspace(s string) (any, error) {
	w := Workspace{Dir: s}
	if i := strings.LastIndexByte(s, ':'); i >= 0 && isMode(s[i+1:]) {
		w.Dir = s[:i]
		seen := make(map[string]bool)
		for word := range strings.SplitSeq(s[i+1:], ",") {
			if seen[word] || word == "rw" || !slices.Contains(workspaceModes, word) {
				return nil, fmt.Errorf("workspace %q: want %s once each behind the colon", s, strings.Join(workspaceModes[1:], ", "))
			}
			seen[word] = true
		}
		w.ReadOnly, w.Staged, w.OwnPath = seen["ro"], seen["staged"], seen["own-path"]
	}
	again := isMode(w.Dir[strings.LastIndexByte(w.Dir, ':')+1:]) && strings.Contains(w.Dir, ":")
	switch {
	case w.Dir == "":
		return nil, fmt.Errorf("workspace %q: want DIR, DIR:ro or DIR:staged", s)
	case again, w.ReadOnly && w.Staged:
		return nil, fmt.Errorf("workspace %q: want one suffix, :ro or :staged", s)
	case strings.ContainsRune(w.Dir, 0):
		return nil, fmt.Errorf("workspace %q: holds a NUL byte", s)
	}
	return w, nil
}

// workspaceModes are the words behind a workspace's colon. A writable one needs none.
var workspaceModes = []string{"rw", "ro", "staged", "own-path"}

// isMode reports whether the end of a workspace was meant as its mode, rightly spelled or not.
func isMode(s string) bool {
	first, _, _ := strings.Cut(s, ",")
	return slices.Contains(workspaceModes, first)
}
