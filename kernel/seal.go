package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	vocabulary "palyra/call"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
	"palyra/isolate/egress/wire"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

// maxStdin bounds a standard input that is sealed, in bytes.
const maxStdin = 1 << 20

// sealed is a call that can't change any more: its capsule, and the open files that the capsule
// names. Close it.
type sealed struct {
	capsule *capsule.Capsule
	bytes   []byte // canonical JSON of capsule
	id      canon.Digest

	place        *place
	program      *program
	operands     []operand
	signs        []string        // in what it takes along; see signals.go
	envCode      []string        // variables that lead to code that isn't the system's
	copies       []*os.File      // sealed copies of operands, made by holdOperands
	stdin        *pin.Sealed     // nil unless Stdin is sealed
	hold         *budget.Hold    // the memory of all copies
	numbers      *budget.Hold    // the descriptors of copies
	layer        *sharedLayer    // of a staged workspace; see staged.go
	layers       *layers         // that it is one of
	caches       []*cache.Cache  // see caches.go
	home         []cache.File    // what a cache "home" gets
	secrets      []*os.File      // their values, from openSecrets until the run is over
	placeholders []placeholder   // of uses, from spec on
	ownLayer     bool            // it was made for this call
	effect       Effect          // of a tool; nil: none
	networks     bool            // as Expansion.EgressNetworks
	early        bool            // as Expansion.EgressEarly
	mcp          *vocabulary.MCP // of an exchange; nil: a program runs

	closing sync.Once
	lent    atomic.Int32 // goroutines that use it besides its owner; below 0 when closed
}

// sealWith opens and hashes everything that p names. Afterwards only operands are looked up by
// name, and their content is compared with the capsule. state is the state directory ("":
// none); known has the digests that needn't be computed again, and may be nil. hold pays for
// the copies and is released with them.
func sealWith(ctx context.Context, p *Proposal, stdin io.Reader, state string, known *digests.Cache, hold *budget.Hold) (_ *sealed, err error) {
	s := &sealed{hold: hold, home: slices.Clone(p.Home)}
	if p.tool != nil {
		s.effect, s.networks, s.early = p.tool.Effect, p.tool.EgressNetworks, p.tool.EgressEarly
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	q := *p
	// The proposer may hold the same lists, and change them while a person thinks.
	q.Argv, q.Env, q.Mounts, q.Caches = slices.Clone(p.Argv), slices.Clone(p.Env), slices.Clone(p.Mounts), slices.Clone(p.Caches)
	if q.EgressHosts, q.EgressInspect, q.EgressSecrets, err = p.inspection(); err != nil {
		return nil, err
	}
	if p.TTY != nil {
		tty := *p.TTY
		q.TTY = &tty
	}
	if p = &q; q.TierFloor == tier.None {
		q.TierFloor = tier.C
	}
	limits, err := p.check()
	if err != nil {
		return nil, err
	}
	env, err := environment(p.Env, p.Caches, p.declaration().set(), p.TTY)
	if err != nil {
		return nil, err
	}
	if env, err = p.rootsEnv(env); err != nil {
		return nil, err
	}
	if s.place, err = openPlace(p, state); err != nil {
		return nil, err
	}
	s.place.digests, s.place.hold = known, hold
	if s.program, err = s.place.program(ctx, p.Argv); err != nil {
		return nil, err
	}
	if err := checkArguments(s.program.argv, append(slices.Clip(env), blankPlaceholders(p.uses)...)); err != nil {
		return nil, err
	}
	s.envCode = s.place.codeEnv(env, p.Caches)
	if err := s.place.tired("look at the environment"); err != nil {
		return nil, err
	}
	c := &capsule.Capsule{
		Version: capsule.Version, Tool: p.Tool, Argv: p.Argv,
		Executable: s.program.exec.record, Scripts: append([]capsule.Script{}, s.program.scripts...),
		Env: env, Cwd: s.place.cwd, Stdin: capsule.Stdin{Mode: p.Stdin.mode()},
		Operands: []capsule.File{}, Secrets: append([]vocabulary.Secret{}, p.secrets...),
		Limits: limits, TierFloor: p.TierFloor,
		Session: p.networkSession(), Capabilities: p.declared(), Sensitive: p.tool != nil && p.tool.Sensitive,
		Background: p.tool != nil && p.tool.Background,
		Loader:     s.program.loader, TTY: p.TTY,
	}
	if c.EgressHosts, c.Network, err = p.egress(); err != nil {
		return nil, err
	}
	c.EgressInspect, c.EgressSecrets = p.EgressInspect, slices.Clone(p.uses)
	if w := s.place.workspace; w != nil {
		c.Workspace = &capsule.Workspace{Source: w.Path, ReadOnly: p.WorkspaceReadOnly, UID: w.Stat.UID, GID: w.Stat.GID,
			Staged: p.WorkspaceStaged, Layer: p.Layer, OwnPath: p.WorkspaceOwnPath && !s.place.inPlace}
	}
	c.Mounts, c.Caches = s.place.listMounts(), slices.Sorted(slices.Values(p.Caches))
	if c.Declared, err = p.declares(); err != nil {
		return nil, err
	}
	if err := isolate.CheckPlaces(c.TierFloor, c.Workspace, c.Mounts, c.Caches); err != nil {
		return nil, placesFault(err)
	}
	if err := isolate.CheckSecrets(c.TierFloor, c.Workspace, c.Mounts, secretNames(c.Secrets)); err != nil {
		return nil, placesFault(err)
	}
	if len(c.Secrets) > 0 {
		if err := hold.Grow(int64(len(c.Secrets)) * pin.Memory(isolate.MaxSecretBytes)); err != nil {
			return nil, err
		}
	}
	if len(c.EgressHosts) > 0 {
		if err := hold.Grow(wire.MaxEvidence); err != nil {
			return nil, err
		}
	}
	named := lineArgs(c.Scripts)
	if p.tool == nil || !p.tool.LeaveOperands {
		named = append(named, p.Argv[1:]...)
	}
	if s.operands, c.Unpinned, err = s.place.operands(ctx, named); err != nil {
		return nil, err
	}
	if err := s.holdProgram(c); err != nil {
		return nil, err
	}
	for _, o := range s.operands {
		c.Operands = append(c.Operands, o.record)
	}
	for _, l := range s.program.libraries {
		c.Unpinned = append(c.Unpinned, capsule.Unpinned{Path: l, Kind: capsule.KindLibrary})
	}
	slices.SortFunc(c.Unpinned, capsule.CompareUnpinned)
	c.Unpinned = slices.Compact(c.Unpinned)
	if p.Stdin == StdinSealed {
		most := int64(maxStdin)
		if p.tool != nil {
			most = max(most, p.tool.StdinMost)
		}
		if s.stdin, err = sealStdin(ctx, stdin, most, hold); err != nil {
			return nil, err
		}
		c.Stdin.Digest, c.Stdin.Size = s.stdin.Digest, s.stdin.Size
		if p.tool != nil && p.tool.Exchanges {
			if s.mcp, err = s.readQuestion(); err != nil {
				return nil, err
			}
			if err := hold.Grow(limits.Output); err != nil { // for the answer
				return nil, err
			}
		}
		if p.tool != nil { // the tool's output for its input, and the input
			if err := hold.Grow(2 * c.Stdin.Size); err != nil {
				return nil, err
			}
		}
	}
	s.capsule = c
	s.signs = s.signals()
	if s.bytes, s.id, err = c.Seal(); err != nil {
		return s, err
	}
	return s, hold.Grow(perByte * int64(len(s.bytes)))
}

// perByte is the memory that a waiting call takes for each byte of its capsule: call, run and
// card repeat it. 1 MB was measured for 125 KB of arguments.
const perByte = 8

// sealStdin reads all of r. A reader that doesn't end keeps its goroutine after ctx is done; an
// io.Reader can't be interrupted.
func sealStdin(ctx context.Context, r io.Reader, most int64, hold *budget.Hold) (*pin.Sealed, error) {
	const op = "read standard input"
	if r == nil {
		r = bytes.NewReader(nil)
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(r, most+1))
		done <- result{b, err}
	}()
	var got result
	select {
	case got = <-done:
	case <-ctx.Done():
		return nil, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	}
	switch {
	case got.err != nil:
		return nil, usage("bad_file", op, got.err)
	case int64(len(got.b)) > most:
		return nil, usage("too_large", op, fmt.Errorf("more than %d bytes", most)).
			WithHint("declare it a stream, which is decided without having been seen")
	}
	if err := hold.Grow(pin.Memory(int64(len(got.b)))); err != nil {
		return nil, err
	}
	s, err := pin.Seal(ctx, "palyra-stdin", bytes.NewReader(got.b), most, 0o444)
	if err != nil {
		return nil, sealFault(op, err)
	}
	return s, nil
}

// close gives s up. It may be called again.
func (s *sealed) close() { s.closing.Do(s.giveBack) }

// giveBack closes every file when the owner and all goroutines that s was lent to are done.
func (s *sealed) giveBack() {
	if s.lent.Add(-1) >= 0 {
		return
	}
	s.closeLayer()
	if s.effect != nil {
		s.effect.Close()
	}
	s.closeSecrets()
	for _, c := range s.caches {
		c.Close()
	}
	if s.place != nil {
		s.place.close()
	}
	if s.program != nil {
		s.program.close()
	}
	for _, f := range s.copies {
		f.Close()
	}
	if s.stdin != nil {
		s.stdin.File.Close()
	}
	s.hold.Release()
	s.numbers.Release()
}

// holdOperands seals copies of the operands, because a person will be asked. It returns when
// ctx is done, even if the file system hangs.
func (k *Kernel) holdOperands(ctx context.Context, who *Caller, s *sealed) (err error) {
	if s.capsule.TierFloor == tier.B && len(s.operands) > 0 {
		// Without a mount namespace no copy can cover a file.
		return fault.New(fault.Refused, "operand_unpinnable", "seal files for approval",
			fmt.Errorf("at tier b a file can change between approval and use")).
			WithHint("use tier c, or pass the content on standard input")
	}
	if s.numbers, err = k.cfg.Budgets.Files.Take(who.owner(), int64(len(s.operands))); err != nil {
		return err
	}
	place, err := k.cfg.Budgets.Sealing.Wait(ctx, who.owner(), 1)
	if err != nil {
		return err
	}
	s.lent.Add(1)
	s.copies, err = aside(ctx, place, "seal files for approval", func() ([]*os.File, error) {
		defer s.giveBack()
		return s.place.sealOperands(ctx, s.operands, s.capsule.Unpinned)
	}, func(files []*os.File) {
		for _, f := range files {
			f.Close()
		}
	})
	return err
}

// recheck refuses if a file of the system that is used in place has changed since it was
// hashed. It is the last check before execution.
func (s *sealed) recheck() error {
	for _, h := range append([]held{s.program.exec}, s.program.held...) {
		if err := h.recheck(); err != nil {
			return err
		}
	}
	return nil
}

func (s *sealed) spec() *isolate.Spec {
	c := s.capsule
	x := &isolate.Spec{
		Version: 1, Capsule: s.id, Tier: c.TierFloor,
		Argv: s.program.argv, Env: s.withPlaceholders(c.Env), Cwd: c.Cwd,
		Exec: c.Executable, Limits: c.Limits, Stdin: c.Stdin.Mode, Operands: []isolate.File{},
		Network: c.Network, Session: c.Session, Workspace: c.Workspace, Mounts: c.Mounts, Caches: c.Caches, Secrets: secretNames(c.Secrets), TTY: c.TTY,
	}
	x.Egress, x.Ports = egressOf(c), portsOf(c)
	if h := s.place.folder; h != nil {
		x.CwdInode = isolate.Inode(h.Stat.Dev, h.Stat.Ino)
	}
	if s.program.script != nil {
		x.Script = &c.Scripts[0].File
	}
	for i := range s.copies {
		f := c.Operands[i]
		f.Pinned = capsule.PinnedSealed
		x.Operands = append(x.Operands, f)
	}
	return x
}

// files returns the descriptors of spec; those of the streams are the caller's.
func (s *sealed) files(stdin, stdout, stderr *os.File) *isolate.Files {
	f := &isolate.Files{Exec: s.program.exec.file, Operands: s.copies, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	if s.program.script != nil {
		f.Script = s.program.script.File
	}
	if s.place.workspace != nil {
		f.Workspace = s.place.workspace.File()
	}
	for _, h := range s.place.mounts {
		f.Mounts = append(f.Mounts, h.File())
	}
	for _, c := range s.caches {
		f.Caches = append(f.Caches, c.Dir)
	}
	f.Secrets = s.secrets
	if s.layer != nil {
		f.Layer = s.layer.Dir()
	}
	if s.stdin != nil && s.capsule.TTY == nil { // else it's typed
		f.Stdin = s.stdin.File
	}
	return f
}

func orCanceled(op string, err error, other error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Canceled, "canceled", op, err)
	}
	return other
}

func sealFault(op string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Canceled, "canceled", op, err)
	case errors.Is(err, pin.ErrTooLarge):
		return fault.New(fault.NotExec, "too_large", op, err).
			WithHint("at most 512 MiB run; name a smaller program, or one below /usr that starts it")
	case errors.Is(err, syscall.EACCES):
		return fault.New(fault.Refused, "memfd_exec_forbidden", op, err).
			WithHint("vm.memfd_noexec is 2 on this host; set it to 1 or run programs of the system only")
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOSPC):
		return fault.New(fault.Unavailable, "resource_exhausted", op, err)
	}
	return fault.New(fault.Unavailable, "resource_exhausted", op, err)
}
