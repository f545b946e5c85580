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

// people is the part of the daemon's step that takes two principals with different
// permissions: the requester may not say yes, no member gives itself a higher role, and a
// yes may stand for a while, for calls that fit a pattern. As root the agent is another
// user of the host, and so another principal. Otherwise it is a token of the one user, over
// HTTP; the user answers its requests at the socket, as the demo's policies permit (see
// [daemon.configure]).
func (p *daemon) people(ctx context.Context) {
	who, ok := "the owner, a second principal,", false
	if secondUser() {
		ok = p.secondMember(ctx)
	} else {
		who, ok = "the owner, at the socket,", p.agentToken(ctx)
	}
	if !ok {
		return
	}

	// The agent asks, the agent says yes, the owner says yes.
	call, stderr := p.waiting(ctx, "agent.txt")
	ask := p.pending(ctx)
	if call == nil || ask == nil {
		p.expect(false, "a request waits: %s", stderr)
		return
	}
	p.expect(!p.wrote("agent.txt"), "while it waits nothing is written")
	r := p.agent(ctx, "approvals", "approve", "--capsule", ask.Capsule, ask.ID)
	p.expect(r.status != 0 && strings.Contains(r.stderr, "another principal"),
		"the agent cannot approve its own call, whatever else it may (status %d)", r.status)
	p.ctl(ctx, "#", "approvals", "approve", "--socket", p.socket, "--capsule", ask.Capsule, "--for", "10m", "--pattern", "within=2", "--pattern", "content", ask.ID)
	err := call.Wait()
	p.expect(status(err) == 0 && p.wrote("agent.txt"), "%s says yes, also for calls like it: it is written (status %d)", who, status(err))
	r = p.agent(ctx, "call", "fs.write_file", write("again.txt"))
	p.expect(r.status == 0 && p.wrote("again.txt"), "another file is written without a question, by the standing grant (status %d)", r.status)
	var g struct{ Grants []struct{ ID string } }
	if err := p.fields(ctx, &g, "approvals", "grants"); err != nil || len(g.Grants) != 1 {
		p.expect(false, "one grant stands: %v, %d", err, len(g.Grants))
		return
	}
	p.ctl(ctx, "#", "approvals", "revoke", "--socket", p.socket, g.Grants[0].ID)
	call, _ = p.waiting(ctx, "third.txt")
	ask = p.pending(ctx)
	p.expect(ask != nil && !p.wrote("third.txt"), "revoked, the next one is asked about again")
	if ask != nil {
		p.ctl(ctx, "#", "approvals", "deny", "--socket", p.socket, ask.ID)
		p.expect(status(call.Wait()) != 0 && !p.wrote("third.txt"), "and denied, nothing is written")
	}
	p.console(ctx)
	p.escalation(ctx)
}

// byPasskey is the policy that the demo adds where a browser can answer.
const byPasskey = `@id("writes_by_passkey")
@untested("the demo's own")
forbid (principal, action == Palyra::Action::"approval.resolve", resource)
when { context.tool == "fs.write_file" }
unless { context.passkey };
`

// console has a question answered in a browser if one is installed, with a passkey, which policy
// then wants; and at the socket otherwise.
func (p *daemon) console(ctx context.Context) {
	path := findChromium()
	if path != "" {
		rule := filepath.Join(p.policies, "60-passkey.cedar")
		defer func() {
			p.expect(os.Remove(rule) == nil && p.reload(ctx), "the rule is taken back")
		}()
		if err := os.WriteFile(rule, []byte(byPasskey), 0o644); err != nil || !p.reload(ctx) {
			p.expect(false, "the owner has policy want a passkey for the next yes: %v", err)
			return
		}
		fmt.Fprintln(p.out, "     (from here on policy wants a passkey's signature for a yes to a write)")
	}
	call, stderr := p.waiting(ctx, "fourth.txt")
	ask := p.pending(ctx)
	if call == nil || ask == nil {
		p.expect(false, "a request waits: %s", stderr)
		return
	}
	where, began := "on the console's page, in Chromium, signed by a passkey,", time.Now()
	if path == "" {
		fmt.Fprintln(p.out, "     answering in a browser with a passkey is NOT shown: Chromium is not installed (apt install chromium)")
		where = "at the socket"
		p.ctl(ctx, "#", "approvals", "approve", "--socket", p.socket, "--capsule", ask.Capsule, ask.ID)
	} else {
		r := p.ctl(ctx, "#", "approvals", "approve", "--socket", p.socket, "--capsule", ask.Capsule, ask.ID)
		p.expect(r.status != 0 && strings.Contains(r.stderr, "takes a passkey"), "the owner's yes at the socket is refused, and says where it counts (status %d)", r.status)
		if err := p.inBrowser(ctx, path, ask); err != nil {
			p.expect(false, "a person answers %s without an error: %v", where, err)
			p.quiet(ctx, p.palyra, "approvals", "deny", "--socket", p.socket, ask.ID) // ends the call
		}
	}
	err := call.Wait()
	p.expect(status(err) == 0 && p.wrote("fourth.txt"), "a yes %s releases the run that waited (status %d, %.1f s)", where, status(err), time.Since(began).Seconds())
	if path != "" {
		p.signedYes(ctx, ask.ID)
	}
}

// signedYes has a stranger verify the receipt of a call whose yes a passkey signed.
func (p *daemon) signedYes(ctx context.Context, ask string) {
	var asked struct{ Approval struct{ Run, Detail string } }
	var made struct {
		Run struct {
			Steps []struct {
				Index uint64 `json:"log_index"`
			}
		}
	}
	err := p.fields(ctx, &asked, "approvals", "show", ask)
	if err == nil {
		err = p.fields(ctx, &made, "runs", "show", asked.Approval.Run)
	}
	if err != nil || len(made.Run.Steps) != 1 {
		p.expect(false, "the run that waited is told of: %v", err)
		return
	}
	file := p.receipt("daemon-passkey")
	r := p.ctl(ctx, "#", "attest", "get", "--socket", p.socket, "--out", file, fmt.Sprint(made.Run.Steps[0].Index))
	p.expect(r.status == 0, "its receipt is fetched (status %d)", r.status)
	r = p.ctl(ctx, "$", "attest", "verify", "--trust", filepath.Join(p.dir, "trust"), file)
	p.expect(r.status == 0, "and verifies, with the passkey's signature in it (status %d)", r.status)
	r = p.quiet(ctx, p.palyra, "attest", "show", file)
	p.expect(strings.HasPrefix(asked.Approval.Detail, "signed with psk_") && strings.Contains(r.stdout, "with the passkey "+strings.Fields(strings.TrimRight(asked.Approval.Detail, "."))[2]),
		"it names the passkey that the request's record names")
}

// reload has palyrad read its policies again.
func (p *daemon) reload(ctx context.Context) bool {
	return p.quiet(ctx, p.palyra, "policy", "reload", "--socket", p.socket).status == 0
}

// secondMember makes another user of the host an admin, and the agent.
func (p *daemon) secondMember(ctx context.Context) bool {
	bin, err := p.binaries()
	if err != nil {
		p.expect(false, "the second user has a palyra: %v", err)
		return false
	}
	p.asAgent = func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args[0] = bin, bin
		cmd.Args, cmd.SysProcAttr = append(cmd.Args, "--socket", p.socket), asAgent()
	}
	r := p.agent(ctx, "call", "palyra.echo", `{"text":"who am I"}`)
	p.expect(r.status == 77 || r.status == 4, "a user of the host who is no member may ask for nothing (status %d)", r.status)
	r = p.ctl(ctx, "#", "members", "set", "--socket", p.socket, agentID(), "admin")
	p.expect(r.status == 0, "the owner makes it an admin (status %d)", r.status)
	return true
}

// agentToken mints a token, which is the agent.
func (p *daemon) agentToken(ctx context.Context) bool {
	file := filepath.Join(p.demo.dir, "agent.token")
	if err := os.WriteFile(file, []byte("palyra_nobody\n"), 0o600); err != nil {
		p.expect(false, "write a token: %v", err)
		return false
	}
	p.asAgent = func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--url", p.url, "--token-file", file) }
	r := p.agent(ctx, "call", "palyra.echo", `{"text":"who am I"}`)
	p.expect(r.status != 0 && !strings.Contains(r.stdout, "who am I"), "without a good token nobody may ask for anything (status %d)", r.status)
	mint := []string{"token", "create", "--socket", p.socket, "--ttl", "1h"}
	for _, s := range []string{"run.start", "session.read", "session.write", "approval.read", "approval.resolve", "policy.read", "token.manage"} {
		mint = append(mint, "--scope", s)
	}
	mint = append(mint, "agent")
	fmt.Fprintf(p.out, "     # %s > agent.token\n", p.spell(append([]string{p.palyra}, mint...)))
	r = p.quiet(ctx, append([]string{p.palyra}, mint...)...)
	if err := os.WriteFile(file, []byte(r.stdout), 0o600); err != nil || r.status != 0 {
		p.expect(false, "the owner mints a token: %v, %s", err, r.stderr)
		return false
	}
	r = p.agent(ctx, "call", "palyra.echo", `{"text":"an agent"}`)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "an agent"), "with the token that the owner minted the agent calls (status %d)", r.status)
	return true
}

// escalation has the agent try to raise its own role.
func (p *daemon) escalation(ctx context.Context) {
	if !secondUser() {
		r := p.agent(ctx, "token", "create", "--ttl", "1h", "--scope", "member.manage", "more")
		p.expect(r.status != 0 && strings.Contains(r.stderr, "does not hold"), "the agent's token cannot mint one that may do more (status %d)", r.status)
		r = p.agent(ctx, "members", "set", agentID(), "owner")
		p.expect(r.status != 0 && strings.Contains(r.stderr, "member.manage"), "nor make anybody an owner (status %d)", r.status)
		return
	}
	r := p.agent(ctx, "members", "set", agentID()+"1", "owner")
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
		if m.Principal == agentID() {
			r = p.agent(ctx, "members", "set", "--version", fmt.Sprint(m.Version), agentID(), "owner")
			p.expect(r.status != 0 && strings.Contains(r.stderr, "does not hold"), "nor make itself one (status %d)", r.status)
		}
	}
}

// agentID is a principal that is no member: as root, the agent before it is one.
func agentID() string { return fmt.Sprintf("uid:%d", agent) }

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

// agentCommand prepares a command of the agent.
func (p *daemon) agentCommand(ctx context.Context, args ...string) *exec.Cmd {
	fmt.Fprintf(p.out, "     agent $ %s\n", p.spell(append([]string{p.palyra}, args...)))
	cmd := p.command(ctx, "/", append([]string{p.palyra}, args...)...)
	p.asAgent(cmd)
	return cmd
}

func (p *daemon) agent(ctx context.Context, args ...string) ended {
	cmd := p.agentCommand(ctx, args...)
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
func (p *daemon) waiting(ctx context.Context, path string) (*exec.Cmd, string) {
	cmd := p.agentCommand(ctx, "call", "fs.write_file", write(path))
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
