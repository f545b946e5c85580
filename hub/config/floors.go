package config

import (
	"slices"
	"strings"
	"time"
)

// profiles from the lowest floor to the highest: each holds to the floors of
// those before it.
var profiles = []string{"local", "single-vm", "worker-enabled"}

// WantsCertificate reports whether calls run only at tiers that the sandbox certificate of
// this boot proves. It is no row of Floors, since it is about the host and not about a
// value; the kernel looks at it for each call.
func (c *Config) WantsCertificate() bool {
	return slices.Index(profiles, c.Profile) >= slices.Index(profiles, "single-vm")
}

// Floor is a profile's demand on one key.
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
			Why:   "a group says who may ask",
			holds: func(c *Config) bool { return c.Listen.SocketMode&0o007 == 0 }},
		{Profile: "single-vm", Key: "cell.confinement", Want: `"enforce"`, Fix: `confinement = "enforce"`,
			Why:   "a kernel update must not end a server's confinement",
			holds: func(c *Config) bool { return c.Cell.Confinement == "enforce" }},
		{Profile: "single-vm", Key: "approvals.allow_self", Want: "false", Fix: "allow_self = false; give approving to a second person",
			Why:   "one stolen credential must not be enough",
			holds: func(c *Config) bool { return !c.Approvals.AllowSelf }},
		{Profile: "single-vm", Key: "approvals.timeout", Want: "at most 1h", Fix: `timeout = "1h" or less`,
			Why:   "the question's facts must still hold when the call runs",
			holds: func(c *Config) bool { return c.Approvals.Timeout.Std() <= time.Hour }},
		{Profile: "single-vm", Key: "notify.url", Want: "https, or none", Fix: "a URL that begins with https://",
			Why:   "who is between sees it, and may know to whom it goes",
			holds: func(c *Config) bool { return c.Notify.URL == "" || strings.HasPrefix(c.Notify.URL, "https://") }},
		{Profile: "single-vm", Key: "limits.requests_per_second", Want: "above 0", Fix: "requests_per_second = 100",
			Why:   "one client must not keep others out",
			holds: func(c *Config) bool { return c.Limits.RequestsPerSecond > 0 }},
		{Profile: "single-vm", Key: "limits.body", Want: "at most 16MiB", Fix: `body = "16MiB" or less`,
			Why:   "requests hold their bodies in memory",
			holds: func(c *Config) bool { return c.Limits.Body <= 16<<20 }},
		{Profile: "single-vm", Key: "journal.min_free", Want: "at least 16MiB", Fix: `min_free = "64MiB"`,
			Why:   "without room for its result a call's outcome is unknown",
			holds: func(c *Config) bool { return c.Journal.MinFree >= 16<<20 }},
		{Profile: "single-vm", Key: "daemon.watchdog", Want: "true", Fix: "watchdog = true",
			Why:   "a server may hang unwatched",
			holds: func(c *Config) bool { return c.Daemon.Watchdog }},
		{Profile: "worker-enabled", Key: "policy.dir", Want: "a directory", Fix: `dir = "/etc/palyra/policy"`,
			Why:   "the built-in set doesn't say who may reach other machines",
			holds: func(c *Config) bool { return c.Policy.Dir != "" }},
		{Profile: "worker-enabled", Key: "approvals.timeout", Want: "at most 15m", Fix: `timeout = "15m" or less`,
			Why:   "a lease on another machine waits no longer",
			holds: func(c *Config) bool { return c.Approvals.Timeout.Std() <= 15*time.Minute }},
		{Profile: "worker-enabled", Key: "access.token_max_age", Want: "at most 720h", Fix: `token_max_age = "720h" or less`,
			Why:   "a credential for several machines must live shorter",
			holds: func(c *Config) bool { return c.Access.TokenMaxAge.Std() <= 720*time.Hour }},
	}
}
