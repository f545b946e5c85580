package kernel

import "palyra/authz/policy"

// Reload reads the policy directory again. On an error the old set stays. A set
// that is as it was changes nothing. Calls that are decided keep their decision,
// but nobody can approve any more what the old set asked about: such calls end
// as refused when the answer comes. While the new set is read and checked, which
// for ten thousand policies takes a third of a second, calls are decided by the old.
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

// loadSet is the set that a configuration names, with the floor if it wants one.
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
