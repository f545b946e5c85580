package config

import (
	"slices"
	"time"
)

// profiles from the lowest floor to the highest: each holds to the floors of
// those before it.
var profiles = []string{"local", "single-vm", "worker-enabled"}

// WantsCertificate reports whether calls run at tiers alone that the sandbox
// certificate of this boot proves. It is no row of Floors, since it is about the
// host and not about a value, and is looked at for each call.
func (c *Config) WantsCertificate() bool {
	return slices.Index(profiles, c.Profile) >= slices.Index(profiles, "single-vm")
}

// Floor is what a profile asks of one key.
type Floor struct {
	Profile string `json:"profile"` // the lowest one that it holds for; higher ones too
	Key     string `json:"key"`
	Want    string `json:"want"` // "false", "at most 15m"
	Why     string `json:"why"`
	Fix     string `json:"fix"`

	holds func(*Config) bool
}

// Applies reports whether the floor holds for a configuration of this profile.
func (f Floor) Applies(profile string) bool {
	at := slices.Index(profiles, profile)
	return at < 0 || at >= slices.Index(profiles, f.Profile)
}

// Floors returns the table of floors, lowest profile first.
func Floors() []Floor {
	return []Floor{
		{Profile: "local", Key: "listen.socket_mode", Want: "no bit for others", Fix: `socket_mode = "0660" and socket_group`,
			Why:   "who may ask is a matter of a group, not of having a login",
			holds: func(c *Config) bool { return c.Listen.SocketMode&0o007 == 0 }},
		{Profile: "single-vm", Key: "cell.confinement", Want: `"enforce"`, Fix: `confinement = "enforce"`,
			Why:   "a server that runs for years must not lose its own confinement with a kernel update",
			holds: func(c *Config) bool { return c.Cell.Confinement == "enforce" }},
		{Profile: "single-vm", Key: "approvals.allow_self", Want: "false", Fix: "allow_self = false; give approving to a second person",
			Why:   "on a shared host one stolen credential must not be enough",
			holds: func(c *Config) bool { return !c.Approvals.AllowSelf }},
		{Profile: "single-vm", Key: "approvals.timeout", Want: "at most 1h", Fix: `timeout = "1h" or less`,
			Why:   "what was true when the question was asked must be true when the call runs",
			holds: func(c *Config) bool { return c.Approvals.Timeout.Std() <= time.Hour }},
		{Profile: "single-vm", Key: "limits.requests_per_second", Want: "above 0", Fix: "requests_per_second = 100",
			Why:   "one client must not be able to keep the others out",
			holds: func(c *Config) bool { return c.Limits.RequestsPerSecond > 0 }},
		{Profile: "single-vm", Key: "limits.body", Want: "at most 16MiB", Fix: `body = "16MiB" or less`,
			Why:   "requests in flight hold their bodies in memory",
			holds: func(c *Config) bool { return c.Limits.Body <= 16<<20 }},
		{Profile: "single-vm", Key: "journal.min_free", Want: "at least 16MiB", Fix: `min_free = "64MiB"`,
			Why:   "without room for its result a call would end as outcome unknown",
			holds: func(c *Config) bool { return c.Journal.MinFree >= 16<<20 }},
		{Profile: "single-vm", Key: "daemon.watchdog", Want: "true", Fix: "watchdog = true",
			Why:   "nobody watches a server that hangs at night",
			holds: func(c *Config) bool { return c.Daemon.Watchdog }},
		{Profile: "worker-enabled", Key: "policy.dir", Want: "a directory", Fix: `dir = "/etc/palyra/policy"`,
			Why:   "the built-in set knows nothing of other machines; who may reach them must be written down",
			holds: func(c *Config) bool { return c.Policy.Dir != "" }},
		{Profile: "worker-enabled", Key: "approvals.timeout", Want: "at most 15m", Fix: `timeout = "15m" or less`,
			Why:   "a lease on another machine does not wait longer",
			holds: func(c *Config) bool { return c.Approvals.Timeout.Std() <= 15*time.Minute }},
		{Profile: "worker-enabled", Key: "access.token_max_age", Want: "at most 720h", Fix: `token_max_age = "720h" or less`,
			Why:   "a credential that is good on several machines is worth more and must live shorter",
			holds: func(c *Config) bool { return c.Access.TokenMaxAge.Std() <= 720*time.Hour }},
	}
}
