package serve

import (
	"errors"
	"syscall"
	"time"
	"unique"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// armWait bounds the time in which a cell arms itself, in milliseconds.
const armWait = 5000

// kind is all that a waiting cell was made for. Only a call of the same kind may have it.
type kind struct {
	network string
	sockets sockets
	limits  isolate.Limits // those that bind before the program runs
}

// kindOf returns the kind of a call, and whether cells can wait for it: it's at tier C, works
// in a private directory and has no operands.
func (s *server) kindOf(spec *isolate.Spec) (kind, bool) {
	k := kind{spec.Network, s.socketsFor(spec), spec.Limits}
	k.limits.Wall, k.limits.Output = 0, 0 // the kernel doesn't enforce these
	return k, s.tier == tier.C && !isolate.Connects(spec.Network) && spec.TTY == nil && spec.Workspace == nil && len(spec.Operands)+len(spec.Mounts)+len(spec.Secrets) == 0 && spec.Cwd == native.WorkspaceDir
}

// waiting is a cell that waits for its call. Only two steps are left: taking the call's
// descriptors, and executing.
type waiting struct {
	*process
	kind  kind
	since time.Time
	text  unique.Handle[string] // of the tape so far
	steps int                   // their number
	rest  *sys.Rest             // the remaining steps, without the call's own parts
}

func (s *server) ahead(k kind, n network) *run {
	return &run{s: s, at: s.launch, files: noFiles(), status: -1, gate: -1, mounts: -1, ahead: true, net: n,
		spec: &isolate.Spec{Version: 1, Tier: tier.C, Cwd: native.WorkspaceDir, Limits: k.limits, Network: k.network}}
}

// arm makes a waiting cell, in the network namespace n unless that is zero.
func (s *server) arm(k kind, n network) (*waiting, error) {
	r := s.ahead(k, n)
	w, err := r.arm()
	leaf := r.leaf
	if err == nil {
		r.leaf = nil // the cell is in it
	}
	r.release() // resources that were needed only to make it
	if err != nil {
		return nil, err
	}
	r.leaf = leaf
	w.kind, w.since = k, time.Now()
	return w, nil
}

func (r *run) arm() (*waiting, error) {
	if err := r.prepare(); err != nil {
		return nil, err
	}
	// The child uses our own descriptors, so they stay open until it waits.
	ends := r.high
	r.high = nil
	defer func() {
		for _, fd := range ends {
			sys.Close(fd)
		}
	}()
	p, err := r.launch()
	if err != nil {
		return nil, err
	}
	w := &waiting{process: p}
	if err := w.toWait(); err != nil {
		w.discard()
		return nil, err
	}
	w.text, w.steps = unique.Make(r.tape.Text()), r.tape.Steps()
	if err = p.arena.Trim(); err == nil {
		w.rest, err = p.arena.Prepare(r.s.rest)
	}
	if err != nil {
		w.discard()
		return nil, err
	}
	r.tape = nil
	r.fds = noFDs() // those that it was made with are closed now
	return w, nil
}

// toWait serves the child's marks until it waits for its call, and reads the evidence.
func (w *waiting) toWait() error {
	for {
		mark, err := sys.ReadMark(w.status, w.pidfd, armWait)
		if err != nil {
			return err
		}
		switch mark {
		case steps.MarkIDs:
			if err := w.s.writeIDMaps(w.pid, native.InnerID, w.uid, native.InnerID, w.gid); err != nil {
				return err
			}
			if _, err := syscall.Write(w.gate, []byte{1}); err != nil {
				return err
			}
		case steps.MarkArmed:
			return w.observe()
		default:
			if serr := w.arena.Failed(); serr != nil {
				return serr
			}
			return errors.New("the cell ended, or took too long, while it was being made")
		}
	}
}

func (w *waiting) discard() {
	sys.KillPidfd(w.pidfd)
	w.free()
	w.clean()
}

func (w *waiting) alive() bool {
	ended, err := sys.WaitPidfd(w.pidfd, 0)
	return !ended && err == nil
}

// serve gives the cell its call. The caller cleans up.
func (w *waiting) serve(r *run, start time.Time) (*isolate.Result, error) {
	w.after = append(w.after, w.free)
	w.spec, w.files, w.start, w.process.call = r.spec, r.files, start, r
	rest, err := w.resume()
	if err != nil {
		sys.KillPidfd(w.pidfd)
		return nil, fault.New(fault.Unavailable, "resource_exhausted", "start cell", err)
	}
	r.attach(w.process)
	w.describeRest(rest)
	return w.finish(nil)
}

func (w *waiting) resume() (sys.Tape, error) {
	if err := w.standard(); err != nil {
		return nil, err
	}
	w.ev.Cell = evidence.Cell{Basis: evidence.Reported, Mode: evidence.CellWarm, ArmedNS: time.Since(w.since).Nanoseconds()}
	gone, err := w.letGo()
	if err != nil {
		return nil, err
	}
	rest := native.Rest(&native.Cell{Spec: w.spec, FDs: w.fds, Cookie: w.s.cookie})
	if !gone {
		err = w.arena.Resume(rest)
	}
	return rest, err
}

// prepared reports whether a call fits into the prepared end of the tape.
func (w *waiting) prepared(spec *isolate.Spec, f *files) bool {
	n := 0
	for _, v := range [...][]string{spec.Argv, spec.Env} {
		for _, s := range v {
			n += len(s)
		}
	}
	return f.script < 0 && w.rest.Room(len(spec.Argv)+len(spec.Env), n)
}

// fits reports whether the cell can serve a call of its kind. A cell with a memory of its own
// can be told only what fits into the prepared end of its tape.
func (w *waiting) fits(spec *isolate.Spec, f *files) bool {
	return w.leaf == nil || w.prepared(spec, f)
}

// letGo fills the call into the prepared end of the tape and lets the process go on. It does
// nothing and returns false if the call doesn't fit.
func (w *waiting) letGo() (bool, error) {
	if !w.prepared(w.spec, w.files) {
		return false, nil
	}
	f := &w.fds
	err := w.rest.FD("after", max(f.Stdin, f.Stdout, f.Stderr, f.Exec)+1)
	for _, x := range [...]struct {
		label string
		fd    int
	}{{"stdin", f.Stdin}, {"stdout", f.Stdout}, {"stderr", f.Stderr}, {"exec", f.Exec}} {
		err = errors.Join(err, w.rest.FD(x.label, x.fd))
	}
	if err = errors.Join(err, w.rest.Strings("argv", w.spec.Argv), w.rest.Strings("env", w.spec.Env)); err != nil {
		return false, err
	}
	return true, w.rest.Go()
}

// describeRest is describe for the steps of the call.
func (w *waiting) describeRest(rest sys.Tape) {
	w.ev.Executable = executable(w.spec)
	w.ev.Tape = evidence.Tape{Basis: evidence.Reported, Digest: sys.DigestAfter(w.text.Value(), rest), Steps: w.steps + rest.Steps()}
}

func (s *server) expect(r *wire.Request) error {
	if s.pool == nil || r.Limits == nil {
		return nil
	}
	if err := checkLimits(r.Limits); err != nil {
		return fault.New(fault.Usage, "invalid_input", "expect calls", err)
	}
	k, ok := s.kindOf(&isolate.Spec{Network: r.Network, Limits: *r.Limits, Cwd: native.WorkspaceDir})
	if !ok {
		return nil
	}
	if err := s.pool.ensure(k); err != nil {
		if f, ok := errors.AsType[*fault.Error](err); ok {
			return f // the gate's, which names the control
		}
		return fault.New(fault.Unavailable, "cell_start", "make a cell ahead", err)
	}
	return nil
}
