package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var shownDigits = regexp.MustCompile(`(?m)^digits +(\d{3}) (\d{3})$`)

// device is the part of the daemon's step that pairs a device. It and palyrad are processes that
// share nothing but a code: the device has a home of its own, and comes over TCP alone.
func (p *daemon) device(ctx context.Context) {
	home := filepath.Join(p.demo.dir, "device")
	fmt.Fprintf(p.out, "     # palyra devices pair --no-wait > device/code\n")
	var made struct {
		Pairing struct{ ID, Code, Address string }
	}
	err := p.fields(ctx, &made, "devices", "pair", "--no-wait")
	if err = errors.Join(err, os.Mkdir(home, 0o700), os.WriteFile(filepath.Join(home, "code"), []byte(made.Pairing.Code), 0o600)); err != nil {
		p.expect(false, "a code is made: %v", err)
		return
	}
	env := []string{"HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state"), "PATH=" + os.Getenv("PATH")}

	argv := []string{p.palyra, "pair", "--device", "hub", "--id", "laptop", "--url", p.peer, "code", made.Pairing.Address}
	fmt.Fprintf(p.out, "     device $ %s\n", p.spell(argv))
	pair := p.command(ctx, home, argv...)
	pair.Env = env
	var stdout bytes.Buffer
	var said waitFor
	pair.Stdout, pair.Stderr = &stdout, &said
	if err := pair.Start(); err != nil {
		p.expect(false, "a device starts: %v", err)
		return
	}
	paired := make(chan error, 1)
	running, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		paired <- pair.Wait()
		gone()
	}()
	said.wait(running, "Waiting for it.")
	said.mu.Lock()
	text := said.buf.String()
	said.mu.Unlock()
	p.show(text)
	m := shownDigits.FindStringSubmatch(text)
	if m == nil {
		p.expect(false, "the device shows six digits")
		return
	}
	r := p.ctl(ctx, "#", "devices", "approve", "--socket", p.socket, made.Pairing.ID, m[1]+m[2])
	err = <-paired
	p.show(stdout.String())
	p.expect(r.status == 0 && err == nil, "the operator types the device's digits, and it has a certificate for a key that never left it (status %d)", status(err))

	ask := func(args ...string) ended {
		argv := append([]string{p.palyra}, args...)
		fmt.Fprintf(p.out, "     device $ %s\n", p.spell(argv))
		cmd := p.command(ctx, home, argv...)
		var stdout, stderr bytes.Buffer
		cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
		err := cmd.Run()
		p.show(stdout.String() + stderr.String())
		return ended{status(err), stdout.String(), stderr.String()}
	}
	r = ask("call", "--device", "hub", "palyra.echo", `{"text":"over TLS"}`)
	p.expect(r.status == 0 && strings.Contains(r.stdout, "over TLS"), "it calls over TLS, with a certificate on both sides (status %d)", r.status)
	r = ask("vault", "ls", "--device", "hub")
	p.expect(r.status != 0 && r.stdout == "" && strings.Contains(r.stderr, "vault.manage"), "it reaches no secret: its scopes don't name vault.manage (status %d)", r.status)
	r = p.ctl(ctx, "#", "devices", "revoke", "--socket", p.socket, "laptop")
	p.expect(r.status == 0 && strings.Contains(r.stdout, "revoked"), "it is revoked (status %d)", r.status)
	r = ask("call", "--device", "hub", "palyra.echo", `{"text":"again"}`)
	p.expect(r.status != 0 && r.stdout == "" && strings.Contains(r.stderr, "refused the device's certificate"), "and cut off, with the reason (status %d)", r.status)
}
