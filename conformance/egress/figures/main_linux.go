// Command figures measures connections through palyra-egress beside direct ones, beside the proxy
// of npm's @anthropic-ai/sandbox-runtime and beside Debian's mitmproxy, in one run.
//
//	make build && go run ./conformance/egress/figures                # three minutes
//	go run ./conformance/egress/figures -rounds 5 -large 256         # a first look
//	go run ./conformance/egress/figures -srt DIR                     # the package's node_modules are in DIR
//	go run ./conformance/egress/figures -only '64 MiB' BIN…          # beside the programs of other folders
//
// All of it is in conformance/world, so the servers are the same and no packet leaves the machine.
// The client is this program in each place: on the host, in a cell with hosts, and on the host with
// one of the proxies, which pass bytes on as they are; sandbox-runtime's judges the name, mitmproxy
// (--ignore-hosts .*) judges nothing. "palyra, CONNECT" is the cell's own proxy. The places take
// turns, in a new order each round, and a ratio is that of the medians of the run. Each program is
// in a session of its own, as a cell's is, since a kernel with autogroups shares processors between
// sessions: with client, proxy and server in one, a proxy on a busy machine looked three times as
// fast.
//
//	connect   a connection, a word each way, the end
//	N MiB     one response of HTTP, by its time
//	at once   500 connections that stay, in two clients of 250: the time until each had its word, and
//	          the memory that palyra-egress or the proxy has more of, for each
//	inspected the same over TLS, where palyra-egress and mitmproxy (without --ignore-hosts) read each
//	          request: a connection with a request for a byte, 64 MiB, and 50 connections that stay
//	large     2 GiB through one call; the receipt must say the same number
//
// The name is looked up before the clock runs, but by the proxies, which do it for each connection.
// Memory is what is resident and no file's (RssAnon). The world's servers and the client have their
// part of each time; on two cores they are in the way of what is between them.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

const (
	host    = "packages.example"
	quick   = "13" // answers a word
	bulk    = "80"
	private = "443"
)

func main() {
	if world.Lending() {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "client" {
		if err := client(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "client:", err)
			os.Exit(1)
		}
		return
	}
	bin := flag.String("bin", "bin", "folder of palyra, palyra-cell and palyra-egress")
	srt := flag.String("srt", "", "folder whose node_modules has @anthropic-ai/sandbox-runtime; default: npm installs it into a new one")
	rounds := flag.Int("rounds", 31, "counted rounds")
	large := flag.Int64("large", 2048, "MiB of the large transfer")
	only := flag.String("only", "", "the one figure that is measured: connect, 1 MiB, 64 MiB, inspected connect or inspected 64 MiB; default: all")
	flag.Parse()
	if err := run(*bin, flag.Args(), *srt, *only, *rounds, *large<<20); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// place is where the client runs.
type place struct {
	name    string
	inspect bool // it's measured for inspected connections
	clients []*remote
	server  func() []int // the processes that pass its bytes; nil: none
}

// remote is a client that waits for commands.
type remote struct {
	in    io.WriteCloser
	out   *bufio.Reader
	where string
}

func (r *remote) do(format string, args ...any) (time.Duration, error) {
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		return 0, fmt.Errorf("%s: %w", r.where, err)
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("%s: %q: %w", r.where, line, err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %s", r.where, strings.TrimSpace(line))
	}
	return time.Duration(ns), nil
}

// setting is what a run has.
type setting struct {
	w    *world.Lent
	dir  string // every user's to read
	bin  string
	self string
	ends []func()
}

func (s *setting) later(f func()) { s.ends = append(s.ends, f) }

// command is one in the world, which ends with this process.
func (s *setting) command(argv ...string) *exec.Cmd {
	argv = s.w.Enter(s.dir, os.Getuid(), os.Getgid(), argv)
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.later(func() {
		if c.Process != nil {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		}
	})
	return c
}

// client starts one, behind a command that brings it to its place, with a proxy or "".
func (s *setting) client(where string, before []string, proxy string, env ...string) (*remote, error) {
	c := s.command(append(before, s.self, "client", proxy)...)
	c.Env = append(c.Env, env...)
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		return nil, err
	}
	r := &remote{in: in, out: bufio.NewReader(out), where: where}
	// Standard input that is longer is passed on as it comes, and not sealed.
	if _, err := io.WriteString(in, strings.Repeat("\n", 1<<20+1)); err != nil {
		return nil, err
	}
	_, err := r.do("hello")
	return r, err
}

func run(bin string, beside []string, srt, only string, rounds int, large int64) error {
	dir, err := os.MkdirTemp("/var/tmp", "palyra-figures-") // a cell has a /tmp of its own
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := &setting{dir: dir, self: filepath.Join(dir, "figures")}
	if s.bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "world"), 0o755), os.Mkdir(filepath.Join(dir, "policy"), 0o755),
		os.WriteFile(filepath.Join(dir, "policy", "all.cedar"), []byte(`@id("all") permit (principal, action, resource);`), 0o644),
		os.WriteFile(s.self, program, 0o755)); err != nil {
		return err
	}
	if s.w, err = world.Lend(filepath.Join(dir, "world")); err != nil {
		return err
	}
	s.w.Set(host, world.Addrs(world.Web))
	defer func() {
		for _, f := range slices.Backward(s.ends) {
			f()
		}
	}()
	all, err := s.places(srt, beside)
	if err != nil {
		return err
	}
	fmt.Printf("%d processors, %s; medians of %d rounds [95 %% bounds]; nice %d, load %s\n\n", runtime.NumCPU(), runtime.Version(), rounds, niceness(), load())
	for _, m := range []struct{ name, command string }{
		{"connect", "connect"}, {"1 MiB", "bulk 1048576"}, {"64 MiB", "bulk 67108864"},
		{"inspected connect", "tls 1"}, {"inspected 64 MiB", "tls 67108864"},
	} {
		places := slices.DeleteFunc(slices.Clone(all), func(p *place) bool { return p.name != "direct" && p.inspect != strings.HasPrefix(m.name, "inspected") })
		if only != "" && only != m.name {
			continue
		}
		if err := turns(places, m.name, m.command, rounds); err != nil {
			return err
		}
		if only != "" {
			return nil
		}
	}
	if only != "" {
		return fmt.Errorf("no figure %q", only)
	}
	if err := atOnce(all); err != nil {
		return err
	}
	return s.largeOnes(all, large)
}

// turns has each place do the same, in a new order each round.
func turns(places []*place, name, command string, rounds int) error {
	times := make(map[*place][]time.Duration)
	for round := range rounds + 2 {
		for _, i := range rand.Perm(len(places)) {
			took, err := places[i].clients[0].do("%s", command)
			if err != nil {
				return err
			}
			if round >= 2 {
				times[places[i]] = append(times[places[i]], took)
			}
		}
	}
	direct := middle(times[places[0]])
	for _, p := range places {
		d := times[p]
		m := middle(d)
		lo, hi := bounds(d)
		fmt.Printf("%-17s %-26s %10s [%s, %s]  %.2f x direct\n", name, p.name, short(m), short(lo), short(hi), float64(m)/float64(direct))
	}
	fmt.Println()
	return nil
}

func middle(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

// bounds are those of the median, by ranks.
func bounds(d []time.Duration) (lo, hi time.Duration) {
	s := slices.Sorted(slices.Values(d))
	n := float64(len(s))
	half := 0.98 * sqrt(n)
	return s[max(0, int(n/2-half))], s[min(len(s)-1, int(n/2+half))]
}

func sqrt(x float64) float64 {
	r := x
	for range 30 {
		r = (r + x/r) / 2
	}
	return r
}

func short(d time.Duration) string { return d.Round(max(time.Microsecond, d/1000)).String() }

// each is how many connections a client has at once: a call may have 256.
const each = 250

// eachInspected is as many, of which a principal has 64.
const eachInspected = 50

// atOnce has two clients of each place hold connections, and looks at what that takes.
func atOnce(places []*place) error {
	for _, p := range places {
		command, each := "hold", each
		if p.inspect {
			command, each = "hold-tls", eachInspected
		}
		before := p.memory()
		began := time.Now()
		result := make(chan error)
		for _, c := range p.clients {
			go func() {
				_, err := c.do("%s %d", command, each)
				result <- err
			}()
		}
		var err error
		for range p.clients {
			err = errors.Join(err, <-result)
		}
		took := time.Since(began)
		if err != nil {
			return err
		}
		text := ""
		if p.server != nil {
			text = fmt.Sprintf(", %.1f KiB each, %.1f MiB before", float64(p.memory()-before)/float64(each*len(p.clients))/1024, float64(before)/(1<<20))
		}
		fmt.Printf("%-17s %-26s %10s%s\n", fmt.Sprintf("%d once", each*len(p.clients)), p.name, short(took), text)
		for _, c := range p.clients {
			if _, err := c.do("drop"); err != nil {
				return err
			}
		}
	}
	fmt.Println()
	return nil
}

func (p *place) memory() (sum int64) {
	if p.server == nil {
		return 0
	}
	for _, pid := range p.server() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), "\nRssAnon:")
		if f := strings.Fields(rest); len(f) > 0 {
			kib, _ := strconv.ParseInt(f[0], 10, 64)
			sum += kib << 10
		}
	}
	return sum
}

// largeOnes passes n bytes directly and through one call, whose receipt must have them.
func (s *setting) largeOnes(places []*place, n int64) error {
	for _, p := range places[:2] {
		took, err := p.clients[0].do("bulk %d", n)
		if err != nil {
			return err
		}
		fmt.Printf("%-17s %-26s %10s  %.0f MiB/s\n", fmt.Sprintf("%d MiB", n>>20), p.name, short(took), float64(n)/(1<<20)/took.Seconds())
	}
	receipt := filepath.Join(s.dir, "receipt.json")
	call := s.palyra("large", "--receipt", receipt)
	c := s.command(append(call, s.self, "client", "-large", strconv.FormatInt(n, 10))...)
	if err := c.Run(); err != nil {
		return fmt.Errorf("the large call: %w", err)
	}
	out, err := s.command(filepath.Join(s.bin, "palyra"), "attest", "show", "--json", receipt).Output()
	if err != nil {
		return fmt.Errorf("the large call's receipt: %w", err)
	}
	var shown struct {
		Statement struct {
			Predicate struct {
				Evidence struct {
					Egress evidence.Egress `json:"egress"`
				} `json:"evidence"`
			} `json:"predicate"`
		} `json:"statement"`
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		return fmt.Errorf("the large call's receipt: %w", err)
	}
	e := shown.Statement.Predicate.Evidence.Egress
	if head := e.Received - n; head <= 0 || head > 1<<10 {
		return fmt.Errorf("the receipt of %d bytes has %d", n, e.Received)
	}
	fmt.Printf("in a call of its own; its receipt has %d bytes received\n", e.Received)
	return nil
}

func niceness() int {
	n, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - n
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return cmp.Or(strings.Join(strings.Fields(string(b))[:3], " "), "unknown")
}
