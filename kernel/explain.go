package kernel

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"palyra/authz/policy"
)

// Explain seals and decides a proposal as Call would, and stops there: it asks no person, runs
// and writes nothing, and needs no state directory. Of cfg it uses StateDir, PolicyDir,
// CellPath, Tools and Principal; without CellPath no certificate counts. It also returns the
// Set, so that the caller can name its policies.
func Explain(ctx context.Context, cfg Config, p Proposal, stdin io.Reader) (policy.Explanation, *policy.Set, error) {
	k := newKernel(cfg)
	var err error
	if k.set, err = loadSet(&cfg); err != nil {
		return policy.Explanation{}, nil, err
	}
	q, err := k.Question(ctx, Caller{Principal: k.cfg.Principal}, p, stdin)
	if err != nil {
		return policy.Explanation{}, k.set, err
	}
	return k.set.Explain(q), k.set, nil
}

// Explain decides a proposal as CallAs would, and stops there.
func (k *Kernel) Explain(ctx context.Context, who Caller, p Proposal, stdin io.Reader) (policy.Explanation, *policy.Set, error) {
	set := k.PolicySet()
	q, err := k.Question(ctx, who, p, stdin)
	if err != nil {
		return policy.Explanation{}, set, err
	}
	return set.Explain(q), set, nil
}

// Question seals a proposal and returns policy's question about it, so that another set can be
// asked.
func (k *Kernel) Question(ctx context.Context, who Caller, p Proposal, stdin io.Reader) (policy.Request, error) {
	s, made, err := k.sealAside(ctx, &who, p, stdin)
	if err != nil {
		return policy.Request{}, err
	}
	defer s.close()
	who.read()
	return k.question(&who, s, made), nil
}

// existing returns a state directory, "" if it doesn't exist yet: then nothing of it can be in
// the workspace.
func existing(state string) string {
	if _, err := os.Lstat(state); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return state
}
