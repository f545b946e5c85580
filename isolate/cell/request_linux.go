package cell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"palyra/authz/grant"
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

// handle checks a run request and runs it.
func (s *server) handle(ctx context.Context, r *request, fds []*os.File) (*isolate.Result, error) {
	const op = "run in palyra-cell"
	body, f, err := s.admit(op, r, fds)
	if err != nil {
		return nil, err
	}
	var g grant.Grant
	if err := g.UnmarshalBinary(body.Grant); err != nil {
		return nil, refuse("grant_invalid", op, err)
	}
	digest, err := body.Spec.Digest()
	if err != nil {
		return nil, fault.New(fault.Internal, "cell_protocol", op, err)
	}
	if err := s.verifier.Verify(g, body.Spec.Capsule, digest); err != nil {
		return nil, refuse(grantReason(err), op, err)
	}
	if s.tier == tier.B {
		select {
		case s.serial <- struct{}{}:
			defer func() { <-s.serial }()
		case <-ctx.Done():
			return nil, fault.New(fault.Canceled, "canceled", op, ctx.Err())
		}
	}
	run := &run{s: s, spec: body.Spec, files: f}
	res, err := run.do(ctx)
	runtime.KeepAlive(fds)
	return res, err
}

// admit reads a request and refuses what no palyra of this version sends. The
// grant is not looked at: nothing may run because of it alone.
func (s *server) admit(op string, r *request, fds []*os.File) (*runBody, *files, error) {
	b := []byte(r.Body)
	if len(b) == 0 && len(fds) > 0 {
		var err error
		b, err = io.ReadAll(io.LimitReader(io.NewSectionReader(fds[0], 0, maxBody+1), maxBody+1))
		if err != nil || len(b) > maxBody {
			return nil, nil, fault.New(fault.Internal, "cell_protocol", op, err)
		}
		fds = fds[1:]
	}
	if len(fds) != len(r.Files) {
		return nil, nil, fault.New(fault.Internal, "cell_protocol", op, fmt.Errorf("%d descriptors for %d files", len(fds), len(r.Files)))
	}
	var body runBody
	if err := decode(b, &body); err != nil || body.Spec == nil {
		return nil, nil, fault.New(fault.Internal, "cell_protocol", op, err)
	}
	if body.Spec.Version != 1 || body.Spec.Tier != s.tier {
		return nil, nil, refuse("tier_unavailable", op, fmt.Errorf("this palyra-cell serves tier %v", s.tier))
	}
	if n := body.Spec.Network; n != isolate.NetworkFresh && (n != isolate.NetworkVoid || s.tier != tier.C) {
		return nil, nil, fault.New(fault.Usage, "network_unknown", op, fmt.Errorf("tier %v has no network %q", s.tier, n))
	}
	if err := checkLimits(&body.Spec.Limits); err != nil {
		return nil, nil, fault.New(fault.Usage, "limit_missing", op, err)
	}
	f := &files{byName: map[string]*os.File{}}
	for i, name := range r.Files {
		if name == "operand" {
			f.operands = append(f.operands, fds[i])
		} else {
			f.byName[name] = fds[i]
		}
	}
	if len(f.operands) != len(body.Spec.Operands) || (f.byName["workspace"] != nil) != (body.Spec.Workspace != nil) || (f.byName["script"] != nil) != (body.Spec.Script != nil) {
		return nil, nil, fault.New(fault.Internal, "cell_protocol", op, errors.New("descriptors do not match the spec"))
	}
	return &body, f, nil
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
	for name, v := range map[string]int64{"wall": int64(l.Wall), "cpu": int64(l.CPU), "memory": l.Memory, "pids": l.PIDs,
		"output": l.Output, "file_size": l.FileSize, "open_files": l.OpenFiles, "disk": l.Disk, "inodes": l.Inodes} {
		if v <= 0 {
			return fmt.Errorf("limit %s is %d: want a positive number", name, v)
		}
	}
	return nil
}

// files are the descriptors of one request.
type files struct {
	byName   map[string]*os.File
	operands []*os.File
}
