package selfbench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/bench/measure"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/capsule"
)

type kind struct {
	name    string
	tier    tier.Tier
	network string
	pool    cell.Pool
	// The evidence that a call must have to count. Empty: any.
	cellMode, netMode string
}

func kinds() []kind {
	return []kind{
		{CellC, tier.C, isolate.NetworkFresh, cell.Pool{}, evidence.CellCold, evidence.NetworkFresh},
		{CellPooled, tier.C, isolate.NetworkFresh, cell.Pool{Networks: 8}, evidence.CellCold, evidence.NetworkPooled},
		{CellVoid, tier.C, isolate.NetworkVoid, cell.Pool{}, evidence.CellCold, evidence.NetworkVoid},
		{CellWarm, tier.C, isolate.NetworkFresh, cell.Pool{Cells: 8, MaxAge: 10 * time.Minute}, evidence.CellWarm, ""},
		{CellB, tier.B, isolate.NetworkFresh, cell.Pool{}, "", ""},
	}
}

func (l *Lab) addCells(s *Set, program string) error {
	for _, k := range kinds() {
		p, err := l.cellPath(k, program)
		switch {
		case fault.KindOf(err) == fault.Refused:
			l.Miss(k.name, program, err)
		case err != nil:
			return err
		default:
			s.Paths = append(s.Paths, p)
		}
	}
	return nil
}

type runner struct {
	*cell.Client
	auth   *authz.Authority
	spec   *isolate.Spec
	digest canon.Digest
	files  *isolate.Files
}

func (r *runner) close() error {
	r.files.Exec.Close()
	return r.Client.Close()
}

func (l *Lab) runner(k kind, program string) (_ *runner, err error) {
	set, err := policy.Load(l.policies)
	if err != nil {
		return nil, err
	}
	file, exe, err := l.open(program)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	r := &runner{files: &isolate.Files{Exec: file, Stdout: l.null, Stderr: l.null}}
	r.spec = &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(k.name + program)), Tier: k.tier, Argv: []string{exe.Path},
		Env: Environment(), Cwd: "/workspace", Limits: kernel.DefaultLimits(), Stdin: capsule.StdinNone, Network: k.network, Exec: exe}
	if r.digest, err = r.spec.Digest(); err != nil {
		return nil, err
	}
	key := grant.NewKey()
	r.auth = authz.New(set, key)
	r.Client, err = cell.Start(context.Background(), cell.Config{Path: l.cell, Tier: k.tier, Key: key, Pool: k.pool})
	return r, err
}

// open opens a program as a kernel would: the system's in place, any other as a sealed copy.
func (l *Lab) open(program string) (*os.File, isolate.File, error) {
	file := isolate.File{Path: l.Host(program), Pinned: capsule.PinnedSystem}
	f, err := os.Open(file.Path)
	if err != nil {
		return nil, file, err
	}
	if program == Noop {
		sealed, err := seal(f)
		f.Close()
		if err != nil {
			return nil, file, err
		}
		f, file.Pinned = sealed, capsule.PinnedSealed
	}
	sum := sha256.New()
	if file.Size, err = io.Copy(sum, f); err != nil {
		f.Close()
		return nil, file, err
	}
	file.Digest = canon.Digest(sum.Sum(nil))
	return f, file, nil
}

// call makes one call. Its time begins with a minted grant and ends with the evidence of a
// reaped program. It includes neither decision nor mint, and no pipe: output goes to /dev/null.
func (r *runner) call() (*isolate.Result, time.Duration, error) {
	d := r.auth.Decide(policy.Request{Principal: policy.LocalUser("bench"), Action: policy.ToolExecute, Resource: policy.Tool(kernel.ToolRun),
		Context: policy.Context{CapsuleDigest: r.spec.Capsule}})
	g, err := r.auth.Grant(d, nil, r.spec.Capsule, r.digest, time.Minute)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	res, err := r.Run(context.Background(), g, r.spec, r.files)
	return res, time.Since(start), err
}

func (l *Lab) cellPath(k kind, program string) (measure.Path, error) {
	r, err := l.runner(k, program)
	if err != nil {
		return measure.Path{}, err
	}
	// A pool fills after it has seen a call, while nothing runs: give it a moment before the
	// first call that must find a cell.
	for range 40 {
		var res *isolate.Result
		if res, _, err = r.call(); err != nil {
			break
		}
		if err = l.ran(res, k.tier); err != nil || k.fits(res.Evidence) {
			break
		}
		err = fault.New(fault.Refused, "cell_start", "measure "+k.name, fmt.Errorf("the evidence says %q, %q", res.Evidence.Cell.Mode, res.Evidence.Network.Mode))
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		r.close()
		return measure.Path{}, err
	}
	return measure.Path{Name: k.name, Close: r.close, Once: func() (time.Duration, error) {
		res, took, err := r.call()
		if err != nil {
			return 0, err
		}
		if err := l.ran(res, k.tier); err != nil {
			return 0, err
		}
		if !k.fits(res.Evidence) {
			return 0, measure.ErrUnfit
		}
		return took, nil
	}}, nil
}

// fits reports whether the evidence shows a cell of this kind.
func (k *kind) fits(e *evidence.Evidence) bool {
	return (k.cellMode == "" || k.cellMode == e.Cell.Mode) && (k.netMode == "" || k.netMode == e.Network.Mode)
}

// ran refuses to count a call that wasn't a run of a program under the tier's confinement.
func (l *Lab) ran(r *isolate.Result, t tier.Tier) error {
	switch {
	case r == nil || r.Evidence == nil || r.Outcome != isolate.Exited || r.Evidence.Exit.Code != 0:
		return fmt.Errorf("run program: it did not exit with status 0: %+v", r)
	case t == tier.C && (r.Evidence.Process.Seccomp != 2 || r.Evidence.Landlock.ABI == 0 || len(r.Evidence.Namespaces.Fresh) < 5):
		return fmt.Errorf("run program: the evidence does not show a tier C cell: %s", inForce(r.Evidence))
	}
	if t == tier.C {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.inForce == "" {
			l.inForce = inForce(r.Evidence)
		}
	}
	return nil
}

// inForce describes a program's confinement in a line, from its evidence.
func inForce(e *evidence.Evidence) string {
	s := fmt.Sprintf("fresh namespaces %s; %d seccomp filters, %d instructions; Landlock ABI %d; capabilities %s; cgroup %s",
		strings.Join(e.Namespaces.Fresh, " "), e.Process.Filters, e.Seccomp.Instructions, e.Landlock.ABI, e.Process.CapEff, e.Cgroup.State)
	if len(e.Degraded) > 0 {
		s += "; degraded: " + strings.Join(e.Degraded, ", ")
	}
	return s
}
