package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// people is the part of the daemon's step that takes two principals: who asks may
// not say yes, nobody makes themselves more than they are, and a yes may stand
// for a while, for calls that fit a pattern. It takes a second user of the host,
// which only root can be; who is not sees [daemon.approval] instead.
func (p *daemon) people(ctx context.Context) {
	bin, err := p.binaries()
	if err != nil {
		p.expect(false, "the second user has a palyra: %v", err)
		return
	}
	id := fmt.Sprintf("uid:%d", agent)
	r := p.agent(ctx, bin, "call", "palyra.echo", `{"text":"who am I"}`)
	p.expect(r.status == 77 || r.status == 4, "a user of the host who is no member may ask for nothing (status %d)", r.status)
	r = p.ctl(ctx, "#", "members", "set", "--socket", p.socket, id, "admin")
	p.expect(r.status == 0, "the owner makes it an admin (status %d)", r.status)

	// The agent asks, the agent says yes, the owner says yes.
	call, stderr := p.waiting(ctx, bin, "agent.txt")
	ask := p.pending(ctx)
	if call == nil || ask == nil {
		p.expect(false, "a request waits: %s", stderr)
		return
	}
	r = p.agent(ctx, bin, "approvals", "approve", "--capsule", ask.digits(), ask.ID)
	p.expect(r.status != 0 && strings.Contains(r.stderr, "another principal"),
		"the agent cannot approve its own call, admin or not (status %d)", r.status)
	p.ctl(ctx, "#", "approvals", "approve", "--socket", p.socket, "--capsule", ask.digits(), "--for", "10m", "--pattern", "within=2", "--pattern", "content", ask.ID)
	err = call.Wait()
	p.expect(status(err) == 0 && p.wrote("agent.txt"), "the owner, a second principal, says yes, also for calls like it: it is written (status %d)", status(err))
	r = p.agent(ctx, bin, "call", "fs.write_file", write("again.txt"))
	p.expect(r.status == 0 && p.wrote("again.txt"), "another file is written without a question, by the standing grant (status %d)", r.status)
	var g struct{ Grants []struct{ ID string } }
	if err := p.fields(ctx, &g, "approvals", "grants"); err != nil || len(g.Grants) != 1 {
		p.expect(false, "one grant stands: %v, %d", err, len(g.Grants))
		return
	}
	p.ctl(ctx, "#", "approvals", "revoke", "--socket", p.socket, g.Grants[0].ID)
	call, _ = p.waiting(ctx, bin, "third.txt")
	ask = p.pending(ctx)
	p.expect(ask != nil && !p.wrote("third.txt"), "revoked, the next one is asked about again")
	if ask != nil {
		p.ctl(ctx, "#", "approvals", "deny", "--socket", p.socket, ask.ID)
		p.expect(status(call.Wait()) != 0 && !p.wrote("third.txt"), "and denied, nothing is written")
	}

	// Escalation.
	r = p.agent(ctx, bin, "members", "set", id+"1", "owner")
	p.expect(r.status != 0 && strings.Contains(r.stderr, "does not hold"), "the admin cannot invite an owner (status %d)", r.status)
	var ms struct {
		Members []struct {
			Principal string
			Version   int
		}
	}
	if err := p.fields(ctx, &ms, "members", "ls"); err != nil {
		p.expect(false, "members: %v", err)
	}
	for _, m := range ms.Members {
		if m.Principal == id {
			r = p.agent(ctx, bin, "members", "set", "--version", fmt.Sprint(m.Version), id, "owner")
			p.expect(r.status != 0 && strings.Contains(r.stderr, "does not hold"), "nor make itself one (status %d)", r.status)
		}
	}
}

// emergency is the stop: every cell dead, every run ended, nothing new.
func (p *daemon) emergency(ctx context.Context) {
	for range 2 {
		if _, err := p.sleep(ctx); err != nil {
			p.expect(false, "a tool runs: %v", err)
			return
		}
	}
	n, began := len(sleepers()), time.Now()
	r := p.ctl(ctx, "#", "stop", "--socket", p.socket, "--all", "--deny-new")
	p.expect(r.status == 0 && n > 0 && len(sleepers()) == 0, "the emergency stop: %d processes of tools, then none (%d ms, the command's own start included)",
		n, time.Since(began).Milliseconds())
	r = p.ctl(ctx, "$", "call", "--socket", p.socket, "palyra.echo", `{"text":"x"}`)
	p.expect(r.status != 0 && strings.Contains(r.stderr, "stop"), "nothing new begins until it is lifted (status %d)", r.status)
	r = p.ctl(ctx, "#", "resume", "--socket", p.socket)
	p.expect(r.status == 0, "lifted (status %d)", r.status)
}

// binaries copies palyra to where the second user can execute it.
func (p *daemon) binaries() (string, error) {
	dir := filepath.Join(p.demo.dir, "agent")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(p.demo.dir, 0o711)); err != nil {
		return "", err
	}
	for _, name := range []string{"palyra", "palyra-ctl"} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(filepath.Dir(p.palyra), name)); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "palyra"), nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// asAgent prepares a command of the second principal.
func (p *daemon) asAgent(ctx context.Context, bin string, args ...string) *exec.Cmd {
	fmt.Fprintf(p.out, "     agent $ %s\n", p.spell(append([]string{p.palyra}, args...)))
	cmd := p.command(ctx, "/", append([]string{bin}, append(args, "--socket", p.socket)...)...)
	cmd.SysProcAttr = asAgent()
	return cmd
}

func (p *daemon) agent(ctx context.Context, bin string, args ...string) ended {
	cmd := p.asAgent(ctx, bin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	r := ended{status(cmd.Run()), stdout.String(), stderr.String()}
	p.show(r.stdout + r.stderr)
	return r
}

func write(path string) string {
	return fmt.Sprintf(`{"workspace":"project","path":%q,"mode":"create","content":"written by an agent\n"}`, path)
}

// waiting starts a call of the agent that waits for a person.
func (p *daemon) waiting(ctx context.Context, bin, path string) (*exec.Cmd, string) {
	cmd := p.asAgent(ctx, bin, "call", "fs.write_file", write(path))
	var stderr waitFor
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err.Error()
	}
	stderr.wait(ctx, "waits for approval")
	return cmd, ""
}

// request is one that waits.
type request struct{ ID, Capsule string }

func (r *request) digits() string { return strings.TrimPrefix(r.Capsule, "sha256:")[:8] }

func (p *daemon) pending(ctx context.Context) *request {
	var list struct{ Approvals []request }
	if err := p.fields(ctx, &list, "approvals", "ls"); err != nil || len(list.Approvals) != 1 {
		return nil
	}
	return &list.Approvals[0]
}

func (p *daemon) wrote(path string) bool {
	b, err := os.ReadFile(filepath.Join(p.demo.dir, "project", path))
	return err == nil && string(b) == "written by an agent\n"
}
