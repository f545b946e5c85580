package serve

import (
	"errors"
	"fmt"

	"palyra/authz/grant"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
	"palyra/isolate/tier"
)

// permitted verifies the grant, which is bound to the digest of the bytes that the Spec was
// read from.
func (s *server) permitted(op string, r *wire.Request, spec *isolate.Spec, digest canon.Digest) error {
	var g grant.Grant
	if err := g.UnmarshalBinary(r.Grant); err != nil {
		return refuse("grant_invalid", op, err)
	}
	if err := s.verifier.Verify(g, spec.Capsule, digest); err != nil {
		return refuse("grant_invalid", op, err)
	}
	return nil
}

// admit reads a request and refuses those that no palyra of this version sends. It doesn't
// check the grant, so it alone permits nothing.
func (s *server) admit(op string, r *wire.Request, fds []int) (*isolate.Spec, canon.Digest, *files, error) {
	fail := func(err error) (*isolate.Spec, canon.Digest, *files, error) { return nil, canon.Digest{}, nil, err }
	wrong := func(err error) (*isolate.Spec, canon.Digest, *files, error) {
		return fail(fault.New(fault.Internal, "cell_protocol", op, err))
	}
	b := r.Spec
	if r.Has&wire.HasSpec != 0 {
		if len(fds) == 0 {
			return wrong(errors.New("no descriptor for the spec"))
		}
		var err error
		if b, err = sys.ReadAll(fds[0], wire.MaxSpec); err != nil {
			return wrong(err)
		}
		fds = fds[1:]
	}
	f, err := filesOf(r, fds)
	if err != nil {
		return wrong(err)
	}
	spec, err := wire.ParseSpec(b)
	if err != nil {
		return wrong(err)
	}
	if spec.Version != 1 || spec.Tier != s.tier {
		return fail(refuse("tier_unavailable", op, fmt.Errorf("this palyra-cell serves tier %v", s.tier)))
	}
	if !isolate.HasNetwork(s.tier, spec.Network) {
		return fail(fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("tier %v has no network %q", s.tier, spec.Network)))
	}
	if err := isolate.CheckSession(spec.Network, spec.Session); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if err := isolate.CheckEgress(s.tier, spec.Network, spec.Egress); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if err := isolate.CheckPorts(spec.Network, spec.Ports); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if isolate.Connects(spec.Network) {
		if err := checkStreams(f); err != nil {
			return fail(fault.New(fault.Usage, "invalid_input", op, err))
		}
	}
	if err := checkLimits(&spec.Limits); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if m, c := len(spec.Operands), len(spec.Operands)+len(spec.Mounts); c+len(spec.Caches) <= len(f.operands) {
		s := c + len(spec.Caches)
		f.operands, f.mounts, f.caches, f.secrets = f.operands[:m], f.operands[m:c], f.operands[c:s], f.operands[s:]
	}
	if len(f.operands) != len(spec.Operands) || len(f.mounts) != len(spec.Mounts) || len(f.caches) != len(spec.Caches) || len(f.secrets) != len(spec.Secrets) || (f.workspace >= 0) != (spec.Workspace != nil) || (f.script >= 0) != (spec.Script != nil) ||
		(f.layer >= 0) != (spec.Workspace != nil && spec.Workspace.Staged) {
		return wrong(errors.New("descriptors do not match the spec"))
	}
	// A plan tells palyra-egress nothing.
	if (f.egress >= 0) != (spec.Egress != nil) && (r.Kind == wire.OpRun || f.egress >= 0) {
		return wrong(errors.New("the connection to palyra-egress does not match the spec"))
	}
	if own := spec.Egress != nil && spec.Egress.Roots; (f.roots >= 0) != own && (r.Kind == wire.OpRun || f.roots >= 0) {
		return wrong(errors.New("the authority does not match the spec"))
	}
	if err := isolate.CheckTTY(spec.Tier, spec.TTY); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if (f.terminal >= 0) != (spec.TTY != nil) || f.terminal >= 0 && f.stdin >= 0 {
		return wrong(errors.New("the streams do not match the spec"))
	}
	if w := spec.Workspace; w != nil && w.Staged && (w.ReadOnly || s.tier != tier.C) {
		return fail(fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("tier %v has no such staged workspace", s.tier)))
	}
	if err := isolate.CheckPlaces(spec.Tier, spec.Workspace, spec.Mounts, spec.Caches); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if err := isolate.CheckSecrets(spec.Tier, spec.Workspace, spec.Mounts, spec.Secrets); err != nil {
		return fail(fault.New(fault.Usage, "invalid_input", op, err))
	}
	if err := checkCwdNamed(spec); err != nil {
		return wrong(err)
	}
	return spec, canon.Sum(b), f, nil
}

// checkStreams refuses sockets of the host as standard streams where the filter lets the program
// connect and listen: they stay in the network namespace that they were made in.
func checkStreams(f *files) error {
	for name, fd := range map[string]int{"input": f.stdin, "output": f.stdout, "error": f.stderr} {
		if fd < 0 {
			continue
		}
		elsewhere, err := sys.LeadsElsewhere(fd)
		if err == nil && elsewhere {
			err = fmt.Errorf("standard %s is a socket of another network", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkLimits(l *isolate.Limits) error {
	for _, x := range [...]struct {
		name  string
		value int64
	}{{"wall", int64(l.Wall)}, {"cpu", int64(l.CPU)}, {"memory", l.Memory}, {"pids", l.PIDs}, {"output", l.Output},
		{"file_size", l.FileSize}, {"open_files", l.OpenFiles}, {"disk", l.Disk}, {"inodes", l.Inodes}} {
		if x.value <= 0 {
			return fmt.Errorf("limit %s is %d: want a positive number", x.name, x.value)
		}
	}
	return nil
}

// files are the descriptors of one request, -1 for none. They are closed with the request.
type files struct {
	exec, stdout, stderr, script, workspace, stdin, layer, terminal, egress, roots int
	operands, mounts, caches, secrets                                              []int
}

func noFiles() *files { return &files{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, nil, nil, nil, nil} }

func filesOf(r *wire.Request, fds []int) (*files, error) {
	f := noFiles()
	for _, x := range [...]struct {
		there bool
		to    *int
	}{{true, &f.exec}, {r.Has&wire.HasTerminal == 0, &f.stdout}, {r.Has&wire.HasTerminal == 0, &f.stderr},
		{r.Has&wire.HasScript != 0, &f.script}, {r.Has&wire.HasWorkspace != 0, &f.workspace}, {r.Has&wire.HasStdin != 0, &f.stdin}, {r.Has&wire.HasLayer != 0, &f.layer}, {r.Has&wire.HasTerminal != 0, &f.terminal}, {r.Has&wire.HasEgress != 0, &f.egress}, {r.Has&wire.HasRoots != 0, &f.roots}} {
		if !x.there {
			continue
		}
		if len(fds) == 0 {
			return nil, errors.New("too few descriptors")
		}
		*x.to, fds = fds[0], fds[1:]
	}
	if len(fds) != r.More {
		return nil, fmt.Errorf("%d descriptors for %d operands, mounts, caches and secrets", len(fds), r.More)
	}
	f.operands = fds // admit splits them
	return f, nil
}
