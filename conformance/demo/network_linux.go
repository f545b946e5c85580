package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"palyra/conformance/seek"
	"palyra/conformance/world"
)

// hostsPolicy permits every program that reaches no host but two, and others if a person does. A
// token goes to one of the two.
const hostsPolicy = `@id("known_hosts")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { ["git.example:443", "packages.example:443"].containsAll(context.egress_hosts) };

@id("token_for_the_registry")
permit (principal, action == Palyra::Action::"vault.use", resource == Palyra::Secret::"vault://global/registry")
when { context.use.host == "packages.example:443" };

@id("other_hosts_if_approved")
@reason("it reaches hosts that are not on the list")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.approved };
`

// results are what the step of the network came to, which runs in a process of its own.
type results struct {
	Checks   int
	Failures []string
	Receipts [][3]string // file, outcome and trust
}

// reached is the step of the network. Its hosts are a small Internet that the demo makes, in
// network namespaces of its own: no packet leaves the machine.
func reached(ctx context.Context, d *demo) {
	file := filepath.Join(d.dir, "network.json")
	exe, err := os.Executable()
	if err != nil {
		d.expect(false, "start the step of the network: %v", err)
		return
	}
	cmd := exec.CommandContext(ctx, exe, "-within", file, "-palyra", d.palyra, "-hostile", d.hostile, "-dir", d.dir)
	cmd.Stdout, cmd.Stderr = d.out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	b, rerr := os.ReadFile(file)
	var r results
	if err = errors.Join(err, rerr); err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		d.expect(false, "the step of the network: %v", err)
	}
	d.checks += r.Checks
	d.failures = append(d.failures, r.Failures...)
	for _, x := range r.Receipts {
		d.receipts = append(d.receipts, receipt{file: x[0], outcome: x[1], trust: x[2]})
	}
}

// within runs the step in a world, and leaves its results in a file.
func (d *demo) within(file string) int {
	var place world.Place
	return place.Main(inWorld(func() int {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		w, err := place.World()
		if err == nil {
			err = d.network(ctx, w)
		}
		if err != nil {
			d.expect(false, "a small Internet: %v", err)
		}
		r := results{Checks: d.checks, Failures: d.failures}
		for _, x := range d.receipts {
			r.Receipts = append(r.Receipts, [3]string{x.file, x.outcome, x.trust})
		}
		b, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(file, b, 0o600)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}))
}

type inWorld func() int

// Run runs it.
func (f inWorld) Run() int { return f() }

// registryToken is the token of the registry. Nothing has it before it's made.
var registryToken = "token-of-the-registry-" + rand.Text()

func (d *demo) network(ctx context.Context, w *world.World) error {
	policy, project, file := filepath.Join(d.dir, "hosts"), filepath.Join(d.dir, "app"), filepath.Join(d.dir, "registry.txt")
	if err := errors.Join(os.Mkdir(policy, 0o755), os.Mkdir(project, 0o755), os.WriteFile(filepath.Join(policy, "hosts.cedar"), []byte(hostsPolicy), 0o644),
		os.WriteFile(file, []byte(registryToken), 0o600), w.MakeRepository()); err != nil {
		return err
	}
	for _, name := range []string{"git.example", "packages.example", "other.example"} {
		w.Set(name, world.Addrs(world.Web, world.Web6))
	}
	fmt.Fprintln(d.out, "       (git.example, packages.example and other.example are in a small Internet of the demo's own)")
	hosts := func(names ...string) []string {
		args := []string{"--policy", policy, "--workspace", project}
		for _, n := range names {
			args = append(args, "--egress", n)
		}
		return append(args, "--")
	}
	w.Want(registryToken)
	set := d.run(ctx, "$", d.dir, d.palyra, "vault", "set", "--file", file, "vault://global/registry")
	d.show(set.stdout + set.stderr)
	os.Remove(file)
	const use = "TOKEN=vault://global/registry header:authorization packages.example"
	uses := append([]string{"--egress-secret", use}, hosts()...)

	// A private repository and a private package, with a token that the programs don't have.
	r := d.call(ctx, "clone", "executed", append(slices.Clone(uses), "git", "-c", `credential.helper=!printf 'username=x\npassword=%s\n' "$TOKEN" #`, "clone", "-q", "https://packages.example/private/repo.git", "lib")...)
	d.show(r.stdout + r.stderr)
	b, err := os.ReadFile(filepath.Join(project, "lib", "hello.txt"))
	d.expect(r.status == 0 && err == nil && string(b) == "from the world\n", "git cloned a private repository over HTTPS (status %d)", r.status)
	if err := os.WriteFile(filepath.Join(project, ".npmrc"), []byte("//packages.example/private/npm/:_authToken=${TOKEN}\nregistry=https://packages.example/private/npm/\n"), 0o644); err != nil {
		return err
	}
	if _, err := exec.LookPath("npm"); err == nil {
		r = d.call(ctx, "install", "executed", append(slices.Clone(uses), "sh", "-c", "npm install --silent --no-audit --no-fund --cache=/tmp/npm "+world.NPM)...)
		d.show(r.stdout + r.stderr)
		b, err = os.ReadFile(filepath.Join(project, "node_modules", world.NPM, "index.js"))
		d.expect(r.status == 0 && err == nil && strings.Contains(string(b), "from the world"), "npm installed a package from a private registry (status %d)", r.status)
	} else {
		d.show("npm isn't here: no package is installed")
	}
	logins := 0
	for _, q := range w.Requests() {
		if q.Status == 200 && strings.HasPrefix(q.Path, "/private/") {
			logins++
		}
	}
	d.expect(logins >= 3, "the registry gave out %d things, each for the token", logins)
	keep := append([]string{"--egress-secret", use + " keep"}, hosts()...) // the program writes down what it has
	if err := d.seek(ctx, w, keep, hosts("packages.example")); err != nil {
		return err
	}
	r = d.call(ctx, "tripwire", "failed", append(slices.Clone(uses), "sh", "-c", `curl -sS -d "$TOKEN" https://packages.example/sum; tail -f /dev/null`)...)
	d.show(r.stdout + r.stderr)
	last := w.Requests()[len(w.Requests())-1]
	d.expect(r.status != 0 && last.Path == "/sum" && last.Body == "", "a placeholder in a body ends the call, and doesn't leave (status %d)", r.status)
	shown := d.run(ctx, "$", d.dir, d.palyra, "attest", "show", d.receipt("tripwire"))
	d.expect(strings.Contains(shown.stdout, "leaked") && strings.Contains(shown.stdout, "body"), "the receipt says where it was going")

	const page = "https://other.example/"
	r = d.call(ctx, "hostdenied", "executed", append(hosts("git.example"), "curl", "-sS", page)...)
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 6 && len(w.Queries("other.example")) == 0, "a host that the call doesn't name isn't there (status %d)", r.status)
	d.expect(strings.Contains(r.stderr, "--egress other.example:443"), "palyra says which host it was, and the flag that names it")
	out := d.run(ctx, "control: outside $", d.dir, "curl", "-sS", page)
	d.show(out.stdout + out.stderr)
	d.expect(out.status == 0, "the same program outside reaches it (status %d)", out.status)

	argv := append([]string{d.palyra, "exec", "--receipt", d.receipt("hostpermitted")}, append(hosts("git.example", "other.example"), "curl", "-sS", page)...)
	in, card, err := d.permitted(ctx, project, argv, func() error { return nil })
	if err != nil {
		return err
	}
	d.receipts = append(d.receipts, receipt{file: d.receipt("hostpermitted"), outcome: "executed"})
	d.expect(strings.Contains(card, "other.example:443"), "the card names the host")
	d.expect(in.status == 0 && strings.HasPrefix(in.stdout, "other.example at "), "with the person's yes it is reached (status %d)%s", in.status, in.complaint())
	shown = d.run(ctx, "$", d.dir, d.palyra, "attest", "show", d.receipt("hostpermitted"))
	d.expect(strings.Contains(shown.stdout, "other.example"), "the receipt says where the program connected")
	return d.misled(ctx, w)
}

// remember is a program that logs in, keeps in memory and in files what it has of the token, and
// waits.
const remember = `curl -sS -o /dev/null -D headers.txt -H "Authorization: Bearer $TOKEN" https://packages.example/private/echo
printenv >env.txt; cp env.txt headers.txt /tmp; KEPT="$TOKEN $(cat headers.txt)"; curl -sS https://packages.example/hold; : "$KEPT"`

// seek looks for the token while a program uses it, in the memory of the cell's processes and the
// files that they see, and then in what is left, in the records and in the receipts. Then it gives
// another program the token itself, and finds it.
func (d *demo) seek(ctx context.Context, w *world.World, uses, plain []string) error {
	v := seek.For(registryToken)
	look := func(name string, argv []string) (memory, files []string, processes int, err error) {
		held, release := w.Hold()
		defer release()
		args := append([]string{d.palyra, "exec", "--receipt", d.receipt(name)}, argv...)
		fmt.Fprintf(d.out, "     $ %s\n", strings.ReplaceAll(d.spell(args), registryToken, "(the token)"))
		cmd := d.command(ctx, d.dir, args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			return nil, nil, 0, err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		w.Until(func() bool { return held() > 0 || len(ended) > 0 })
		below, err := seek.Below(cmd.Process.Pid)
		for _, pid := range below {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if string(comm) == "palyra-egress\n" {
				continue // the one process that has it
			}
			found, _, merr := v.Memory(pid)
			err = errors.Join(err, merr)
			memory = append(memory, found...)
			processes++
		}
		if len(below) > 0 {
			for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
				found, _, ferr := v.Files(fmt.Sprintf("/proc/%d/root%s", slices.Max(below), dir))
				err = errors.Join(err, ferr)
				files = append(files, found...)
			}
		}
		release()
		if werr := <-ended; werr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %s", werr, &out))
		}
		left, _, ferr := v.Files(d.dir) // the project, the state directory, the receipts, the other steps'
		return memory, append(append(files, left...), v.In(out.Bytes())...), processes, errors.Join(err, ferr)
	}
	memory, files, processes, err := look("remembered", append(slices.Clone(uses), "sh", "-c", remember))
	if err != nil {
		return err
	}
	d.receipts = append(d.receipts, receipt{file: d.receipt("remembered"), outcome: "executed"})
	d.expect(processes >= 3 && len(memory) == 0, "no process of the cell has the token, of %d%s", processes, found(memory))
	d.expect(len(files) == 0, "no file, output, receipt or journal has it%s", found(files))
	plain = append([]string{"--env", "TOKEN=" + registryToken}, plain...)
	memory, files, _, err = look("knew", append(plain, "sh", "-c", remember, registryToken))
	if err != nil {
		return err
	}
	d.receipts = append(d.receipts, receipt{file: d.receipt("knew"), outcome: "executed"})
	journal := slices.ContainsFunc(files, func(f string) bool { return strings.Contains(f, "/journal/") })
	d.expect(len(memory) > 0 && len(files) > 1 && journal, "the control: the same search finds it %d times in a program that has it, %d times in files and journal", len(memory), len(files))
	return nil
}

func found(where []string) string {
	if len(where) == 0 {
		return ""
	}
	return ": " + strings.Join(where, ", ")
}
