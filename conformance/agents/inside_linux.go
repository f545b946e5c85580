package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/conformance/pty"
	"palyra/conformance/seek"
	"palyra/conformance/world"
)

// The agents inside: palyra run starts Claude Code and Codex in a cell, in a world in which the
// hosts of their models are scripted ones, under their own names. Each edits a file with its own
// tool, and its shell prints its environment, in which a placeholder would end the run, writes
// another file, reads a secret of the host's and asks another host. The control is the same agent
// with the same arguments outside, with the key itself.

// modelKey is the key of both models in the vault.
const modelKey = "sk-inside-5d1c0f6e2b-the-key-itself"

// other is a host that no run names.
const other = "other.example"

// insider is an agent that palyra run knows, as its documents say.
type insider struct{ name, title, host, secret, key string }

var insiders = []insider{
	{"claude", "Claude Code", "api.anthropic.com", "vault://global/anthropic", "PALYRA_MODEL_KEY"},
	{"codex", "Codex", "api.openai.com", "vault://global/openai", "OPENAI_API_KEY"},
}

// stay is where the agents of these tests stay: a world and a user's home in it.
type stay struct {
	l         *world.Lent
	bin, here string
	home      string
	uid       int
}

// lending reports whether this process was one that lends the world, and is over.
func lending() bool { return world.Lending() }

// inside runs them as this user, and as root as another user, too.
func inside(ctx context.Context, bin, here string) error {
	dir, err := os.MkdirTemp("", "pa-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "world")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(at, 0o755)); err != nil {
		return err
	}
	l, err := world.Lend(at)
	if err != nil {
		return err
	}
	users := []int{os.Getuid()}
	if os.Getuid() == 0 {
		users = append(users, 65534)
	}
	var found []error
	for _, uid := range users {
		s := &stay{l: l, bin: bin, here: here, home: filepath.Join(dir, fmt.Sprint("home", uid)), uid: uid}
		if err := s.furnish(ctx); err != nil {
			return err
		}
		for _, a := range insiders {
			for _, x := range []struct {
				kind string
				do   func(context.Context, insider) error
			}{{"outside", s.outside}, {"inside", s.printed}, {"inside, on a terminal", s.typed}} {
				if x.kind != "inside" && uid != users[len(users)-1] {
					continue // a run takes seconds: of root's the one that differs
				}
				begin := time.Now()
				if err := x.do(ctx, a); err != nil {
					found = append(found, fmt.Errorf("%s %s as user %d: %w", a.title, x.kind, uid, err))
					continue
				}
				fmt.Printf("%s %s as user %d: as it must be, in %.1f s\n", a.title, x.kind, uid, time.Since(begin).Seconds())
			}
		}
	}
	if len(found) > 0 {
		return wrong{errors.Join(found...)}
	}
	return nil
}

// furnish makes a home with a vault that has the keys, a secret and policies that permit all.
func (s *stay) furnish(ctx context.Context) error {
	files := map[string]string{"secret.txt": "the host's own\n", "policy/all.cedar": "@id(\"all\") permit (principal, action, resource);\n", "key": modelKey}
	for name, text := range files {
		p := filepath.Join(s.home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if err := s.give(s.home); err != nil {
		return err
	}
	steps := [][]string{{"vault", "init"}}
	for _, a := range insiders {
		steps = append(steps, []string{"vault", "set", "--file", filepath.Join(s.home, "key"), a.secret})
	}
	for _, args := range steps {
		if out, err := s.command(ctx, s.home, nil, append([]string{s.palyra()}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("palyra %q: %w\n%s", args, err, out)
		}
	}
	return os.Remove(filepath.Join(s.home, "key"))
}

// give makes a folder, with all that's in it, the user's.
func (s *stay) give(dir string) error {
	return filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, s.uid, s.uid))
	})
}

// project makes a folder with one file.
func (s *stay) project(name string) (string, error) {
	dir := filepath.Join(s.home, name)
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello\n"), 0o644))
	return dir, errors.Join(err, s.give(dir))
}

func (s *stay) palyra() string { return filepath.Join(s.bin, "palyra") }

// command is a program in the world, with an environment that has nothing of whoever runs this.
func (s *stay) command(ctx context.Context, dir string, env []string, argv ...string) *exec.Cmd {
	line := s.l.Enter(dir, s.uid, s.uid, argv)
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	npm := filepath.Join(s.here, "node_modules")
	c.Env = append([]string{"HOME=" + s.home, "TERM=xterm-256color", "LC_ALL=C.UTF-8",
		"PATH=" + s.bin + ":" + filepath.Join(npm, ".bin") + ":/usr/bin:/bin"}, env...)
	c.WaitDelay = 10 * time.Second
	return c
}

// played is the script of one run, and what came of it.
type played struct {
	steps []step
	look  func() // called once, while the agent waits for the last answer

	mu    sync.Mutex
	heard []string // guarded by mu
	over  chan struct{}
	once  sync.Once
}

// ServeHTTP answers by what a request has: an agent may ask for other things beside.
func (p *played) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m, answer := &model{steps: p.steps}, httptest.NewRecorder()
	m.ServeHTTP(answer, r)
	p.mu.Lock()
	p.heard = append(append(p.heard, m.heard...), m.errors...)
	p.mu.Unlock()
	if len(m.heard) == len(p.steps) {
		p.once.Do(func() {
			if p.look != nil {
				p.look()
			}
			close(p.over)
		})
	}
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
}

// missing returns the steps whose results the model didn't hear.
func (p *played) missing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := strings.Join(p.heard, "\n")
	for _, s := range p.steps {
		if !strings.Contains(all, s.want) {
			return fmt.Errorf("its model heard %s, and not %q", all, s.want)
		}
	}
	return nil
}

// play has the world's models play what an agent does in dir; reads is what its shell gets from the
// host, and from another host.
func (s *stay) play(a insider, dir, secret, reached string) *played {
	shell := step{"Bash", object{"command": "env; printf 'by a shell\\n' >shell.txt; cat " + s.home + "/secret.txt; curl -sS -m 20 https://" + other + "/; echo over"}, secret}
	edit := step{"Write", object{"file_path": dir + "/new.txt", "content": "by an agent\n"}, "new.txt"}
	if a.name == "codex" {
		edit = step{"apply_patch", object{"input": "*** Begin Patch\n*** Add File: new.txt\n+by an agent\n*** End Patch\n"}, "new.txt"}
	}
	again := shell
	again.want = reached
	p := &played{steps: []step{edit, shell, again}, over: make(chan struct{})}
	s.l.Forget()
	for _, row := range insiders {
		s.l.Set(row.host, world.Addrs(world.Web, world.Web6))
		s.l.Serve(row.host, p)
	}
	s.l.Set(other, world.Addrs(world.Web, world.Web6))
	return p
}

// task is how an agent is told to begin, without a person.
func task(a insider) []string {
	if a.name == "codex" {
		return []string{"exec", "--skip-git-repo-check", "begin"}
	}
	return []string{"-p", "begin"}
}

// outside is the control: the shell reads the secret and reaches the host, the project changes, and
// the search finds the key.
func (s *stay) outside(ctx context.Context, a insider) error {
	dir, err := s.project("outside-" + a.name)
	if err != nil {
		return err
	}
	printed, err := s.command(ctx, dir, nil, append([]string{s.palyra(), "run", "--print", "--", a.name}, task(a)...)...).Output()
	if err != nil {
		return fmt.Errorf("palyra run --print: %w", err)
	}
	_, line, _ := strings.Cut(string(printed), " -- ")
	roots := "/etc/ssl/certs/ca-certificates.crt"
	c := s.command(ctx, dir, []string{a.key + "=" + modelKey, "NODE_EXTRA_CA_CERTS=" + roots, "SSL_CERT_FILE=" + roots,
		"IS_SANDBOX=1", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"}, "sh", "-c", "exec "+line)
	p := s.play(a, dir, "the host's own", other+" at ")
	var found []string
	p.look = func() {
		all, err := seek.Below(c.Process.Pid)
		for _, pid := range append(all, c.Process.Pid) {
			f, _, merr := seek.For(modelKey).Memory(pid)
			found, err = append(found, f...), errors.Join(err, gone(merr))
		}
		if err != nil {
			found = append(found, err.Error())
		}
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := p.missing(); err != nil {
		return err
	}
	for _, kind := range []string{"environ: ", "memory "} {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, kind) }) {
			return fmt.Errorf("the search finds no key in %s where it is: %q", kind, found)
		}
	}
	return written(dir)
}

// gone drops the error of a process that has ended.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// written requires what the agent and its shell write.
func written(dir string) error {
	for name, want := range map[string]string{"new.txt": "by an agent\n", "shell.txt": "by a shell\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			return fmt.Errorf("%s is %q, %v", name, b, err)
		}
	}
	return nil
}

// search looks for the key in a cell below a palyra: in each process, and in the files it's shown.
func search(palyra int) (found []string, err error) {
	v := seek.For(modelKey)
	below, err := seek.Below(palyra)
	if err != nil {
		return nil, err
	}
	var cell []int
	for _, pid := range below {
		if name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); string(name) == "palyra-cell\n" {
			more, berr := seek.Below(pid)
			cell, err = append(append(cell, pid), more...), errors.Join(err, berr)
		}
	}
	slices.Sort(cell)
	cell = slices.Compact(cell)
	read, agent := int64(0), 0
	for _, pid := range cell {
		f, n, merr := v.Memory(pid)
		found, err = append(found, f...), errors.Join(err, gone(merr))
		if n > read {
			read, agent = n, pid // the largest
		}
	}
	if len(cell) < 3 || read < 64<<20 {
		err = errors.Join(err, fmt.Errorf("%d processes, the largest of %d bytes", len(cell), read))
	}
	for _, dir := range []string{"/workspace", "/caches", "/tmp", "/etc/ssl/palyra"} {
		f, _, ferr := v.Files("/proc/" + strconv.Itoa(agent) + "/root" + dir)
		found, err = append(found, f...), errors.Join(err, ferr)
	}
	return found, err
}

// printed runs an agent without a terminal.
func (s *stay) printed(ctx context.Context, a insider) error {
	dir, err := s.project("inside-" + a.name)
	if err != nil {
		return err
	}
	receipt := filepath.Join(s.home, a.name+".json")
	policy := filepath.Join(s.home, "policy")
	c := s.command(ctx, dir, nil, append([]string{s.palyra(), "run", "--policy", policy, "--receipt", receipt, "--", a.name}, task(a)...)...)
	p := s.play(a, "/workspace", "No such file", "Could not resolve host")
	var found []string
	p.look = func() {
		var err error
		if found, err = search(c.Process.Pid); err != nil {
			found = append(found, "the search: "+err.Error())
		}
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, &out)
	}
	if err := p.missing(); err != nil {
		return fmt.Errorf("%w\n%s", err, &out)
	}
	b, err := os.ReadFile(receipt)
	found = append(append(found, seek.For(modelKey).In(out.Bytes())...), seek.For(modelKey).In(b)...)
	records, rerr := s.records()
	if err := errors.Join(err, rerr); err != nil || len(found)+len(records) > 0 {
		return fmt.Errorf("the key is in %q, %q; %v", found, records, err)
	}
	if out, err := s.command(ctx, dir, nil, s.palyra(), "attest", "verify", receipt).CombinedOutput(); err != nil {
		return fmt.Errorf("attest verify: %w\n%s", err, out)
	}
	if err := s.arrived(a); err != nil {
		return err
	}
	return s.apply(ctx, dir, policy, out.String())
}

// records looks for the key in all that palyra keeps, but for the work folders of layers, which
// only the kernel uses and a user can't read.
func (s *stay) records() (found []string, err error) {
	state := filepath.Join(s.home, ".local", "state", "palyra")
	all, _ := filepath.Glob(filepath.Join(state, "*"))
	layers, _ := filepath.Glob(filepath.Join(state, "layers", "*", "*"))
	for _, p := range append(all, layers...) {
		if filepath.Base(p) == "layers" || filepath.Base(p) == "work" {
			continue
		}
		f, _, ferr := seek.For(modelKey).Files(p)
		found, err = append(found, f...), errors.Join(err, ferr)
	}
	if len(all) < 3 || len(layers) == 0 {
		err = errors.Join(err, fmt.Errorf("the state directory has %q and layers %q", all, layers))
	}
	return found, err
}

// arrived requires that the model got the key, and that the other host got nothing.
func (s *stay) arrived(a insider) error {
	keys := 0
	for _, r := range s.l.Requests() {
		switch {
		case r.Host == other:
			return fmt.Errorf("%s was asked for %s", other, r.Path)
		case r.Host == a.host && strings.HasSuffix(r.Authorization, modelKey):
			keys++
		}
	}
	if keys == 0 {
		return errors.New("no request to the model had the key")
	}
	return nil
}

// layerOf is how palyra names what is to be applied.
var layerOf = regexp.MustCompile(`palyra changes apply (\S+) brings`)

// apply requires that the project is as it was, and has what was written once it's applied.
func (s *stay) apply(ctx context.Context, dir, policy, said string) error {
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		return fmt.Errorf("before apply the project has %v, %v", names, err)
	}
	layer := layerOf.FindStringSubmatch(said)
	if layer == nil || !strings.Contains(said, "denied: "+other+" (not_listed") || !strings.Contains(said, "receipt: entry ") {
		return fmt.Errorf("palyra says no layer, no denied host or no receipt:\n%s", said)
	}
	if out, err := s.command(ctx, dir, nil, s.palyra(), "changes", "apply", "--policy", policy, layer[1]).CombinedOutput(); err != nil {
		return fmt.Errorf("changes apply: %w\n%s", err, out)
	}
	return written(dir)
}

var digits = regexp.MustCompile(`Type (\d{4}) to`)

// typed runs an agent on a terminal, by the built-in policies: a person reads the card, says yes,
// sees what the agent does, and ends it. The task is an argument, since agents take keys that come
// as fast as a test's for a paste.
func (s *stay) typed(ctx context.Context, a insider) error {
	dir, err := s.project("typed-" + a.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := s.command(ctx, dir, nil, "sh", "-c", `exec <&2 >&2; exec "$@"`, "sh", s.palyra(), "run", "--", a.name, "begin")
	p := s.play(a, "/workspace", "No such file", "Could not resolve host")
	t, err := pty.Start(c)
	if err != nil {
		return err
	}
	err = func() error {
		if err := t.Resize(100, 140); err != nil { // the card is one page
			return err
		}
		card, err := t.Expect(ctx, " to approve")
		if err != nil {
			return err
		}
		m := digits.FindStringSubmatch(card)
		if m == nil {
			return fmt.Errorf("no digits in %q", card)
		}
		if err := t.Type(m[1] + "\n"); err != nil {
			return err
		}
		select {
		case <-p.over:
		case <-ctx.Done():
			return fmt.Errorf("it did no more: %q", t.Shown())
		}
		// Before its turn is over, Codex takes the key for an end of that.
		if _, err := t.Expect(ctx, map[string]string{"claude": "done", "codex": "Worked"}[a.name]); err != nil {
			return err
		}
		// Claude Code may want it twice.
		if err := t.Type("\x03"); err != nil || a.name != "claude" {
			return err
		}
		if _, err := t.Expect(ctx, "again"); errors.Is(err, pty.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		return t.Type("\x03")
	}()
	if err != nil {
		c.Process.Kill()
	}
	werr := c.Wait()
	if c.ProcessState.ExitCode() == 128+int(syscall.SIGINT) {
		werr = nil // what an agent says that was interrupted
	}
	cerr := t.Close()
	if err = errors.Join(err, werr, cerr, p.missing()); err != nil {
		return fmt.Errorf("%w\n%q", err, t.Shown())
	}
	if err := s.arrived(a); err != nil {
		return err
	}
	return s.apply(ctx, dir, filepath.Join(s.home, "policy"), strings.ReplaceAll(t.Shown(), "\r", ""))
}
