package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"palyra/crypt/receipt"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// call adds the whole way of a call through a kernel in this process, and the
// flushes that it cannot do without.
func (l *lab) call(s *set) error {
	dir, err := os.MkdirTemp(l.dir, "call-")
	if err != nil {
		return err
	}
	flush, err := flushes(filepath.Join(dir, "flushes"))
	if err != nil {
		return err
	}
	s.paths = append(s.paths, flush)
	cfg := kernel.Config{StateDir: filepath.Join(dir, "state"), CellPath: filepath.Join(l.bin, "palyra-cell"), Warm: tier.C}
	if s.program == programNoop { // the built-in set knows /bin/true
		cfg.PolicyDir = filepath.Join(dir, "policy")
		if err := os.Mkdir(cfg.PolicyDir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(cfg.PolicyDir, "all.cedar"), []byte(permitAll), 0o600); err != nil {
			return err
		}
	}
	s.parts = newRecorder()
	cfg.TestOnlyStep = s.parts.step
	k, err := kernel.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	p := kernel.Proposal{Tool: kernel.ToolRun, Argv: []string{l.host(s.program)}, TierFloor: tier.C}
	s.paths = append(s.paths, path{name: pathCall, close: k.Close, once: func() (time.Duration, error) {
		s.parts.begin()
		start := time.Now()
		out, err := k.Call(context.Background(), p, kernel.IO{})
		took := time.Since(start)
		s.parts.end()
		switch {
		case err != nil:
			return 0, err
		case out.Outcome != receipt.Executed || out.Exit != 0 || len(out.Receipt) == 0:
			return 0, fmt.Errorf("call %q: %s, exit status %d, %+v", p.Argv[0], out.Outcome, out.Exit, out.Error)
		}
		return took, ran(out.Result, tier.C)
	}})
	l.peer(s, pathBwrap, func(bin string) []string { return l.bwrap(bin, s.program) })
	return nil
}

// flushes is what two durable records cost at the least: a write of 4 KiB at the
// end of a growing file and an fsync, twice.
func flushes(name string) (path, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return path{}, err
	}
	block := make([]byte, 4096)
	return path{name: pathFsync, close: f.Close, once: func() (time.Duration, error) {
		start := time.Now()
		for range 2 {
			_, err := f.Write(block)
			if err := errors.Join(err, f.Sync()); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	}}, nil
}
