package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"palyra/conformance/world"
)

// battery is one run over the table. Owned by run.
type battery struct {
	dir    string // stages, homes and binaries; beneath /var/tmp, which a cell does not show
	attack string
	// spender is the attack program with the probes that speak TLS, built on the first call.
	spender func() (string, error)
	palyra  string // binary under test
	sandbox sandbox
	uid     int // of the unprivileged user
	verbose bool
	modes   []string
	turn    int          // see config
	alone   bool         // there is one user
	known   expectations // attempts that prove nothing
	skips   skips
	// bare leaves out cases that need a workspace: without the template there is no place
	// for one.
	bare bool
	// inWorld makes the world on the first call: a small Internet in network namespaces, for the
	// cases that reach hosts. Other attempts run in the host's network.
	inWorld func() (*world.Lent, error)

	// value is the secret that cases 130 and 131 put into requests.
	value string

	mu sync.Mutex
	// vaults are the state directories whose vault has it; guarded by mu.
	vaults map[string]bool
	// kept holds controls by case if they serve several runs, else it is nil; guarded by
	// mu.
	kept map[string]map[string]*observation
}

// controlsOf returns the controls made of a case.
func (b *battery) controlsOf(c *attackCase) map[string]*observation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept == nil {
		return make(map[string]*observation)
	}
	if b.kept[c.id()] == nil {
		b.kept[c.id()] = make(map[string]*observation)
	}
	return b.kept[c.id()]
}

// plays reports whether it's the user's turn. Two turns that follow each other make all attempts.
// A case that runs alone has its modes in one turn: its control takes longest, and is made
// once. Not one that proves nothing as one of the users.
func (b *battery) plays(c *attackCase, u *user, mode string) bool {
	if b.turn < 0 || b.alone {
		return true
	}
	h := fnv.New32a()
	h.Write([]byte(c.id()))
	if !c.alone || b.known.ofUser(c) {
		h.Write([]byte(" " + mode))
	}
	roots := (h.Sum32()>>24+uint32(b.turn))%2 == 0
	return roots == (u.name == "root")
}

// The modes of a tier C cell.
const (
	modeCold = "cold" // built for the call
	modeWarm = "warm" // was waiting
	modeVoid = "void" // built for the call, in the network namespace that all share
	modeLoop = "loop" // built for the call, with a loopback interface that is up
	// modeStaged: built for the call, whose workspace is staged.
	modeStaged = "staged"
	// modeSession: built for the call, in its session's network, beside another call of it.
	modeSession = "session"
	// modeTTY: built for the call, whose program has a terminal of its own.
	modeTTY = "tty"
	// modeEgress: built for the call, in a network where palyra-egress answers for one host, which
	// nothing here asks for.
	modeEgress = "egress"
	// modePreflight: built for the call, in the host's network, with one port for TCP that no case
	// uses.
	modePreflight = "preflight"
	// modeGateway: the cell of an MCP server behind palyrad, whose tool makes the attempt.
	modeGateway = "gateway"
)

const (
	egressHost = "packages.example:443"
	// preflightHost needs no look-up.
	preflightHost = "192.0.2.1:1"
)

// modes are all of them.
var modes = []string{modeCold, modeWarm, modeVoid, modeLoop, modeStaged, modeSession, modeTTY, modeEgress, modePreflight, modeGateway}

// record is the result of one case, tier and user.
type record struct {
	Case     string `json:"case"`
	Name     string `json:"name"`
	Tier     string `json:"tier"`
	Mode     string `json:"mode"`
	User     string `json:"user"`
	Control  string `json:"control"` // outcome outside
	Inside   string `json:"inside"`  // outcome inside
	Verdict  string `json:"verdict"`
	Expected bool   `json:"expected"` // an inconclusive one that is on the list
	Detail   string `json:"detail"`
	Millis   int64  `json:"duration_ms"` // of the run inside
}

// results is the file that -out names.
type results struct {
	Run           int      `json:"run"`
	Passed        int      `json:"passed"`
	Inconclusive  int      `json:"inconclusive"`
	Open          int      `json:"open"`
	Hung          int      `json:"hung"`
	Failed        int      `json:"failed"`
	NotApplicable int      `json:"not_applicable"`
	Unexpected    int      `json:"unexpected_inconclusive"`
	Sandbox       string   `json:"sandbox"`
	Kernel        string   `json:"kernel"`
	Table         string   `json:"table"` // digest of the case table
	Records       []record `json:"cases"`
}

func run(c config) (bool, error) {
	expected, err := loadExpect()
	if err != nil {
		return false, err
	}
	b, users, err := setup(c)
	if err != nil {
		return false, err
	}
	if c.keep {
		fmt.Println("stage:", b.dir)
	} else {
		defer os.RemoveAll(b.dir)
	}
	b.known = expected
	res := results{Sandbox: c.sandbox, Kernel: kernel(), Table: tableDigest(cases())}
	order := make(map[string]int) // of the table, since cases end as they come
	for i, ac := range cases() {
		order[ac.id()] = i
	}
	var beside, waiting, alone pool
	beside.atOnce, waiting.atOnce, alone.atOnce = max(1, c.jobs), 1, 1
	beside.lazy, waiting.lazy = true, true
	for _, ac := range cases() {
		if !selected(c.cases, &ac) {
			continue
		}
		p := &beside
		switch {
		case ac.alone:
			p = &alone
		case ac.waits:
			p = &waiting
		}
		for _, u := range users {
			p.jobs = append(p.jobs, job{ac, u})
		}
	}
	add := func(rs []record) {
		for i := range rs {
			res.add(&rs[i], expected)
		}
	}
	b.work(c.tiers, add, beside, waiting)
	b.work(c.tiers, add, alone)
	b.again(&res, slices.Concat(beside.jobs, waiting.jobs, alone.jobs), expected)
	slices.SortStableFunc(res.Records, func(x, y record) int { return order[x.Case] - order[y.Case] })
	fmt.Printf("%d run, %d passed, %d inconclusive (%d not expected), %d open, %d hung, %d failed; %d not applicable\n",
		res.Run, res.Passed, res.Inconclusive, res.Unexpected, res.Open, res.Hung, res.Failed, res.NotApplicable)
	if c.out != "" {
		if err := writeJSON(c.out, &res); err != nil {
			return false, err
		}
	}
	return res.Run > 0 && res.Passed > 0 && res.Open+res.Hung+res.Failed+res.Unexpected == 0, nil
}

// selected reports whether the command line asks for the case.
func selected(only []string, c *attackCase) bool {
	return len(only) == 0 || slices.Contains(only, strconv.Itoa(c.number)) || slices.Contains(only, c.id())
}

// add keeps a record, counts it and reports what is wrong.
func (r *results) add(rec *record, expected expectations) {
	rec.Expected = rec.Verdict == inconclusive && expected.covers(rec)
	r.count(rec, 1)
	r.Records = append(r.Records, *rec)
	if !rec.fine() {
		fmt.Printf("%-14s %s\n", strings.ToUpper(rec.Verdict), rec)
	}
}

// count adds n records like rec, or takes them away.
func (r *results) count(rec *record, n int) {
	switch rec.Verdict {
	case passed:
		r.Passed += n
	case open:
		r.Open += n
	case hung:
		r.Hung += n
	case failed:
		r.Failed += n
	case inconclusive:
		r.Inconclusive += n
		if !rec.Expected {
			r.Unexpected += n
		}
	case notApplicable:
		r.NotApplicable += n
		return
	}
	r.Run += n
}

// fine reports whether nothing has to be mended.
func (r *record) fine() bool {
	return r.Verdict == passed || r.Verdict == notApplicable || r.Expected
}

func (r *record) String() string {
	return fmt.Sprintf("%s %s, tier %s, %s, %s: %s", r.Case, r.Name, r.Tier, r.Mode, r.User, r.Detail)
}

// A case that chance made fail passes againTimes alone. More than againMost are no chance.
const againMost, againTimes = 3, 5

// again makes attempts again, alone, that failed or had no control. An open or a hung one is
// final.
func (b *battery) again(res *results, jobs []job, expected expectations) {
	if res.Failed+res.Unexpected > againMost || res.Open+res.Hung > 0 {
		return
	}
	for i := range res.Records {
		rec := &res.Records[i]
		if rec.fine() {
			continue
		}
		at := slices.IndexFunc(jobs, func(j job) bool { return j.c.id() == rec.Case && j.u.name == rec.User })
		if second := b.steady(&jobs[at], rec, expected); second != nil {
			fmt.Printf("%-14s failed once, passed %d times alone: %s\n", "UNSTEADY", againTimes, rec)
			res.count(rec, -1)
			res.count(second, 1)
			*rec = *second
		}
	}
}

// steady returns the last of several new attempts like rec if all were fine, else nil.
func (b *battery) steady(j *job, rec *record, expected expectations) *record {
	u := *j.u
	u.state += "-again"
	var last record
	for range againTimes {
		last, _ = b.try(&j.c, &u, rec.Tier, rec.Mode, nil)
		last.Expected = last.Verdict == inconclusive && expected.covers(&last)
		if !last.fine() {
			fmt.Printf("%-14s %s\n", "AGAIN", &last)
			return nil
		}
	}
	return &last
}

// job is a case for one user: at every tier and in every mode, with its controls.
type job struct {
	c attackCase
	u *user
}

// pool is jobs that are done so many at once.
type pool struct {
	jobs   []job
	atOnce int
	lazy   bool // see lazily
}

// lazily is the slack (PR_SET_TIMERSLACK(2const)) of attempts that aren't made alone: the
// kernel may wake their programs so much later than asked. Most of their work is to start Go
// programs, which sleep for 3 and 20 µs again and again; it takes a sixth less of a virtual
// machine's processor so.
const lazily = time.Millisecond

// work does the jobs of pools beside each other, and hands over their results.
func (b *battery) work(tiers []string, add func([]record), pools ...pool) {
	var mu sync.Mutex // guards add
	var wg sync.WaitGroup
	for number, p := range pools {
		next := make(chan job)
		wg.Go(func() {
			defer close(next)
			for _, j := range p.jobs {
				next <- j
			}
		})
		for i := range p.atOnce {
			wg.Go(func() {
				if p.lazy {
					runtime.LockOSThread() // it ends with the goroutine; children have its slack
					_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(lazily), 0, 0, 0)
				}
				for j := range next {
					u := *j.u // a state directory serves one at a time
					u.state += fmt.Sprintf("-%d-%d", number, i)
					rs := b.do(&j.c, &u, tiers)
					mu.Lock()
					add(rs)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
}

// do makes the attempts of one case and user. A control is made once, unless the
// tiers differ in it.
func (b *battery) do(c *attackCase, u *user, tiers []string) []record {
	var out []record
	controls := b.controlsOf(c)
	for _, tier := range tiers {
		key := ""
		if c.perTier {
			key = tier
		}
		for _, mode := range b.modesOf(tier) {
			if !b.plays(c, u, mode) {
				continue
			}
			r, control := b.try(c, u, tier, mode, controls[key])
			controls[key] = control
			out = append(out, r)
		}
	}
	return out
}

// modesOf returns the modes in which a tier runs.
func (b *battery) modesOf(tier string) []string {
	switch b.sandbox.(type) {
	case bwrap:
		return []string{"bwrap"}
	case palyra:
		if tier == "c" {
			return b.modes
		}
	}
	return []string{modeCold}
}

// try makes one attempt: the control, unless there is one already, and inside.
func (b *battery) try(c *attackCase, u *user, tier, mode string, control *observation) (record, *observation) {
	r := record{Case: c.id(), Name: c.name, Tier: tier, Mode: mode, User: u.name}
	if len(c.stopped[tier]) == 0 {
		r.Verdict, r.Detail = notApplicable, c.absent[tier]
		return r, control
	}
	if mode == "bwrap" && (c.number == 90 || c.hosts) {
		r.Verdict, r.Detail = notApplicable, "about palyra's own parts"
		return r, control
	}
	if why := reason(b.skips, c, nil, mode); mode != modeCold && why != "" {
		r.Verdict, r.Detail = notApplicable, why // without a control, which the other modes may not need
		return r, control
	}
	if b.verbose {
		fmt.Printf("%s %s, %s\n", r.Case, c.name, mode)
	}
	if control == nil {
		// Once more, if it did not succeed: the host may have been short of something
		// for a moment, and all modes stand on it.
		if control, _ = b.once(c, u, tier, mode, false); !control.open() {
			control, _ = b.once(c, u, tier, mode, false)
		}
	}
	inside, skip := b.once(c, u, tier, mode, true)
	if skip != "" {
		r.Verdict, r.Detail = notApplicable, skip
		return r, control
	}
	r.Control, r.Inside, r.Millis = control.outcome, inside.outcome, inside.took.Milliseconds()
	r.Verdict, r.Detail = judge(control, inside, c.stopped[tier])
	return r, control
}

// once prepares a stage, makes the attempt and takes the stage down. If the mode makes no
// difference, it says why it didn't.
func (b *battery) once(c *attackCase, u *user, tier, mode string, inside bool) (o *observation, skip string) {
	s, err := newStage(b, u, tier, mode, inside)
	if err != nil {
		return &observation{broken: err}, ""
	}
	defer s.close()
	sc, err := c.stage(s)
	if err != nil {
		return &observation{broken: fmt.Errorf("stage: %w", err)}, ""
	}
	if inside && b.bare && sc.opt.workspace != "" {
		return nil, "needs a workspace"
	}
	if inside && b.bare && sc.opt.beside != nil {
		return nil, "the call beside it needs a /tmp"
	}
	if inside && mode != modeCold && slices.Contains(modes, mode) {
		if why := reason(b.skips, c, &sc, mode); why != "" {
			return nil, why
		}
	}
	return s.perform(sc), ""
}

// setup builds the attack program and the directories.
func setup(c config) (*battery, []*user, error) {
	dir, err := os.MkdirTemp("/var/tmp", "palyra-escape-")
	if err != nil {
		return nil, nil, err
	}
	b := &battery{value: newValue(), dir: dir, attack: filepath.Join(dir, "attack"), uid: c.uid, verbose: c.verbose, modes: c.modes, turn: c.turn}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, nil, err
	}
	b.spender = sync.OnceValues(func() (string, error) {
		at := filepath.Join(dir, "spender")
		return at, b.build(at, "", "palyra/conformance/escape/attack", "-tags=spend")
	})
	b.inWorld = sync.OnceValues(func() (*world.Lent, error) {
		at := filepath.Join(dir, "world")
		if err := os.Mkdir(at, 0o755); err != nil {
			return nil, err
		}
		return world.Lend(at)
	})
	if b.skips, err = loadSkips(); err != nil {
		return nil, nil, err
	}
	if err := b.build(b.attack, c.attack, "palyra/conformance/escape/attack"); err != nil {
		return nil, nil, err
	}
	if b.palyra, err = filepath.Abs(c.palyra); err != nil {
		return nil, nil, err
	}
	switch c.sandbox {
	case "palyra":
		if _, err := os.Stat(b.palyra); err != nil {
			return nil, nil, fmt.Errorf("%w; make build first", err)
		}
		p := palyra{binary: b.palyra, cell: filepath.Join(filepath.Dir(b.palyra), "palyra-cell")}
		p.warm = filepath.Join(dir, "warm")
		if err := b.build(p.warm, c.warm, "palyra/conformance/escape/warm"); err != nil {
			return nil, nil, err
		}
		p.gate = filepath.Join(dir, "gate")
		if slices.Contains(c.modes, modeGateway) && slices.ContainsFunc(cases(), func(ac attackCase) bool { return ac.hosts && selected(c.cases, &ac) }) {
			if err := b.build(p.gate, c.gate, "palyra/conformance/escape/gate"); err != nil {
				return nil, nil, err
			}
		}
		b.sandbox = p
	case "bwrap":
		b.sandbox = bwrap{}
	default:
		return nil, nil, fmt.Errorf("unknown sandbox %q", c.sandbox)
	}
	users, err := b.users(c)
	b.alone = len(users) == 1
	return b, users, err
}

// build puts a program into the battery's directory, where every user can execute it: a
// copy of an existing binary, or of one that it builds.
func (b *battery) build(to, built, pkg string, flags ...string) error {
	if built != "" {
		program, err := os.ReadFile(built)
		if err != nil {
			return err
		}
		return os.WriteFile(to, program, 0o755)
	}
	// Each call copies and hashes its program: no debugger's tables.
	build := exec.Command("go", append(append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", to}, flags...), pkg)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// users returns the users that the battery can and should run as.
func (b *battery) users(c config) ([]*user, error) {
	var out []*user
	for _, name := range c.users {
		u := &user{name: name, uid: os.Getuid(), gid: os.Getgid()}
		switch {
		case name == "root" && u.uid != 0:
			fmt.Println("not root: the battery runs as this user only")
			continue
		case name == "unprivileged" && u.uid == 0:
			u.uid, u.gid = c.uid, c.uid
		}
		u.home = filepath.Join(b.dir, "home-"+name)
		u.state, u.policy = filepath.Join(u.home, "state"), filepath.Join(u.home, "policy")
		if err := u.makeHome(); err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "stage"), 0o755); err != nil {
		return nil, err
	}
	return out, nil
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// pause is how long the battery lets things settle if it can't wait for an event, because
// it checks that nothing happens.
const pause = 200 * time.Millisecond
