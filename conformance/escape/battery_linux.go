package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// battery is one run over the table. Owned by run.
type battery struct {
	dir     string // stages, homes and binaries; beneath /var/tmp, which a cell does not show
	attack  string
	palyra  string // binary under test
	sandbox sandbox
	uid     int // of the unprivileged user
	verbose bool
	control map[string]*observation // by case, user and, where it differs, tier
}

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
	res := results{Sandbox: c.sandbox, Kernel: kernel()}
	for _, ac := range cases() {
		if !selected(c.cases, &ac) {
			continue
		}
		for _, u := range users {
			for _, tier := range c.tiers {
				r := b.try(&ac, u, tier)
				res.add(&r, expected)
			}
		}
	}
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

// add counts a record and says what is not as it should be.
func (r *results) add(rec *record, expected expectations) {
	switch rec.Verdict {
	case passed:
		r.Passed++
	case open:
		r.Open++
	case hung:
		r.Hung++
	case failed:
		r.Failed++
	case inconclusive:
		r.Inconclusive++
		if rec.Expected = expected.covers(rec); !rec.Expected {
			r.Unexpected++
		}
	case notApplicable:
		r.NotApplicable++
		r.Run--
	}
	r.Run++
	r.Records = append(r.Records, *rec)
	if rec.Verdict == passed || rec.Verdict == notApplicable || rec.Expected {
		return
	}
	fmt.Printf("%-14s %s %s, tier %s, %s: %s\n", strings.ToUpper(rec.Verdict), rec.Case, rec.Name, rec.Tier, rec.User, rec.Detail)
}

// try makes one attempt: the control, unless it was made already, and inside.
func (b *battery) try(c *attackCase, u *user, tier string) record {
	r := record{Case: c.id(), Name: c.name, Tier: tier, Mode: "native", User: u.name}
	if _, ok := b.sandbox.(bwrap); ok {
		r.Mode = "bwrap"
	}
	if len(c.stopped[tier]) == 0 {
		r.Verdict, r.Detail = notApplicable, c.absent[tier]
		return r
	}
	if r.Mode == "bwrap" && c.number == 90 {
		r.Verdict, r.Detail = notApplicable, "about palyra's own parts"
		return r
	}
	if b.verbose {
		fmt.Printf("%s %s\n", r.Case, c.name)
	}
	key := c.id() + " " + u.name
	if c.perTier {
		key += " " + tier
	}
	control := b.control[key]
	if control == nil {
		control = b.once(c, u, tier, false)
		b.control[key] = control
	}
	inside := b.once(c, u, tier, true)
	r.Control, r.Inside, r.Millis = control.outcome, inside.outcome, inside.took.Milliseconds()
	r.Verdict, r.Detail = judge(control, inside, c.stopped[tier])
	return r
}

// once prepares a stage, makes the attempt and takes the stage down.
func (b *battery) once(c *attackCase, u *user, tier string, inside bool) *observation {
	s, err := newStage(b, u, tier, inside)
	if err != nil {
		return &observation{broken: err}
	}
	defer s.close()
	sc, err := c.stage(s)
	if err != nil {
		return &observation{broken: fmt.Errorf("stage: %w", err)}
	}
	return s.perform(sc)
}

// setup builds the attack program and the directories.
func setup(c config) (*battery, []*user, error) {
	dir, err := os.MkdirTemp("/var/tmp", "palyra-escape-")
	if err != nil {
		return nil, nil, err
	}
	b := &battery{dir: dir, attack: filepath.Join(dir, "attack"), uid: c.uid, verbose: c.verbose, control: make(map[string]*observation)}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, nil, err
	}
	if err := b.buildAttack(c.attack); err != nil {
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
		b.sandbox = palyra{binary: b.palyra}
	case "bwrap":
		b.sandbox = bwrap{}
	default:
		return nil, nil, fmt.Errorf("unknown sandbox %q", c.sandbox)
	}
	users, err := b.users(c)
	return b, users, err
}

// buildAttack puts the attack program into the battery's directory, where
// every user can execute it.
func (b *battery) buildAttack(built string) error {
	if built != "" {
		program, err := os.ReadFile(built)
		if err != nil {
			return err
		}
		return os.WriteFile(b.attack, program, 0o755)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", b.attack, "palyra/conformance/escape/attack")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the attack program: %w\n%s", err, out)
	}
	return nil
}

// users returns those as whom the battery can and should run.
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

// pause is how long the battery lets things settle where there is nothing to
// wait for: that something did not happen.
const pause = 200 * time.Millisecond
