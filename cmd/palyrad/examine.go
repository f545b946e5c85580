package main

import (
	"fmt"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/keyring"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// skew is how far the clock may be behind the newest time known before doctor
// calls it wrong.
const skew = time.Minute

// examine returns doctor's findings besides the host's controls: whether the parts that
// decide and record are as they should be. A "no" with a cost counts as missing.
func (d *daemon) examine(c *core) []hub.Finding {
	cfg := d.cfg.Load()
	finding := func(name string, ok bool, detail, how, cost, fix string) hub.Finding {
		f := hub.Finding{Name: name, Answer: "yes", Detail: detail, How: how, Needed: []string{}}
		if !ok {
			f.Answer, f.Cost, f.Fix = "no", cost, fix
		}
		return f
	}
	set := c.kernel.PolicySet()
	from := "the built-in set"
	if cfg.Policy.Dir != "" {
		from = cfg.Policy.Dir
	}
	detail, ok := fmt.Sprintf("%d policies from %s", len(set.Policies()), from), true
	if w := d.waiting.Load(); w != nil {
		detail, ok = detail+"; not applied: "+*w, false
	}
	out := []hub.Finding{
		finding("policy", ok, detail, "the last reload", "what is in force is older than the files", "palyra policy check DIR, then palyra policy reload; or restart palyrad"),
		d.examineDisk(cfg, finding),
	}
	behind := c.store.Clock().Behind()
	detail = "not behind the newest time known"
	if behind >= skew {
		detail = behind.Truncate(time.Second).String() + " behind the newest time known"
	}
	out = append(out, finding("clock", behind < skew, detail, "compared with the times in the store",
		"tokens and grants end by the later time, receipts carry the earlier", "timedatectl status"))

	detail, ok = plainKeys(c.kernel, cfg)
	out = append(out, finding("keys", ok, detail, "the signing keys' files when they were opened last, the authority's now",
		"a reader of the disk, or of a copy, can sign and certify as this installation", "palyra keys seal, with keys.identity; or keys.plain = true"))

	said, made := c.kernel.Certified(tier.C)
	detail, cost := said, ""
	if !made.IsZero() {
		detail += ", " + time.Since(made).Truncate(time.Second).String() + " old"
	}
	switch why := c.kernel.Uncertified(tier.C); {
	case why != nil:
		detail, cost = said+": "+why.Error(), "no call runs at tier C under profile "+cfg.Profile
	case said != policy.CertificateProven:
		detail += "; profile " + cfg.Profile + " wants none"
	}
	if said == policy.CertificateRefuted {
		cost = "a claim about tier C does not hold on this host"
	}
	out = append(out, finding("certificate", said == policy.CertificateProven, detail, "the sandbox certificate of this boot", cost,
		"palyra sandbox certify"))

	out = append(out, examineVault(cfg.State.Dir)...)
	out = append(out, d.examineEgress(cfg, finding))

	if cfg.Notify.URL != "" {
		detail = "the last one was taken, or none was due"
		err := d.core.local.Notified()
		if err != nil {
			detail = "the last one failed: " + err.Error()
		}
		out = append(out, finding("notify", err == nil, detail, "the last notification since the start",
			"people who are away aren't told that a question waits", "policy must permit http.fetch to the principal palyrad (docs/CONSOLE.md), and the URL answer with a status of 2xx"))
	}

	conf := d.confinement()
	detail = "every control on palyrad itself is in force"
	if !conf.Enforced {
		detail = "palyrad does not confine itself"
	}
	return append(out, finding("confinement", conf.Enforced, detail, "observed after palyrad had confined itself",
		"an exploited palyrad may do all that its user may", "palyra status names the control; cell.confinement = \"enforce\" refuses to start without"))
}

// plainKeys says how the private keys are kept, and who left them plain if they are. A first use
// alone doesn't satisfy doctor: ok is false.
func plainKeys(k *kernel.Kernel, cfg *config.Config) (detail string, ok bool) {
	plain := k.PlainKeys()
	if len(plain) == 0 {
		return "sealed", true
	}
	detail, ok = strings.Join(plain, ", ")+" plain in "+cfg.State.Dir, cfg.Keys.Plain
	if ok {
		detail += ", as keys.plain says"
	}
	switch a, err := k.Acknowledged(); {
	case err != nil:
		detail += "; " + err.Error()
	case a != nil && a.How == keyring.Asked:
		detail, ok = detail+"; "+a.By+" asked for that on "+a.Time, true
	case a != nil:
		detail += "; since the first use by " + a.By + " on " + a.Time
	}
	return detail, ok
}

func (d *daemon) examineDisk(cfg *config.Config, finding func(name string, ok bool, detail, how, cost, fix string) hub.Finding) hub.Finding {
	const how, cost = "free space of the state directory", "no call is taken: its intent could not be logged"
	free, err := freeBytes(cfg.State.Dir)
	if err != nil {
		return hub.Finding{Name: "disk", Answer: "unknown", Detail: err.Error(), How: how, Needed: []string{}}
	}
	detail := fmt.Sprintf("%d MiB free, journal.min_free is %v", free>>20, cfg.Journal.MinFree)
	return finding("disk", uint64(free) >= uint64(cfg.Journal.MinFree), detail, how, cost, "df -h "+cfg.State.Dir)
}
