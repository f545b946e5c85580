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

	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

// maxStdin is the most that is read of a standard input that is to be sealed.
const maxStdin = 1 << 20

// sealed is a call that cannot change any more: its capsule, and the open files
// that the capsule names. Close it.
type sealed struct {
	capsule *capsule.Capsule
	bytes   []byte // canonical JSON of capsule
	id      canon.Digest

	place    *place
	program  *program
	operands []operand
	envCode  []string     // variables that lead to code that is not the system's
	copies   []*os.File   // sealed copies of operands, made by holdOperands
	stdin    *pin.Sealed  // nil unless Stdin is sealed
	hold     *budget.Hold // the memory of all copies
	numbers  *budget.Hold // the descriptors of copies

	closing sync.Once
	lent    atomic.Int32 // goroutines that use it besides its owner; below 0 it is closed
}

// sealWith opens and hashes everything that p names. Nothing is looked up by name
// afterwards, except operands, whose content is then compared with the capsule.
// state is the state directory, known the digests that need not be made again;
// there may be neither. hold pays for the copies, and is given back with them.
func sealWith(ctx context.Context, p *Proposal, stdin io.Reader, state string, known *digests.Cache, hold *budget.Hold) (_ *sealed, err error) {
	s := &sealed{hold: hold}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	q := *p
	// Who proposed it may hold the same lists, and change them while a person thinks.
	q.Argv, q.Env = slices.Clone(p.Argv), slices.Clone(p.Env)
	if p = &q; q.TierFloor == tier.None {
		q.TierFloor = tier.C
	}
	limits, err := p.check()
	if err != nil {
		return nil, err
	}
	env, err := environment(p.Env)
	if err != nil {
		return nil, err
	}
	if s.place, err = openPlace(p, state); err != nil {
		return nil, err
	}
	s.place.digests, s.place.hold = known, hold
	if s.program, err = s.place.program(ctx, p.Argv); err != nil {
		return nil, err
	}
	if err := checkArguments(s.program.argv, env); err != nil {
		return nil, err
	}
	s.envCode = s.place.codeEnv(env)
	c := &capsule.Capsule{
		Version: capsule.Version, Tool: p.Tool, Argv: p.Argv,
		Executable: s.program.exec.record, Scripts: append([]capsule.Script{}, s.program.scripts...),
		Env: env, Cwd: s.place.cwd, Stdin: capsule.Stdin{Mode: p.Stdin.mode()},
		Operands: []capsule.File{}, EgressHosts: []string{}, Secrets: []string{},
		Limits: limits, TierFloor: p.TierFloor,
		Network: p.Network, Capabilities: p.declared(), Sensitive: p.tool != nil && p.tool.Sensitive,
		Loader: s.program.loader,
	}
	if w := s.place.workspace; w != nil {
		c.Workspace = &capsule.Workspace{Source: w.Path, ReadOnly: p.WorkspaceReadOnly, UID: w.Stat.UID, GID: w.Stat.GID}
	}
	named := p.Argv
	if p.tool != nil && p.tool.LeaveOperands {
		named = named[:1]
	}
	if s.operands, c.Unpinned, err = s.place.operands(ctx, named); err != nil {
		return nil, err
	}
	for _, o := range s.operands {
		c.Operands = append(c.Operands, o.record)
	}
	for _, l := range s.program.libraries {
		c.Unpinned = append(c.Unpinned, capsule.Unpinned{Path: l, Kind: capsule.KindLibrary})
	}
	slices.SortFunc(c.Unpinned, capsule.CompareUnpinned)
	if p.Stdin == StdinSealed {
		if s.stdin, err = sealStdin(ctx, stdin, hold); err != nil {
			return nil, err
		}
		c.Stdin.Digest, c.Stdin.Size = s.stdin.Digest, s.stdin.Size
	}
	s.capsule = c
	s.bytes, s.id, err = c.Seal()
	return s, err
}

// sealStdin reads all of r. A reader that does not end keeps the goroutine that
// reads it after ctx is done; nothing else can be done about an io.Reader.
func sealStdin(ctx context.Context, r io.Reader, hold *budget.Hold) (*pin.Sealed, error) {
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
		b, err := io.ReadAll(io.LimitReader(r, maxStdin+1))
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
		return nil, usage("stdin_read", op, got.err)
	case len(got.b) > maxStdin:
		return nil, usage("stdin_too_large", op, fmt.Errorf("more than %d bytes", maxStdin)).
			WithHint("declare it a stream, which is decided without having been seen")
	}
	if err := hold.Grow(int64(len(got.b))); err != nil {
		return nil, err
	}
	s, err := pin.Seal(ctx, "palyra-stdin", bytes.NewReader(got.b), maxStdin, 0o444)
	if err != nil {
		return nil, sealFault(op, err)
	}
	return s, nil
}

// close gives s up. It may be called again.
func (s *sealed) close() { s.closing.Do(s.giveBack) }

// giveBack closes every file once neither the owner nor a goroutine that s was
// lent to uses them.
func (s *sealed) giveBack() {
	if s.lent.Add(-1) >= 0 {
		return
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

// holdOperands seals copies of the operands, because a person will be asked. It
// returns when ctx is done, whatever the file system does.
func (k *Kernel) holdOperands(ctx context.Context, who *Caller, s *sealed) (err error) {
	if s.capsule.TierFloor == tier.B && len(s.operands) > 0 {
		// Without a mount namespace nothing can be laid over a file.
		return fault.New(fault.Refused, "operands_need_tier_c", "seal files for approval",
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

// recheck refuses if a file of the system that will be used as it is changed
// since it was hashed. It is the last thing before the grant.
func (s *sealed) recheck() error {
	for _, h := range append([]held{s.program.exec}, s.program.held...) {
		if err := h.recheck(); err != nil {
			return err
		}
	}
	return nil
}

// spec derives what the runner gets.
func (s *sealed) spec() *isolate.Spec {
	c := s.capsule
	x := &isolate.Spec{
		Version: 1, Capsule: s.id, Tier: c.TierFloor,
		Argv: s.program.argv, Env: c.Env, Cwd: c.Cwd,
		Exec: specFile(c.Executable), Limits: c.Limits, Stdin: c.Stdin.Mode, Operands: []isolate.File{},
		Network: c.Network,
	}
	if c.Workspace != nil {
		x.Workspace = &isolate.Mount{Source: c.Workspace.Source, ReadOnly: c.Workspace.ReadOnly, UID: c.Workspace.UID, GID: c.Workspace.GID}
	}
	if s.program.script != nil {
		f := specFile(c.Scripts[0].File)
		x.Script = &f
	}
	for i := range s.copies {
		f := specFile(c.Operands[i])
		f.Pinned = capsule.PinnedSealed
		x.Operands = append(x.Operands, f)
	}
	return x
}

func specFile(f capsule.File) isolate.File {
	return isolate.File{Path: f.Path, Digest: f.Digest, Size: f.Size, Pinned: f.Pinned}
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
	if s.stdin != nil {
		f.Stdin = s.stdin.File
	}
	return f
}

// orCanceled is other, unless err says that the caller has left.
func orCanceled(op string, err error, other error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Canceled, "canceled", op, err)
	}
	return other
}

// sealFault classifies an error of pin.Seal.
func sealFault(op string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Canceled, "canceled", op, err)
	case errors.Is(err, pin.ErrTooLarge):
		return fault.New(fault.NotExec, "program_too_large", op, err)
	case errors.Is(err, syscall.EACCES):
		return fault.New(fault.Refused, "memfd_exec_forbidden", op, err).
			WithHint("vm.memfd_noexec is 2 on this host; set it to 1 or run programs of the system only")
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOSPC):
		return fault.New(fault.Unavailable, "seal_memory", op, err)
	}
	return fault.New(fault.Unavailable, "seal", op, err)
}
