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
// exist. Of cfg it uses StateDir, PolicyDir and Principal. The Set is returned
// with the Explanation, so that its policies can be named.
func Explain(ctx context.Context, cfg Config, p Proposal, stdin io.Reader) (policy.Explanation, *policy.Set, error) {
	k := &Kernel{cfg: cfg, set: policy.Default()}
	if k.cfg.Principal.ID == "" {
		k.cfg.Principal = localUser()
	}
	if cfg.PolicyDir != "" {
		set, err := policy.Load(cfg.PolicyDir)
		if err != nil {
			return policy.Explanation{}, nil, err
		}
		k.set = set
	}
	state := cfg.StateDir
	if _, err := os.Lstat(state); errors.Is(err, fs.ErrNotExist) {
		state = "" // nothing of it can lie in the workspace
	}
	s, err := seal(ctx, &p, stdin, state, nil)
	if err != nil {
		return policy.Explanation{}, k.set, err
	}
	defer s.close()
	return k.set.Explain(k.question(s, &p)), k.set, nil
}
