// Command warm is palyra exec over a pool: it opens a kernel, waits until a cell for calls
// of its kind is waiting, and then makes the call of its command line. The battery runs its
// attacks through it, because a one-shot palyra exec has no later calls to make cells for.
//
//	warm -cell FILE [flags of palyra exec] -- CMD ARG...
//
// Its exit status and its words on standard error are those of palyra exec as
// far as the battery reads them. A call that got a cold cell after all ends with
// status 125: it would prove nothing about warm ones.
//
// With -session the call is one of a session and in its network, in a cold cell, while another call
// runs beside it: that of the words -beside, of the same session or, with -apart, of another one.
// It begins first, with a line whose outcome is READY and whose detail is a port and an address; in
// the words of the call's command @PORT@ and @ADDR@ stand for these, and @PID@ for its process on
// the host. Its lines come out with those of the call, and last one that says whether it still
// runs:
//
//	{"case":"sit","outcome":"ALIVE"}
//
// With -in the call is one of a session, in a cold cell. With the cache tmp its /tmp is what the
// calls of this session in its workspace share, the one beside it too.
//
// With -egress the call may reach hosts, in a network of its own. With -beside-egress the call
// beside it may, too, over the same palyra-egress. With -session as well the call itself is in the
// session's network, and with -beside-session it's the call beside it that is.
//
// With -asked it makes a call that the built-in policy asks about, in a cold cell, and
// approves it: palyra exec wants a terminal for that.
//
// It doesn't show that palyrad opens its pool likewise.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/egress/client"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
)

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "palyra: %v\n", err)
	}
	os.Exit(status)
}

// refused is the status of a call that palyra did not run.
const refused = 125

func run(args []string) (int, error) {
	p := kernel.Proposal{Tool: kernel.ToolRun, TierFloor: tier.C}
	var cfg kernel.Config
	var receipt string
	f := flag.NewFlagSet("warm", flag.ContinueOnError)
	f.StringVar(&cfg.CellPath, "cell", "", "palyra-cell")
	f.StringVar(&cfg.StateDir, "state", "", "state directory")
	f.StringVar(&cfg.PolicyDir, "policy", "", "policy directory")
	session := f.Bool("session", false, "make the call in a session's network, beside another one")
	in := f.String("in", "", "the session of the call, whose /tmp it shares with the cache tmp; without -session in its own network")
	apart := f.Bool("apart", false, "the other one is of another session")
	var words []string
	f.Func("beside", "word of the other call's command", func(s string) error { words = append(words, s); return nil })
	var others []string
	f.Func("egress", "host that the call may reach", func(s string) error { p.EgressHosts = append(p.EgressHosts, s); return nil })
	f.Func("beside-egress", "host that the call beside it may reach; each has a network of its own then", func(s string) error { others = append(others, s); return nil })
	besideSession := f.Bool("beside-session", false, "the call beside it is in the session's network, and this one isn't")
	asked := f.Bool("asked", false, "have the built-in policy ask, say yes, and let no cell wait")
	f.StringVar(&receipt, "receipt", "", "file for the receipt")
	f.StringVar(&p.Network, "network", "", "fresh, loopback or void")
	f.DurationVar(&p.Limits.Wall, "timeout", 0, "wall clock limit")
	f.DurationVar(&p.Limits.CPU, "cpu", 0, "processor time")
	f.Func("env", "NAME=VALUE", func(s string) error { p.Env = append(p.Env, s); return nil })
	f.Func("tier", "c", func(s string) (err error) { p.TierFloor, err = tier.Parse(s); return err })
	f.Int64Var(&p.Limits.PIDs, "pids", 0, "processes")
	for name, to := range map[string]*int64{"memory": &p.Limits.Memory, "max-output": &p.Limits.Output, "max-file": &p.Limits.FileSize} {
		f.Func(name, "bytes", func(s string) (err error) { *to, err = size(s); return err })
	}
	f.Func("workspace", "DIR[:ro|:staged]", func(s string) error {
		p.Workspace, p.WorkspaceReadOnly = strings.CutSuffix(s, ":ro")
		p.Workspace, p.WorkspaceStaged = strings.CutSuffix(p.Workspace, ":staged")
		return nil
	})
	f.StringVar(&p.Layer, "layer", "", "the layer of a staged workspace")
	f.Func("cache", "NAME", func(s string) error {
		p.Caches = append(p.Caches, s)
		return nil
	})
	f.Func("mount", "DIR", func(s string) error {
		p.Mounts = append(p.Mounts, s)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return refused, err
	}
	p.Argv = f.Args()
	dir, err := os.Getwd()
	if err != nil {
		return refused, err
	}
	p.Dir = dir
	cfg.Pool, cfg.Warm = cell.Pool{Cells: 2, MaxAge: time.Minute}, tier.C
	if *asked {
		cfg.Pool, cfg.Warm, cfg.PolicyDir, cfg.Approver = cell.Pool{}, 0, "", yes{}
	}
	if *session || *in != "" {
		cfg.Pool, cfg.Warm = cell.Pool{}, 0
	}
	p.SessionID = *in
	if len(p.EgressHosts)+len(others) > 0 {
		broker, err := client.Start(filepath.Join(filepath.Dir(cfg.CellPath), "palyra-egress"))
		if err != nil {
			return refused, err
		}
		defer broker.Close()
		cfg.Egress = broker
	}
	k, err := kernel.Open(context.Background(), cfg)
	if err != nil {
		return refused, err
	}
	defer k.Close()
	if *session {
		p.Network, p.SessionID = isolate.NetworkSession, cmp.Or(*in, "one")
		other := kernel.Proposal{Tool: kernel.ToolRun, TierFloor: p.TierFloor, Argv: words, Dir: dir, Network: p.Network, SessionID: p.SessionID,
			Workspace: p.Workspace, Caches: p.Caches}
		if *apart {
			other.SessionID = "another"
		}
		if len(others) > 0 {
			other.Network, other.EgressHosts = "", others
		}
		b, err := sit(k, other)
		if err != nil {
			return refused, err
		}
		defer b.end()
		b.fill(p.Argv)
	} else if len(others) > 0 || *besideSession {
		other := kernel.Proposal{Tool: kernel.ToolRun, TierFloor: p.TierFloor, Argv: words, Dir: dir, SessionID: p.SessionID, EgressHosts: others}
		if *besideSession {
			other.Network = isolate.NetworkSession
		}
		b, err := sit(k, other)
		if err != nil {
			return refused, err
		}
		defer b.end()
		b.fill(p.Argv)
	} else if !*asked && *in == "" {
		if err := k.Expect(context.Background(), p.Network, p.Limits); err != nil {
			return refused, err
		}
	}
	out, err := k.Call(context.Background(), p, kernel.IO{Stdout: os.Stdout, Stderr: os.Stderr})
	switch {
	case errors.Is(err, kernel.ErrNoProgram):
		return 127, err
	case err != nil && out == nil:
		return refused, err
	case err != nil:
		return refused, err
	}
	if receipt != "" {
		if err := os.WriteFile(receipt, out.Receipt, 0o644); err != nil {
			return refused, err
		}
	}
	if out.Error != nil {
		fmt.Fprintf(os.Stderr, "palyra: %s: %s\n", strings.ReplaceAll(out.Outcome, "_", " "), out.Error.Text)
	}
	if r := out.Result; !*asked && !*session && *in == "" && r != nil && r.Evidence != nil && r.Evidence.Cell.Mode != evidence.CellWarm {
		return refused, fmt.Errorf("the cell was %q", r.Evidence.Cell.Mode)
	}
	return out.Exit, nil
}

// yes approves every call, as a person would who was shown nothing wrong.
type yes struct{}

func (yes) Ask(context.Context, approval.Request) (approval.Answer, error) {
	return approval.Answer{Approved: true, Approver: "battery", Surface: "test"}, nil
}

// size reads bytes with K, M or G.
func size(s string) (int64, error) {
	shift := map[string]int{"K": 10, "M": 20, "G": 30}
	for unit, by := range shift {
		if n, ok := strings.CutSuffix(s, unit); ok {
			v, err := strconv.ParseInt(n, 10, 32)
			return v << by, err
		}
	}
	return strconv.ParseInt(s, 10, 64)
}
