package selfbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"palyra/bench/measure"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// addCalls adds whole calls through a kernel in this process, and the flushes that each of them
// needs.
func (l *Lab) addCalls(s *Set, program string) error {
	dir, err := os.MkdirTemp(l.dir, "call-")
	if err != nil {
		return err
	}
	flush, err := flushes(filepath.Join(dir, "flushes"))
	if err != nil {
		return err
	}
	s.Paths = append(s.Paths, flush)
	policies := "" // the built-in set knows /bin/true
	if program == Noop {
		policies = l.policies
	}
	for _, x := range []struct {
		name, state, mode string
		pool              cell.Pool
	}{
		{Call, "cold", evidence.CellCold, cell.Pool{}},
		{CallWarm, "warm", evidence.CellWarm, cell.Pool{Cells: 8, MaxAge: 10 * time.Minute}},
	} {
		r := newRecorder()
		cfg := kernel.Config{StateDir: filepath.Join(dir, x.state), PolicyDir: policies, CellPath: l.cell, Warm: tier.C, Pool: x.pool, JournalWaited: r.waited, TestOnlyStep: r.step}
		p, err := l.callPath(x.name, x.mode, program, cfg, r)
		switch {
		case fault.KindOf(err) == fault.Refused:
			l.Miss(x.name, program, err)
		case err != nil:
			return err
		default:
			s.Paths = append(s.Paths, p)
			s.recorders[x.name] = r
		}
	}
	return nil
}

// callPath makes a path with a kernel of its own. A warm path is left out if no pool serves its
// program; its calls that found no waiting cell don't count.
func (l *Lab) callPath(name, mode, program string, cfg kernel.Config, r *recorder) (measure.Path, error) {
	k, err := kernel.Open(context.Background(), cfg)
	if err != nil {
		return measure.Path{}, err
	}
	p := kernel.Proposal{Tool: kernel.ToolRun, Argv: []string{l.Host(program)}, TierFloor: tier.C}
	once := func() (time.Duration, error) {
		r.begin()
		start := time.Now()
		out, err := k.Call(context.Background(), p, kernel.IO{})
		took := time.Since(start)
		r.step(markEnd)
		ok := err == nil && out.Outcome == receipt.Executed && out.Exit == 0 && len(out.Receipt) > 0
		fits := ok && out.Result.Evidence.Cell.Mode == mode
		r.end(fits)
		switch {
		case err != nil:
			return 0, err
		case !ok:
			return 0, fmt.Errorf("call %q: %s, exit status %d, %+v", p.Argv[0], out.Outcome, out.Exit, out.Error)
		}
		if err := l.ran(out.Result, tier.C); err != nil {
			return 0, err
		}
		if !fits {
			return 0, measure.ErrUnfit
		}
		return took, nil
	}
	for range 40 {
		if _, err = once(); !errors.Is(err, measure.ErrUnfit) {
			break
		}
		err = fault.New(fault.Refused, "cell_start", "measure "+name, errors.New("no cell was waiting"))
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return measure.Path{}, errors.Join(err, k.Close())
	}
	return measure.Path{Name: name, Close: k.Close, Waits: r.takeWaits, Once: once}, nil
}

// flushes is the least cost of two durable records: twice a write of 4 KiB at the end of a
// growing file and an fsync.
func flushes(name string) (measure.Path, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return measure.Path{}, err
	}
	block := make([]byte, 4096)
	return measure.Path{Name: Fsync, Close: f.Close, Once: func() (time.Duration, error) {
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
