package kernel

import (
	"context"
	"io"
	"os"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
)

// Confinement describes how a call would be confined.
type Confinement struct {
	Decision policy.Decision `json:"decision"` // files are sealed only for a call that needs approval
	Fix      string          `json:"fix"`      // see policy.Set.Fix
	Plan     *cell.Plan      `json:"plan"`
}

// Confine seals and decides a proposal and asks palyra-cell for its plan. Like Explain it asks
// no person, runs nothing of the call and needs no state directory. It plans a denied call as
// if it were allowed. Of cfg it uses StateDir, PolicyDir, CellPath, Tools and Principal.
func Confine(ctx context.Context, cfg Config, p Proposal, stdin io.Reader) (_ *Confinement, err error) {
	k := newKernel(cfg)
	if k.set, err = loadSet(&cfg); err != nil {
		return nil, err
	}
	who := Caller{Principal: k.cfg.Principal}
	s, made, err := k.sealAside(ctx, &who, p, stdin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	key := grant.NewKey() // of a palyra-cell that never gets a grant
	q := k.question(&who, s, made)
	out := &Confinement{Decision: authz.New(k.set, key).Decide(q).View(), Fix: k.set.Fix(q)}
	if out.Decision.Effect == policy.NeedsApproval {
		if err := k.holdOperands(ctx, &who, s); err != nil {
			return out, err
		}
	}
	if w := s.capsule.Workspace; w != nil && (w.Staged || len(s.capsule.Caches) > 0) { // like the call's, for the plan
		state, err := os.MkdirTemp("", "palyra-plan-")
		if err != nil {
			return out, fault.New(fault.Unavailable, "resource_exhausted", "explain confinement", err)
		}
		defer os.RemoveAll(state)
		if w.Staged {
			if err := s.takeLayer(&k.layers, layerUser{}, state, "plan"); err != nil {
				return out, err
			}
		}
		if err := s.takeCaches(state, "plan", ""); err != nil {
			return out, err
		}
	}
	if err := s.blankSecrets(); err != nil {
		return out, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return out, fault.New(fault.Unavailable, "resource_exhausted", "explain confinement", err)
	}
	defer null.Close()
	files := s.files(null, null, null)
	if s.capsule.TTY != nil {
		ours, theirs, err := isolate.TerminalLine()
		if err != nil {
			return out, fault.New(fault.Unavailable, "resource_exhausted", "explain confinement", err)
		}
		defer ours.Close()
		defer theirs.Close()
		files.Stdin, files.Terminal = nil, theirs
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := cell.Start(ctx, cell.Config{Path: k.cfg.CellPath, Tier: s.capsule.TierFloor, Key: key})
	if err != nil {
		return out, err
	}
	defer c.Close()
	out.Plan, err = c.Explain(ctx, s.spec(), files)
	return out, err
}
