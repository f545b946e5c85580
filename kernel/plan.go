package kernel

import (
	"context"
	"io"
	"os"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/isolate/cell"
)

// Confinement is how a call would be confined.
type Confinement struct {
	Decision policy.Decision `json:"decision"` // files are sealed for a call that is approved, and only for that
	Plan     *cell.Plan      `json:"plan"`
}

// Confine seals a proposal, decides it and asks palyra-cell what it would do
// with it. Like Explain it asks nobody, runs nothing of the call and needs no
// state directory; a denied call is planned as if it had been allowed. Of cfg it
// uses StateDir, PolicyDir, CellPath, Tools and Principal.
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
	key := grant.NewKey() // of a palyra-cell that is never given a grant
	out := &Confinement{Decision: authz.New(k.set, key).Decide(k.question(&who, s, made)).View()}
	if out.Decision.Effect == policy.NeedsApproval {
		if err := k.holdOperands(ctx, &who, s); err != nil {
			return out, err
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return out, fault.New(fault.Unavailable, "open_null", "explain confinement", err)
	}
	defer null.Close()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := cell.Start(ctx, cell.Config{Path: k.cfg.CellPath, Tier: s.capsule.TierFloor, Key: key})
	if err != nil {
		return out, err
	}
	defer c.Close()
	out.Plan, err = c.Explain(ctx, s.spec(), s.files(null, null, null))
	return out, err
}
