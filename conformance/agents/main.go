// Command agents has agents that are not ours use Palyra, unmodified, from npm.
//
//	make build
//	go run ./conformance/agents
//
// It starts palyrad and, in a network namespace with nothing but a loopback interface, a model's
// endpoint that plays a script. Claude Code and Codex are told to do a task, and the script has
// them call palyra's tools over palyra mcp serve: one call that policy permits, one that it
// forbids, one that a person, played here, says yes to, and one that writes a file. The agent must
// hand its model what became of each call. The MCP inspector lists the tools and calls one. All
// three do so over palyrad's /mcp, too, and the protocol's authors' conformance tests look at that,
// as far as they don't want tools of their own. Three MCP servers run in cells, and the inspector
// calls their tools at /mcp/NAME and beside palyrad's own. The third is the one that these tests
// are made for: all of them look at it there. Claude Code and Codex also play with their own shell,
// which palyra hook confines, and Claude Code with palyra-sh as its shell's prefix. Before that
// palyra run starts both in cells, in a world of the test's own (inside_linux.go).
//
// It asks npm for the agents (1 GB) only if this folder has none yet. They exist for Linux
// on amd64. Exit status 0 if everything is as it must be, 1 if not, 2 if it couldn't look.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"palyra/hub"
	"palyra/transport/client"
)

// limit bounds the whole, npm included.
const limit = 9 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "directory with the binaries")
	here := flag.String("npm", "conformance/agents", "directory with package.json and, when npm was asked, the agents")
	resume := flag.String("inside", "", "go on in the network namespace, with this directory for what comes up")
	if lending() {
		return
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer stop()
	status := 0
	if err := run(ctx, *bin, *here, *resume); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		status = 2
		if _, ok := errors.AsType[wrong](err); ok {
			status = 1
		}
	}
	os.Exit(status)
}

// wrong is a finding.
type wrong struct{ error }

func run(ctx context.Context, bin, here, resume string) (err error) {
	for _, dir := range []*string{&bin, &here} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if resume != "" {
		return play(ctx, bin, here, resume)
	}
	if runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
		fmt.Println("skipped: npm has these agents for linux/amd64")
		return nil
	}
	if err := install(ctx, here); err != nil {
		return err
	}
	found := inside(ctx, bin, here)
	if _, ok := errors.AsType[wrong](found); found != nil && !ok {
		return found
	}
	if err := beside(ctx, bin, here); err != nil {
		if _, ok := errors.AsType[wrong](err); ok && found != nil {
			return wrong{errors.Join(found, err)}
		}
		return err
	}
	return found
}

// beside has the agents use palyra's tools, its hook and its shell.
func beside(ctx context.Context, bin, here string) error {
	dir, err := os.MkdirTemp("", "pa-") // a socket's path is short
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	modules, remove, err := away(ctx, here)
	if err != nil {
		return err
	}
	defer remove()
	if err := buildSuiteServer(ctx, modules); err != nil {
		return err
	}
	end, err := daemon(ctx, bin, dir, modules)
	if err != nil {
		return err
	}
	defer end()
	if err := addServers(ctx, modules, filepath.Join(dir, "p.sock")); err != nil {
		return err
	}
	person, done := context.WithCancel(ctx)
	said := make(chan error, 1)
	go func() { said <- approve(person, filepath.Join(dir, "p.sock")) }()
	// With a user of its own, the namespace needs a user namespace.
	unshare := []string{"--net"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	exe, err := os.Executable()
	if err != nil {
		done()
		return err
	}
	c := exec.CommandContext(ctx, "unshare", append(unshare, "sh", "-c", `ip link set lo up && exec "$@"`, "sh",
		exe, "-bin", bin, "-npm", here, "-inside", dir)...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	err = c.Run()
	done()
	if perr := <-said; perr != nil && err == nil {
		err = perr
	}
	if ee, ok := errors.AsType[*exec.ExitError](err); ok && ee.ExitCode() == 1 {
		return wrong{errors.New("see above")}
	}
	return err
}

// install asks npm for the packages of package-lock.json, without running scripts.
func install(ctx context.Context, here string) error {
	_, agents := os.Stat(claude(here))
	if _, err := os.Stat(filepath.Join(here, "node_modules", "@modelcontextprotocol", "server-everything")); errors.Join(agents, err) == nil {
		return nil
	}
	c := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	c.Dir = here
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci in %s: %w\n%s", here, err, out)
	}
	return nil
}

// policies let everything run but tac, and rev with a person's yes; in a shell's line they
// know the two lines of shellScript.
const policies = `
@id("operations")
permit (principal, action, resource)
unless { action == Palyra::Action::"tool.execute" };

@id("programs")
permit (principal, action == Palyra::Action::"tool.execute", resource)
unless { ["rev", "tac"].contains(context.executable.name) || context.args.containsAny(["tac", "echo abc | rev"]) };

@id("rev_asks")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.approved && (context.executable.name == "rev" || context.args.contains("echo abc | rev")) };
`

// daemon starts palyrad and returns what ends it.
func daemon(ctx context.Context, bin, dir, modules string) (end func(), err error) {
	config := fmt.Sprintf("state.dir = %q\nlisten.socket = %q\nlisten.http = \"off\"\npolicy.dir = %q\n[workspaces.src]\npath = %q\nread_only = false\nmounts = [%q]\n",
		filepath.Join(dir, "state"), filepath.Join(dir, "p.sock"), filepath.Join(dir, "policy"), filepath.Join(dir, "src"), modules)
	models, err := scripted(dir)
	if err != nil {
		return nil, err
	}
	config += models
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "policy"), 0o700), os.Mkdir(filepath.Join(dir, "src"), 0o700),
		os.WriteFile(filepath.Join(dir, "policy", "all.cedar"), []byte(policies), 0o600),
		os.WriteFile(filepath.Join(dir, "palyrad.toml"), []byte(config), 0o600)); err != nil {
		return nil, err
	}
	c := exec.Command(filepath.Join(bin, "palyrad"), "--config", filepath.Join(dir, "palyrad.toml"))
	var log strings.Builder
	c.Stderr = &log
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(dir, "p.sock")); err == nil {
			return func() { c.Process.Signal(syscall.SIGTERM); <-ended }, nil
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("palyrad: %v\n%s", err, &log)
		case <-ctx.Done():
			c.Process.Kill()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// approve says yes to every request until ctx ends, as a person in another window would.
func approve(ctx context.Context, socket string) error {
	h, err := client.New(client.Config{Socket: socket})
	if err != nil {
		return err
	}
	defer h.Close()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		p, err := hub.ListApprovals.Do(ctx, h, hub.Caller{}, hub.ApprovalQuery{State: hub.ApprovalPending})
		for _, a := range p.Items {
			if err == nil {
				_, err = hub.ResolveApproval.Do(ctx, h, hub.Caller{}, hub.Resolution{ID: a.ID, Version: a.Version, Answer: hub.Answer{Approve: true, Capsule: a.Capsule.String()}})
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
