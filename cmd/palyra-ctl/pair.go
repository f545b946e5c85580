package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/paired"
	"palyra/crypt/pair"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/transport/enrol"
)

// kindCLI is what a device that runs this program is.
const kindCLI = "cli"

// pair is the device's side: it makes the key, shows the digits and waits.
func (a *app) pair(ctx context.Context, inv *command.Invocation) (*result, error) {
	dir, id := command.Value(inv, "device", ""), command.Value(inv, "id", "")
	switch {
	case dir == "":
		return nil, need(inv, "device")
	case id == "":
		return nil, need(inv, "id")
	}
	r := pair.Request{Device: id, Kind: kindCLI, Scopes: []string{"run.start", "session.read", "session.write"}}
	if inv.Has("scope") {
		r.Scopes = slices.Compact(slices.Sorted(slices.Values(command.All[string](inv, "scope"))))
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	url := command.Value(inv, "url", "")
	if url != "" {
		if err := paired.CheckURL(url); err != nil {
			return nil, err
		}
	}
	code, err := a.code(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	if err := deviceDir(dir, inv.Has("replace")); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "make key", err)
	}
	conn, hubKey, err := enrol.Dial(ctx, inv.Operands[1], code.Names)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	d, err := pair.NewDevice(code, pair.Channel{HubKey: hubKey, Binding: conn.Binding()}, key, r)
	if err != nil {
		return nil, err
	}
	chain, err := a.exchange(conn, d, func(c *pair.Chain) error {
		return paired.Write(ctx, dir, paired.About{Device: id, Domain: c.Domain, Scopes: c.Scopes, URL: url}, key, c.Certificates, c.Roots)
	})
	if ctx.Err() != nil {
		return nil, fault.New(fault.Canceled, "canceled", "pair with hub", context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	leaf := chain.Certificates[0]
	return text(front.Document{"device": id, "directory": dir, "domain": chain.Domain, "scopes": chain.Scopes, "not_after": leaf.NotAfter.UTC()},
		"paired with %s; %s has the key and its certificate, good until %s\n", cell(chain.Domain), cell(dir), stamp(leaf.NotAfter)), nil
}

// exchange has a device's messages carried. It tells the hub that it has its certificate when
// keep has put it away.
func (a *app) exchange(conn *enrol.Conn, d *pair.Device, keep func(*pair.Chain) error) (*pair.Chain, error) {
	// The hub ends a pairing in time. The slack is for its clock.
	until := time.Now().Add(pair.Life + time.Minute)
	say := func(b []byte) error {
		// If the hub has refused and gone, its reason is still there to be read.
		if err := conn.Write(b); !errors.Is(err, fault.ErrConnectionLost) {
			return err
		}
		return nil
	}
	if err := say(d.Hello()); err != nil {
		return nil, err
	}
	b, err := conn.Read(until)
	if err != nil {
		return nil, err
	}
	if b, err = d.Offer(b); err != nil {
		return nil, err
	}
	if err := say(b); err != nil {
		return nil, err
	}
	if b, err = conn.Read(until); err != nil {
		return nil, err
	}
	if err := d.Wait(b); err != nil {
		return nil, err
	}
	digits := d.Digits()
	if _, err := fmt.Fprintf(a.stderr, "digits     %s %s\n\nThe hub's operator types them there. Waiting for it.\n", digits[:3], digits[3:]); err != nil {
		return nil, err
	}
	if b, err = conn.Read(until); err != nil {
		return nil, err
	}
	done, chain, err := d.Answer(b, time.Now())
	if err == nil {
		err = keep(chain)
	}
	if err != nil {
		return nil, err
	}
	return chain, conn.Write(done)
}

// code reads a pairing code: from a file, from standard input, or as it is.
func (a *app) code(operand string) (pair.Code, error) {
	const op = "read pairing code"
	var r io.Reader = strings.NewReader(operand)
	if operand == "-" {
		r = a.stdin
	} else if f, err := os.Open(operand); err == nil {
		defer f.Close()
		r = f
	} else if !errors.Is(err, fs.ErrNotExist) {
		return pair.Code{}, fault.New(fault.Usage, "bad_file", op, err)
	}
	b, err := io.ReadAll(io.LimitReader(r, 1024))
	if err != nil {
		return pair.Code{}, fault.New(fault.Usage, "bad_file", op, err)
	}
	return pair.ParseCode(string(bytes.TrimSpace(b)))
}

// deviceDir makes the folder, and refuses one that has a key unless it's to be replaced.
func deviceDir(dir string, replace bool) error {
	op := fmt.Sprintf("make device directory %q", dir)
	if err := durable.MkdirAll0700(dir); err != nil {
		return durable.Fault(op, err)
	}
	if err := durable.CheckOwn(dir, paired.KeyFile); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, paired.KeyFile)); err == nil && !replace {
		return fault.New(fault.Busy, "exists", op, errors.New("it has a key already")).WithHint("another folder, or --replace")
	}
	return nil
}
