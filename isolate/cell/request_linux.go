package cell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"palyra/authz/grant"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// rights returns the descriptors of a message, closed on exec.
func rights(oob []byte) ([]*os.File, error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return nil, fmt.Errorf("parse rights: %w", err)
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// handle checks a run request and runs it. What after does is not for the caller
// to wait for.
func (s *server) handle(ctx context.Context, r *request, fds []*os.File) (answer reply, after func()) {
	answer, after = reply{ID: r.ID}, func() {}
	const op = "run in palyra-cell"
	spec, digest, f, err := s.admit(op, r, fds)
	if err == nil {
		err = s.permitted(op, r, spec, digest)
	}
	if err == nil && s.tier == tier.B {
		select {
		case s.serial <- struct{}{}:
			defer func() { <-s.serial }()
		case <-ctx.Done():
			err = fault.New(fault.Canceled, "canceled", op, ctx.Err())
		}
	}
	if err == nil {
		x := &run{s: s, spec: spec, files: f, status: -1, gate: -1, mounts: -1}
		answer.Result, err = x.do(ctx)
		if x.armed != 0 && answer.Result != nil {
			answer.Warm, answer.Result = shorten(x.armed, answer.Result), nil
		}
		after = x.clean
	}
	answer.Error = toWire(err)
	runtime.KeepAlive(fds)
	return answer, after
}

// permitted verifies the grant. What it is bound to is the digest of the very
// bytes that the Spec was read from.
func (s *server) permitted(op string, r *request, spec *isolate.Spec, digest canon.Digest) error {
	var g grant.Grant
	if err := g.UnmarshalBinary(r.Grant); err != nil {
		return refuse("grant_invalid", op, err)
	}
	if err := s.verifier.Verify(g, spec.Capsule, digest); err != nil {
		return refuse(grantReason(err), op, err)
	}
	return nil
}

// decodeRequest reads a message.
func decodeRequest(msg []byte) (r request, err error) {
	doc, spec, _ := bytes.Cut(msg, []byte{0})
	err = decode(doc, &r)
	r.spec = bytes.Clone(spec) // the next message comes into the same buffer
	return r, err
}

// admit reads a request and refuses what no palyra of this version sends. The
// grant is not looked at: nothing may run because of it alone.
func (s *server) admit(op string, r *request, fds []*os.File) (spec *isolate.Spec, digest canon.Digest, f *files, err error) {
	fail := func(err error) (*isolate.Spec, canon.Digest, *files, error) { return nil, canon.Digest{}, nil, err }
	b := r.spec
	if len(b) == 0 && len(fds) > 0 {
		b, err = io.ReadAll(io.LimitReader(io.NewSectionReader(fds[0], 0, maxSpec+1), maxSpec+1))
		if err != nil || len(b) > maxSpec {
			return fail(fault.New(fault.Internal, "cell_protocol", op, err))
		}
		fds = fds[1:]
	}
	if len(fds) != len(r.Files) {
		return fail(fault.New(fault.Internal, "cell_protocol", op, fmt.Errorf("%d descriptors for %d files", len(fds), len(r.Files))))
	}
	spec = new(isolate.Spec)
	if err := decode(b, spec); err != nil {
		return fail(fault.New(fault.Internal, "cell_protocol", op, err))
	}
	if spec.Version != 1 || spec.Tier != s.tier {
		return fail(refuse("tier_unavailable", op, fmt.Errorf("this palyra-cell serves tier %v", s.tier)))
	}
	if n := spec.Network; n != isolate.NetworkFresh && (n != isolate.NetworkVoid || s.tier != tier.C) {
		return fail(fault.New(fault.Usage, "network_unknown", op, fmt.Errorf("tier %v has no network %q", s.tier, n)))
	}
	if err := checkLimits(&spec.Limits); err != nil {
		return fail(fault.New(fault.Usage, "limit_missing", op, err))
	}
	f = &files{byName: map[string]*os.File{}}
	for i, name := range r.Files {
		if name == "operand" {
			f.operands = append(f.operands, fds[i])
		} else {
			f.byName[name] = fds[i]
		}
	}
	if len(f.operands) != len(spec.Operands) || (f.byName["workspace"] != nil) != (spec.Workspace != nil) || (f.byName["script"] != nil) != (spec.Script != nil) {
		return fail(fault.New(fault.Internal, "cell_protocol", op, errors.New("descriptors do not match the spec")))
	}
	return spec, canon.Sum(b), f, nil
}

func grantReason(err error) string {
	switch {
	case errors.Is(err, grant.ErrMismatch):
		return "grant_mismatch"
	case errors.Is(err, grant.ErrExpired):
		return "grant_expired"
	case errors.Is(err, grant.ErrReplayed):
		return "grant_replayed"
	}
	return "grant_invalid"
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

// files are the descriptors of one request.
type files struct {
	byName   map[string]*os.File
	operands []*os.File
}
