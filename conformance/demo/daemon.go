package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"palyra/authz/policy"
)

// daemon is a palyrad of the demo's own.
type daemon struct {
	*demo
	dir      string // state
	config   string
	socket   string
	identity string        // file with the identity that opens its vault
	url      string        // of the HTTP listener; "" if there is none
	policies string        // directory
	peer     string        // URL of the listener for devices
	notify   *net.UnixConn // where palyrad says READY=1, as it would to systemd
	process  *exec.Cmd
	ended    chan error // takes how the process ended; nil while there is none
	log      bytes.Buffer

	asAgent func(*exec.Cmd) // makes a command of palyra the agent's
}

// operated is the step of the daemon: a call that waits, an answer from
// elsewhere, a device that is paired and revoked, a cancel, and a kill in the middle of a call.
func operated(ctx context.Context, d *demo) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := newDaemon(d)
	if err == nil {
		defer p.notify.Close()
		if r := p.quiet(ctx, p.palyra, "vault", "init", "--state", p.dir, "--key", p.identity); r.status != 0 {
			err = errors.New(r.stderr)
		}
	}
	if err == nil {
		err = p.start(ctx)
	}
	if err != nil {
		d.expect(false, "palyrad starts: %v", err)
		return
	}
	defer p.kill()
	p.statusAndCall(ctx)
	p.vault(ctx)
	p.people(ctx)
	p.device(ctx)
	p.cancel(ctx)
	p.emergency(ctx)
	p.crash(ctx)
	p.stop(ctx)
}

// newDaemon writes a configuration with one workspace.
func newDaemon(d *demo) (*daemon, error) {
	p := &daemon{demo: d, dir: filepath.Join(d.dir, "daemon"), config: filepath.Join(d.dir, "etc", "palyrad.toml"), socket: filepath.Join(d.dir, "d.sock"),
		identity: filepath.Join(d.dir, "etc", "vault.key")}
	ws := filepath.Join(d.dir, "project")
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Mkdir(filepath.Dir(p.config), 0o755)); err != nil {
		return nil, err
	}
	how, err := p.configure()
	if err != nil {
		return nil, err
	}
	peer, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p.peer = "https://" + peer
	text := fmt.Sprintf("profile = \"local\"\nlisten.socket = %q\n%speer.listen = %q\npairing.listen = \"127.0.0.1:0\"\nstate.dir = %q\nvault.identity = %q\nworkspaces.project.path = %q\nworkspaces.project.read_only = false\n", p.socket, how, peer, p.dir, p.identity, ws)
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(d.dir, "n.sock"), Net: "unixgram"})
	return p, err
}

// ownAgent is the policy that the demo adds to the built-in ones if it is one user. A
// token that asked can't say yes to itself, whatever its scopes; the user at the socket
// or in the console may. So may every other program of that user that reaches the socket: a
// second user of the host is safer.
const ownAgent = `@id("own_agent")
permit (principal in Palyra::Role::"owner", action == Palyra::Action::"approval.self", resource)
when { ["unix", "console"].contains(context.channel) };
`

// freeAddress returns one that is free, most likely until palyrad takes it.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// configure returns the lines by which people and the agent come in: a browser by HTTP; the agent
// as root through the socket, which its group may use, and elsewhere by HTTP with a token.
func (p *daemon) configure() (string, error) {
	at, err := freeAddress()
	if err != nil {
		return "", err
	}
	p.url = "http://" + at
	p.policies = filepath.Join(p.demo.dir, "etc", "policy")
	err = os.CopyFS(p.policies, policy.DefaultFS())
	lines := fmt.Sprintf("listen.http = %q\npolicy.dir = %q\n", at, p.policies)
	if secondUser() {
		return fmt.Sprintf("%slisten.socket_group = \"%d\"\n", lines, agent), err
	}
	return lines, errors.Join(err, os.WriteFile(filepath.Join(p.policies, "50-demo.cedar"), []byte(ownAgent), 0o644))
}

// start starts palyrad and returns when it says that it is ready.
func (p *daemon) start(ctx context.Context) error {
	palyrad := filepath.Join(filepath.Dir(p.palyra), "palyrad")
	fmt.Fprintf(p.out, "     # %s &\n", p.spell([]string{"palyrad", "--config", p.config}))
	p.process = p.command(ctx, p.demo.dir, palyrad, "--config", p.config)
	p.process.Env = append(p.process.Env, "NOTIFY_SOCKET="+p.notify.LocalAddr().String())
	p.log.Reset()
	p.process.Stderr = &p.log
	if err := p.process.Start(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		p.notify.SetReadDeadline(deadline)
	}
	ended := make(chan error, 1)
	go func() {
		err := p.process.Wait()
		// End the reader before the next palyrad starts: nothing more will come.
		p.notify.SetReadDeadline(time.Unix(1, 0))
		ended <- err
	}()
	buf := make([]byte, 4096)
	for {
		n, err := p.notify.Read(buf)
		if err != nil {
			return fmt.Errorf("palyrad did not become ready: %w: %s", err, lastLines(p.log.String(), 5))
		}
		if bytes.Contains(buf[:n], []byte("READY=1")) {
			p.ended = ended
			return nil
		}
	}
}

func (p *daemon) kill() {
	if p.ended != nil {
		p.process.Process.Kill()
		<-p.ended
		p.ended = nil
	}
}

// ctl runs a command of the operator against the daemon.
func (p *daemon) ctl(ctx context.Context, prompt string, args ...string) ended {
	r := p.run(ctx, prompt, p.demo.dir, append([]string{p.palyra}, args...)...)
	p.show(r.stdout + r.stderr)
	return r
}

// fields runs a read command with --json, unprinted, and decodes what it says.
func (p *daemon) fields(ctx context.Context, out any, args ...string) error {
	r := p.quiet(ctx, append([]string{p.palyra}, append(args, "--json", "--socket", p.socket)...)...)
	if r.status != 0 && r.status != 3 {
		return fmt.Errorf("palyra %s: status %d: %s", strings.Join(args, " "), r.status, r.stderr)
	}
	return json.Unmarshal([]byte(r.stdout), out)
}

func (p *daemon) statusAndCall(ctx context.Context) {
	var s struct {
		Status struct {
			Confinement struct{ Enforced bool }
		}
	}
	err := p.fields(ctx, &s, "status")
	p.expect(err == nil && s.Status.Confinement.Enforced, "palyrad has confined itself and says so%s", onFailure(err, fmt.Sprint(err)))
	file := p.receipt("daemon-echo")
	r := p.ctl(ctx, "$", "call", "--socket", p.socket, "--receipt", file, "palyra.echo", `{"text":"hello"}`)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "hello"), "a tool answers (status %d)", r.status)
	r = p.ctl(ctx, "$", "attest", "verify", "--trust", filepath.Join(p.dir, "trust"), file)
	p.expect(r.status == 0, "its receipt verifies with the daemon's public keys (status %d)", r.status)
}

// vault stores a secret through palyrad, which keeps it sealed and knows what may be done with it.
func (p *daemon) vault(ctx context.Context) {
	const value = "hush-kept-by-palyrad"
	file := filepath.Join(p.demo.dir, "etc", "token.txt")
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		p.expect(false, "make a secret: %v", err)
		return
	}
	r := p.ctl(ctx, "#", "vault", "set", "--socket", p.socket, "--file", file, "vault://global/token")
	p.expect(r.status == 0 && strings.Contains(r.stdout, "stored version 1"), "palyrad keeps a secret (status %d)", r.status)
	r = p.ctl(ctx, "#", "vault", "verify", "--socket", p.socket)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "1 versions open, and the journal knows it so"), "the vault opens, and the journal knows its state (status %d)", r.status)
	found := p.quiet(ctx, "grep", "-rlF", value, p.dir)
	p.expect(found.status == 1, "no file of the state directory has the value (status %d of grep)", found.status)
}

// sleep starts a run that sleeps and returns its id when the tool runs.
func (p *daemon) sleep(ctx context.Context) (string, error) {
	var s struct{ Session struct{ ID string } }
	if err := p.fields(ctx, &s, "sessions", "new"); err != nil {
		return "", err
	}
	steps := filepath.Join(p.demo.dir, "steps.json")
	if err := os.WriteFile(steps, []byte(`[{"tool":"palyra.sleep","input":{"ms":60000}}]`), 0o644); err != nil {
		return "", err
	}
	r := p.run(ctx, "$", p.demo.dir, p.palyra, "runs", "start", "--socket", p.socket, "--session", s.Session.ID, steps)
	p.show(r.stdout + r.stderr)
	id := strings.TrimSpace(r.stdout)
	// The tape says when the call was decided; the process follows.
	tape := p.command(ctx, p.demo.dir, p.palyra, "runs", "tape", "--socket", p.socket, id)
	var events waitFor
	tape.Stdout = &events
	if err := tape.Start(); err != nil {
		return "", err
	}
	events.wait(ctx, "step.decided")
	tape.Process.Kill()
	tape.Wait()
	for len(sleepers()) == 0 {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return id, nil
}

// sleepers are the processes of the tool that sleeps, on this host.
func sleepers() []string {
	var pids []string
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && bytes.Contains(b, []byte("palyra-tool\x00palyra.sleep\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(n)))
		}
	}
	return pids
}

func (p *daemon) cancel(ctx context.Context) {
	id, err := p.sleep(ctx)
	if err != nil {
		p.expect(false, "a tool runs: %v", err)
		return
	}
	began := time.Now()
	r := p.ctl(ctx, "second terminal $", "runs", "cancel", "--socket", p.socket, id)
	took := time.Since(began)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "cancelled") && len(sleepers()) == 0,
		"cancelled, and no process of it is left (%d ms, the command's own start included)", took.Milliseconds())
}

// crash kills palyrad in the middle of a call.
func (p *daemon) crash(ctx context.Context) {
	id, err := p.sleep(ctx)
	if err != nil {
		p.expect(false, "a tool runs: %v", err)
		return
	}
	fmt.Fprintln(p.out, "     # kill -9 palyrad")
	p.kill()
	for len(sleepers()) > 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	p.expect(len(sleepers()) == 0, "the kernel killed the tool with it")
	if err := p.start(ctx); err != nil {
		p.expect(false, "palyrad starts again: %v", err)
		return
	}
	r := p.ctl(ctx, "$", "runs", "show", "--socket", p.socket, id)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "failed") && strings.Contains(r.stdout, "outcome_unknown"),
		"the run has ended, and that nobody knows the outcome of its call is on record")
}

// stop ends palyrad as a service manager does and checks everything that it left.
func (p *daemon) stop(ctx context.Context) {
	fmt.Fprintln(p.out, "     # kill palyrad")
	p.process.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case err = <-p.ended:
		p.ended = nil
	case <-ctx.Done():
		p.expect(false, "palyrad ends on SIGTERM: %s", lastLines(p.log.String(), 5))
		return
	}
	p.expect(status(err) == 0, "on SIGTERM palyrad drains and ends (status %d)%s", status(err), onFailure(err, p.log.String()))
	r := p.ctl(ctx, "$", "journal", "verify", "--state", p.dir)
	// Status 3: sound, and it lists the call whose outcome is unknown.
	p.expect(r.status == 3 && strings.HasPrefix(r.stdout, "sound"), "its journal is sound and names the one call whose outcome is unknown (status %d)", r.status)
}
