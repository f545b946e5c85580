package diagnosis

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"palyra/call"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/formats/diagnosis.md")

const page = "../../docs/formats/diagnosis.md"

var limits = call.Limits{Wall: 1500 * time.Millisecond, CPU: 1500 * time.Millisecond, Memory: 64 << 20, PIDs: 8, Output: 1000,
	FileSize: 1 << 20, OpenFiles: 1024, Disk: 256 << 20, Inodes: 16 << 10}

// TestOf has a case for each row, and for what no row may take.
func TestOf(t *testing.T) {
	wrote := func(text string) Seen {
		return Seen{Outcome: "executed", Observed: true, Code: 1, Limits: limits, Stderr: []byte(text)}
	}
	ended := func(s Seen) Seen {
		s.Observed, s.Limits, s.Code = true, limits, -1
		return s
	}
	status := func(n int) Seen { return Seen{Outcome: "executed", Observed: true, Code: n, Limits: limits} }
	with := func(s Seen, f func(*Seen)) Seen {
		f(&s)
		return s
	}
	used := make(map[string]bool)
	for _, c := range []struct {
		name string
		seen Seen
		want string // code and basis, "" for none
		text string // part of the sentence
	}{
		{"wall", ended(Seen{Outcome: "timed_out", LimitHit: "wall", Signal: 9}), "time_limit observed", "limit of 1.5s"},
		{"cpu", ended(Seen{Outcome: "killed", LimitHit: "cpu", Signal: 24}), "cpu_limit observed", "SIGXCPU ended the program, the signal for processor time beyond the limit of 2s"},
		{"cpu, deaf", ended(Seen{Outcome: "killed", LimitHit: "cpu", Signal: 9}), "cpu_limit observed", "SIGKILL ended"},
		{"a signal of its own", ended(Seen{Outcome: "executed", Signal: 24}), "", ""},
		{"uncounted", ended(Seen{Outcome: "killed", LimitHit: "uncounted", Signal: 9}), "uncounted observed", "kept Palyra from counting"},
		{"memory", ended(Seen{Outcome: "killed", LimitHit: "memory", Signal: 9}), "memory_limit observed", "limit of 64 MiB"},
		{"disk, with caches", ended(Seen{Outcome: "killed", LimitHit: "disk", Signal: 9, Caches: []string{"go", "home"}}), "disk_limit observed", "or a cache (go, home) too much"},
		{"disk", ended(Seen{Outcome: "killed", LimitHit: "disk", Signal: 9}), "disk_limit observed", "256 MiB"},
		{"file", ended(Seen{Outcome: "executed", Signal: 25}), "file_size_limit observed", "1 MiB"},
		{"foreign call", ended(Seen{Outcome: "executed", Signal: 31}), "foreign_syscall observed", ""},
		{"kill", ended(Seen{Outcome: "executed", Signal: 9}), "killed observed", ""},
		{"kill from outside", ended(Seen{Outcome: "killed", Signal: 9}), "killed observed", ""},
		{"crash", ended(Seen{Outcome: "executed", Signal: 11}), "signal observed", "SIGSEGV ended"},
		{"abort with a reason", ended(Seen{Outcome: "executed", Signal: 6, Stderr: []byte("terminate called after throwing an instance of 'std::bad_alloc'")}), "memory_limit guess", ""},
		{"output", with(wrote(""), func(s *Seen) { s.Cut = 5 }), "output_limit observed", "5 bytes beyond the output limit of 1000 B"},
		{"a guess before dropped output", with(wrote("Read-only file system"), func(s *Seen) { s.Cut = 5 }), "read_only guess", ""},

		{"a child's cpu", status(152), "cpu_limit guess", guessFromStatus},
		{"a child's file", status(153), "file_size_limit guess", guessFromStatus},
		{"a child's foreign call", status(159), "foreign_syscall guess", guessFromStatus},
		{"a child's kill", status(137), "killed guess", guessFromStatus},

		{"bash fork", wrote("bash: fork: retry: Resource temporarily unavailable"), "processes_limit guess", "limit of 8"},
		{"python thread", wrote("RuntimeError: can't start new thread"), "processes_limit guess", ""},
		{"a read that would block", wrote("read: Resource temporarily unavailable"), "", ""},
		{"python file", wrote("OSError: [Errno 27] File too large"), "file_size_limit guess", "1 MiB"},
		{"python memory", wrote("Traceback\nMemoryError\n"), "memory_limit guess", "64 MiB"},
		{"open files", wrote("accept: Too many open files"), "open_files_limit guess", "1024"},
		{"a script of node's", wrote("Error: ENOENT: no such file or directory, lstat '/memfd:palyra-script (deleted)'"), "script_by_path guess", "node ./x.js"},
		{"full", wrote("cp: error writing '/tmp/x': No space left on device"), "disk_full guess", "256 MiB or 16384 files"},
		{"a host", with(wrote("curl: (6) Could not resolve host: b.example"), func(s *Seen) { s.Denied = denials }), "EgressDenied observed", "asked for b.example:8443, which"},
		{"a private one", with(wrote("curl: (6) Could not resolve host: c.example"), func(s *Seen) { s.Denied = denials[:2] }), "EgressDenied observed", "asked for c.example:443, which is in a private network"},
		{"one in the clear", with(wrote("dial tcp"), func(s *Seen) { s.Denied, s.Networks = denials[:2], true }), "EgressDenied observed", "asked for c.example:443, which is in no network that the call names"},
		{"an unknown one", with(wrote("curl: (6) Could not resolve host: d.example"), func(s *Seen) { s.Denied = []Denied{{"d.example", 0, "no_name", ""}} }), "name_unresolved observed", "knows no address of d.example"},
		{"one without an answer", with(wrote("curl: (6) Could not resolve host: d.example"), func(s *Seen) { s.Denied = []Denied{{"d.example", 0, "no_answer", ""}} }), "name_unresolved observed", "did not answer for d.example"},
		{"one too many", with(wrote("curl: (56) Connection reset by peer"), func(s *Seen) {
			s.Denied = []Denied{{"a.example", 443, "limit", "evil"}, {"b.example", 443, "limit", "rate:10/s"}}
		}), "EgressDenied observed", "asked for b.example:443 beyond its rule's rate of 10/s"},
		{"too many in all", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 0, "limit", "query_rate"}} }), "EgressDenied observed", "beyond the DNS queries that a call may send in a second"},
		{"too many bytes", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 443, "limit", "received:10MiB"}} }), "EgressDenied observed", "asked for a.example:443 beyond the 10MiB that its rule lets it get"},
		{"too long a body", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 443, "limit", "body:10"}} }), "EgressDenied observed", "asked for a.example:443 beyond the 10 bytes that its rule lets a request's body have"},
		{"too many bytes of all", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 443, "limit", "sent"}} }), "EgressDenied observed", "beyond the bytes that a call may send"},
		{"a bound in another spelling", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 443, "limit", "received:10240KiB"}} }), "", ""},
		{"a limit that isn't known", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"a.example", 0, "limit", "rate:10/s; rm"}} }), "", ""},
		{"no name at all", with(wrote("Could not resolve host"), func(s *Seen) { s.Denied = denials[:1] }), "no_network guess", ""},
		{"a host, but no observed end", func() Seen { s := wrote(""); s.Observed, s.Denied = false, denials; return s }(), "", ""},
		{"ssh's name", with(wrote("ssh: Could not resolve hostname c.example: Name or service not known\nfatal: Could not read from remote repository."), func(s *Seen) { s.Denied = denials }), "no_ssh_key guess", "use https://c.example/"},
		{"ssh's name, which is known", with(wrote("ssh: Could not resolve hostname B.example: Name or service not known\nfatal: Could not read from remote repository."), func(s *Seen) { s.Denied = denials }), "no_ssh_key guess", "use https://b.example/, with"},
		{"ssh's host of the call", with(wrote("ssh: connect to host b.example port 22: Connection refused"), func(s *Seen) { s.Hosts = []string{"*.example.org:443", "b.example:443 rate:1/s"} }), "no_ssh_key guess", "https://b.example/"},
		{"ssh's key of a known host", with(wrote("git@b.example: Permission denied (publickey)."), func(s *Seen) { s.Hosts = []string{"b.example:443"} }), "no_ssh_key guess", "https://b.example/"},
		{"git's argument", with(wrote("Host key verification failed."), func(s *Seen) { s.Argv = []string{"/usr/bin/git", "clone", "git@Git.example:team/lib.git"} }), "no_ssh_key guess", "https://git.example/"},
		{"the one SSH port of the call", with(wrote("kex_exchange_identification: read: Connection reset by peer"), func(s *Seen) { s.Hosts = []string{"a.example:443", "b.example:22"} }), "no_ssh_key guess", "https://b.example/"},
		{"a reset before its greeting", with(wrote("Connection reset by UNKNOWN port -1\nfatal: Could not read from remote repository."), func(s *Seen) { s.Hosts = []string{"b.example:22"} }), "no_ssh_key guess", "https://b.example/"},
		{"curl's reset", wrote("curl: (56) Recv failure: Connection reset by peer"), "", ""},
		{"one of two", with(wrote("kex_exchange_identification: read: Connection reset by peer"), func(s *Seen) { s.Hosts = []string{"a.example:22", "b.example:22"} }), "no_ssh_key guess", "use the HTTPS remote"},
		{"git's URL", with(wrote("Host key verification failed."), func(s *Seen) { s.Argv = []string{"git", "fetch", "ssh://git@git.example:2222/lib.git"} }), "no_ssh_key guess", "https://git.example/"},
		{"SSH's port of a name", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"b.example", 22, "not_listed", ""}} }), "EgressDenied observed", "asked for b.example:22; git over SSH has no key in a call: use the HTTPS remote https://b.example/"},
		{"SSH's port of an address", with(wrote(""), func(s *Seen) { s.Denied = []Denied{{"192.0.2.7", 22, "not_listed", ""}} }), "EgressDenied observed", "asked for 192.0.2.7:22, which the call does not name among its hosts"},
		{"ssh's port", wrote("ssh: connect to host b.example port 22: Connection refused"), "no_ssh_key guess", ""},
		{"ssh's host", wrote("Host key verification failed."), "no_ssh_key guess", ""},
		{"ssh's key", wrote("git@b.example: Permission denied (publickey)."), "no_ssh_key guess", ""},
		{"git", wrote("fatal: unable to access 'https://example.com/x/': Could not resolve host: example.com"), "no_network guess", ""},
		{"node", wrote("Error: listen EAFNOSUPPORT: address family not supported ::\n    at Server"), "no_network guess", ""},
		{"go", wrote("dial tcp: lookup example.com"), "no_network guess", ""},
		{"terminal", wrote("stty: 'standard input': Inappropriate ioctl for device"), "no_terminal guess", ""},
		{"tty", wrote("bash: line 1: /dev/tty: Read-only file system"), "no_terminal guess", ""},
		{"its own terminal", with(wrote("vt: Inappropriate ioctl for device"), func(s *Seen) { s.TTY = true }), "", ""},
		{"device", wrote("cat: /dev/kvm: No such file or directory"), "no_device guess", ""},
		{"shared memory", wrote("cat: /dev/shm/x: No such file or directory"), "", ""},
		{"one device of two", wrote("cp: /dev/zero to /dev/fuse: Permission denied"), "no_device guess", ""},
		{"a socket", wrote("failed to connect to the bus"), "", ""},
		{"curl", wrote("curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms"), "no_network guess", ""},
		{"unshare", wrote("unshare: unshare failed: Operation not permitted"), "no_namespaces guess", ""},
		{"bwrap", wrote("bwrap: No permissions to create new namespace"), "no_namespaces guess", ""},
		{"mount", wrote("mount: /mnt: must be superuser to use mount."), "no_namespaces guess", ""},
		{"strace", wrote("strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted"), "no_tracing guess", ""},
		{"chown", wrote("chown: changing ownership of '/tmp': Invalid argument"), "no_privileges guess", ""},
		{"read-only", wrote("touch: cannot touch 'f': Read-only file system"), "read_only guess", ""},
		{"host path", with(wrote("cat: /srv/Project/x: No such file or directory"), func(s *Seen) { s.Workspace = "/srv/Project" }), "host_path guess", ""},
		{"home", wrote("cat: /tmp/.cargo/config: No such file or directory"), "empty_home guess", ""},
		{"not shown", wrote("cat: /srv/x/x: No such file or directory"), "not_shown guess", ""},
		{"quoted path", wrote("ls: cannot access '/opt/x': No such file or directory"), "not_shown guess", ""},
		{"missing in /usr", wrote("cat: /usr/share/x: No such file or directory"), "", ""},
		{"a relative path", wrote("cat: src/home/x: No such file or directory"), "", ""},
		{"not shown, in place", with(wrote("cat: /srv/x/x: No such file or directory"), func(s *Seen) { s.InPlace = true }), "", ""},
		{"not permitted", wrote("cat: /root/x: Permission denied"), "not_permitted guess", ""},
		{"a script without x", wrote("bash: ./x.sh: Permission denied"), "", ""},
		{"workspace without x", wrote("bash: /workspace/x.sh: Permission denied"), "", ""},
		{"program", wrote("bash: line 1: frob: command not found"), "program_missing guess", ""},

		{"env", with(wrote("env: 'frob': No such file or directory"), func(s *Seen) { s.Code = 127 }), "program_missing guess", ""},
		{"dash", with(wrote("sh: 1: frob: not found"), func(s *Seen) { s.Code = 127 }), "program_missing guess", ""},
		{"a page", wrote("404: not found"), "", ""},

		{"success", Seen{Outcome: "executed", Observed: true, Stderr: []byte("Read-only file system")}, "", ""},
		{"denied", Seen{Outcome: "denied", Observed: true, Code: -1, LimitHit: "memory"}, "", ""},
		{"unknown", Seen{Outcome: "outcome_unknown", Observed: true, Code: -1, Signal: 9}, "", ""},
		{"nothing known", wrote("assertion failed"), "", ""},
		{"canceled", ended(Seen{Outcome: "killed", LimitHit: "canceled", Signal: 9, Stderr: []byte("Read-only file system")}), "", ""},
		{"an end that was only reported", Seen{Outcome: "executed", Code: -1, Signal: 25}, "", ""},
		{"a built-in tool's text", with(wrote("Read-only file system"), func(s *Seen) { s.BuiltIn = true }), "", ""},
		{"beyond the tail", wrote("Read-only file system\n" + strings.Repeat("x", TailSize)), "", ""},
		{"in the tail", wrote(strings.Repeat("x", 1<<20) + "\nRead-only file system\n"), "read_only guess", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Of(c.seen)
			got, text := "", ""
			if d != nil {
				got, text = d.Code+" "+d.Basis, d.Text
				used[got] = true
				if strings.Contains(text, "(a guess from the program's ") != (d.Basis == Guess) {
					t.Errorf("%s: %q", d.Basis, text)
				}
			}
			if got != c.want || !strings.Contains(text, c.text) {
				t.Errorf("got %q, %q; want %q, …%q…", got, text, c.want, c.text)
			}
		})
	}
	for _, r := range Rows() {
		if !used[r.Code+" "+r.Basis()] {
			t.Errorf("no case for %s %s", r.Code, r.Basis())
		}
	}
}

// TestRemoteHost: a remote over SSH has a host, another text none.
func TestRemoteHost(t *testing.T) {
	for text, want := range map[string]string{
		"git@git.example:team/lib.git": "git.example", "x@y@git.example:lib": "git.example", "ssh://git.example/lib": "git.example", "ssh://git@GIT.example:22/lib": "git.example",
		"git+ssh://git@git.example/lib": "git.example", "https://git@git.example/lib": "", "git.example:lib": "", "./a@b:c": "", "git@[::1]:lib": "", "ssh://[2001:db8::1]:22/lib": "",
		"git@192.0.2.7:lib": "", "ssh://evil;text/lib": "", "ssh://": "", "a@b": "", "--x=a@b.example:c": "", "": "",
	} {
		if got := remoteHost(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// denials are what a program may have asked for: the first is text in place of a name.
var denials = []Denied{{"evil; --egress all", 443, "not_listed", ""}, {"c.example", 0, "forbidden", ""}, {"B.example.", 8443, "not_listed", ""}}

// TestDeniedFlag: the flag is the one that would let the program reach the host.
func TestDeniedFlag(t *testing.T) {
	for want, d := range map[string]Denied{
		"--egress b.example:8443":       {"b.example", 8443, "not_listed", ""},
		"--egress b.example:443":        {"b.example", 0, "not_listed", ""},
		"--egress [2001:db8::1]:443":    {"2001:db8::1", 443, "not_listed", ""},
		"--egress 192.0.2.7:22":         {"192.0.2.7", 22, "not_listed", ""},
		"--egress xn--bcher-kva.org:80": {"XN--bcher-kva.org", 80, "not_listed", ""},
	} {
		got := Of(Seen{Outcome: "executed", Observed: true, Code: 6, Denied: []Denied{d}})
		if got == nil || got.Flag != want || !strings.HasSuffix(got.ForExec(), "; "+want+" changes it") || !strings.HasSuffix(got.ForCall(), "; egress_hosts in the tool's input changes it") {
			t.Errorf("got %+v, want %s", got, want)
		}
	}
}

// TestBuiltIn: the limits of a built-in tool are not the caller's to change.
func TestBuiltIn(t *testing.T) {
	s := Seen{Outcome: "timed_out", Observed: true, LimitHit: "wall", Limits: limits}
	if d := Of(s); d.Flag == "" || d.Input == "" {
		t.Errorf("no setting in %+v", d)
	}
	s.BuiltIn = true
	if d := Of(s); d == nil || d.Flag+d.Input+d.Config != "" {
		t.Errorf("got %+v", d)
	}
}

// TestObservedNeedsEvidence: with no fact of the kernel's nothing is observed, whatever the
// program prints and returns.
func TestObservedNeedsEvidence(t *testing.T) {
	every := "Killed\nlimit_hit wall cpu memory disk\nSIGXFSZ SIGSYS SIGKILL\n"
	for code := range 256 {
		for _, s := range []Seen{
			{Outcome: "executed", Observed: true, Code: code, Limits: limits, Stderr: []byte(every)},
			{Outcome: "executed", Code: code, Signal: 9, LimitHit: "memory", Cut: 9, Limits: limits, Stderr: []byte(every)},
		} {
			if d := Of(s); d != nil && (d.Basis != Guess || !strings.Contains(d.Text, "(a guess from the program's")) {
				t.Errorf("%+v: %+v", s, d)
			}
		}
	}
}

func TestRows(t *testing.T) {
	for _, r := range Rows() {
		kinds := 0
		for _, is := range []bool{r.observed != nil, r.status != 0, r.text != nil} {
			if is {
				kinds++
			}
		}
		if kinds != 1 || r.Code == "" || r.When == "" || r.Text == "" || strings.HasSuffix(r.Text, ".") || len(r.Text) > 110 {
			t.Errorf("row %+v", r)
		}
		if strings.Contains(r.Text, "{limit}") != (r.limit != nil) {
			t.Errorf("%s: the sentence and the limit disagree", r.Code)
		}
	}
}

// sentences are the texts that guesses can have: rows' with placeholders filled by our own numbers.
func sentences() *regexp.Regexp {
	var all []string
	for _, r := range Rows() {
		s := regexp.QuoteMeta(r.Text)
		s = strings.ReplaceAll(s, regexp.QuoteMeta("{ssh}"), `b\.example`)
		for _, p := range []string{"limit", "cut", "signal"} {
			s = strings.ReplaceAll(s, regexp.QuoteMeta("{"+p+"}"), `[0-9A-Za-z. ]+`)
		}
		all = append(all, s)
	}
	return regexp.MustCompile(`^(` + strings.Join(all, "|") + `) \(a guess from the program's (error text|exit status)\)$`)
}

func FuzzOf(f *testing.F) {
	f.Add([]byte("bash: fork: retry: Resource temporarily unavailable"), 1, "/srv/x")
	f.Add([]byte("cat: /srv/x/y: No such file or directory\r\n\x1b[2J\u202e"), 1, "/srv/x")
	f.Add([]byte("\xff\xfe/\x00'/"), 153, "")
	f.Add([]byte("ssh: connect to host b.example port 22: Connection refused"), 128, "")
	f.Add([]byte("{limit} {cut} {signal} Permission denied /"), 2, "/")
	known := sentences()
	f.Fuzz(func(t *testing.T, stderr []byte, code int, workspace string) {
		d := Of(Seen{Outcome: "executed", Observed: true, Code: code, Limits: limits, Workspace: workspace, Stderr: stderr, Hosts: []string{"b.example:443"}})
		if d == nil {
			return
		}
		if d.Basis != Guess {
			t.Errorf("%q made %+v", stderr, d)
		}
		if !known.MatchString(d.Text) {
			t.Errorf("%q is no sentence of ours", d.Text)
		}
	})
}

// TestPage prints the table into the page that shows it.
func TestPage(t *testing.T) {
	var b strings.Builder
	example, err := json.Marshal(Of(Seen{Outcome: "executed", Observed: true, Signal: 25, Limits: limits}))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "```json\n%s\n```\n\n", example)
	for _, r := range Rows() {
		fmt.Fprintf(&b, "- `%s` (%s): %s.\n  Applies: %s.\n", r.Code, r.Basis(), regexp.MustCompile(`\{\w+\}`).ReplaceAllString(r.Text, "N"), r.When)
		var set []string
		for _, s := range []struct{ before, name string }{{"", r.Flag}, {"input ", r.Input}, {"", r.Config}} {
			if s.name != "" {
				set = append(set, s.before+"`"+s.name+"`")
			}
		}
		if set != nil {
			fmt.Fprintf(&b, "  Setting: %s.\n", strings.Join(set, ", "))
		}
	}
	doc, err := os.ReadFile(filepath.FromSlash(page))
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: diagnosis -->\n", "<!-- end -->\n"
	pre, rest, ok := bytes.Cut(doc, []byte(begin))
	_, post, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatal("no markers")
	}
	got := string(pre) + begin + b.String() + end + string(post)
	switch {
	case got == string(doc):
	case *update:
		if err := os.WriteFile(filepath.FromSlash(page), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is stale: go test ./call/diagnosis -run TestPage -update", page)
	}
}
