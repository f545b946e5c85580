package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"palyra/conformance/world"
)

// hostsPolicy permits every program that reaches no host but two, and any other if a person does.
const hostsPolicy = `@id("known_hosts")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { ["git.example:443", "packages.example:443"].containsAll(context.egress_hosts) };

@id("other_hosts_if_approved")
@reason("it reaches hosts that are not on the list")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.approved };
`

// results are what the step of the network came to, which runs in a process of its own.
type results struct {
	Checks   int
	Failures []string
	Receipts [][2]string // file and outcome
}

// reached is the step of the network. Its hosts are a small Internet that the demo makes, in network
// namespaces of its own: no packet leaves the machine.
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
		d.receipts = append(d.receipts, receipt{file: x[0], outcome: x[1]})
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
			r.Receipts = append(r.Receipts, [2]string{x.file, x.outcome})
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

func (d *demo) network(ctx context.Context, w *world.World) error {
	policy, project := filepath.Join(d.dir, "hosts"), filepath.Join(d.dir, "app")
	if err := errors.Join(os.Mkdir(policy, 0o755), os.Mkdir(project, 0o755), os.WriteFile(filepath.Join(policy, "hosts.cedar"), []byte(hostsPolicy), 0o644), w.MakeRepository()); err != nil {
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
	r := d.call(ctx, "clone", "executed", append(hosts("git.example"), "git", "clone", "-q", "https://git.example/repo.git", "lib")...)
	d.show(r.stdout + r.stderr)
	b, err := os.ReadFile(filepath.Join(project, "lib", "hello.txt"))
	d.expect(r.status == 0 && err == nil && string(b) == "from the world\n", "git cloned a repository over HTTPS (status %d)", r.status)
	d.expect(len(w.Queries("")) > 0 && len(w.Queries("packages.example")) == 0, "no other name was looked up")

	const page = "https://other.example/"
	r = d.call(ctx, "hostdenied", "executed", append(hosts("packages.example"), "curl", "-sS", page)...)
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 6 && len(w.Queries("other.example")) == 0, "a host that the call doesn't name isn't there (status %d)", r.status)
	d.expect(strings.Contains(r.stderr, "--egress other.example:443"), "palyra says which host it was, and the flag that names it")
	out := d.run(ctx, "control: outside $", d.dir, "curl", "-sS", page)
	d.show(out.stdout + out.stderr)
	d.expect(out.status == 0, "the same program outside reaches it (status %d)", out.status)

	argv := append([]string{d.palyra, "exec", "--receipt", d.receipt("hostpermitted")}, append(hosts("packages.example", "other.example"), "curl", "-sS", page)...)
	in, card, err := d.permitted(ctx, project, argv, func() error { return nil })
	if err != nil {
		return err
	}
	d.receipts = append(d.receipts, receipt{file: d.receipt("hostpermitted"), outcome: "executed"})
	d.expect(strings.Contains(card, "other.example:443"), "the card names the host")
	d.expect(in.status == 0 && strings.HasPrefix(in.stdout, "other.example at "), "with the person's yes it is reached (status %d)%s", in.status, in.complaint())
	shown := d.run(ctx, "$", d.dir, d.palyra, "attest", "show", d.receipt("hostpermitted"))
	d.expect(strings.Contains(shown.stdout, "other.example"), "the receipt says where the program connected")
	return nil
}
