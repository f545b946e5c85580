package kernel

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"palyra/authz/policy"
)

// Explain seals a proposal and decides it as Call would, and stops there: it
// asks nobody, runs nothing and writes nothing, and needs no state directory to
// exist. Of cfg it uses StateDir, PolicyDir, CellPath, Tools and Principal; without
// CellPath there is no certificate of it. The Set is
// returned with the Explanation, so that its policies can be named.
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

// Question seals a proposal and returns what policy would be asked about it, so
// that another set can be tried on it.
func (k *Kernel) Question(ctx context.Context, who Caller, p Proposal, stdin io.Reader) (policy.Request, error) {
	s, made, err := k.sealAside(ctx, &who, p, stdin)
	if err != nil {
		return policy.Request{}, err
	}
	defer s.close()
	return k.question(&who, s, made), nil
}

// existing returns a state directory, "" where there is none yet: nothing of it
// can lie in the workspace.
func existing(state string) string {
	if _, err := os.Lstat(state); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return state
}
