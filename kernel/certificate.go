package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/knob"
	"palyra/isolate/tier"
	"palyra/kernel/internal/pin"
)

// CertificateFile is the name, in the state directory, of the newest sandbox certificate's
// receipt (kernel/certify).
const CertificateFile = "certificate.json"

// CertifyAct is the name of the administrative act that makes a sandbox certificate.
const CertifyAct = "sandbox.certify"

// Self is the principal of Call, as receipts name principals.
func (k *Kernel) Self() string { return principal(k.cfg.Principal) }

// certificates caches what the sandbox certificate in the state directory says of the tiers.
// It's read on first use, and again when the certificate or palyra-cell is another file.
type certificates struct {
	mu    sync.Mutex
	read  bool                 // guarded by mu
	cell  os.FileInfo          // guarded by mu; palyra-cell as it was then
	file  os.FileInfo          // guarded by mu; the certificate as it was then; nil for none
	tiers map[tier.Tier]string // guarded by mu
	why   error                // guarded by mu; why some tier isn't proven
	made  time.Time            // guarded by mu; zero: no certificate counts
}

// certificate returns the attribute for policy: policy.CertificateNone, CertificateProven or
// CertificateRefuted.
func (k *Kernel) certificate(t tier.Tier) string {
	v, _ := k.certificateOf(t)
	return v
}

func (k *Kernel) certificateOf(t tier.Tier) (string, error) {
	c := &k.certified
	c.mu.Lock()
	defer c.mu.Unlock()
	// The user who may replace palyra-cell is trusted, but may forget to certify it. Another
	// process may make a certificate at any time.
	file := filepath.Join(k.cfg.StateDir, CertificateFile)
	if !c.read || c.tiers != nil && !sameFile(c.cell, k.cfg.CellPath) || !sameFile(c.file, file) && !(c.file == nil && absentFile(file)) {
		c.cell, _ = os.Stat(k.cfg.CellPath)
		c.file, _ = os.Stat(file)
		c.tiers, c.made, c.why = k.readCertificate()
		c.read = true
	}
	if v := c.tiers[t]; v != "" {
		return v, c.why
	}
	return policy.CertificateNone, c.why
}

// Certified returns the certificate's word on a tier, as policy gets it, and when the
// certificate was made; the zero time if none counts.
func (k *Kernel) Certified(t tier.Tier) (said string, made time.Time) {
	said, _ = k.certificateOf(t)
	k.certified.mu.Lock()
	defer k.certified.mu.Unlock()
	return said, k.certified.made
}

func sameFile(was os.FileInfo, path string) bool {
	now, err := os.Stat(path)
	return err == nil && was != nil && os.SameFile(was, now) && was.Size() == now.Size() && was.ModTime().Equal(now.ModTime())
}

func absentFile(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// readCertificate returns the tiers of the certificate. It returns none, and an error, if the
// certificate is missing, not genuine, or about another boot, kernel, user, palyra-cell or kind
// of build.
func (k *Kernel) readCertificate() (_ map[tier.Tier]string, made time.Time, _ error) {
	b, err := durable.ReadRegular(filepath.Join(k.cfg.StateDir, CertificateFile), receipt.MaxBundle)
	if err != nil {
		return nil, made, errors.New("there is none")
	}
	trust, err := receipt.LoadTrust(filepath.Join(k.cfg.StateDir, "trust"))
	if err != nil {
		return nil, made, errors.New("there are no keys to verify it with")
	}
	v, err := receipt.Verify(b, trust)
	if err != nil || v.Act == nil || v.Act.Act != CertifyAct {
		return nil, made, errors.New("it is not one that was signed here")
	}
	d := v.Act.Detail
	for _, x := range []struct{ what, said, is string }{
		{"boot", v.Act.BootID, bootID()},
		{"kernel", d["kernel"], osRelease()},
		{"user", d["uid"], strconv.Itoa(os.Geteuid())},
		{"palyra-cell", d["palyra-cell"], k.cellDigest()},
	} {
		if x.is == "" || x.said != x.is {
			return nil, made, fmt.Errorf("it is about another %s", x.what)
		}
	}
	if d["test_build"] != knob.Build {
		return nil, made, errors.New("it is about a build for tests")
	}
	tiers := make(map[tier.Tier]string)
	var open []string
	for t, kinds := range map[tier.Tier][]string{tier.B: {"b"}, tier.C: {"c.cold", "c.warm", "c.void", "c.loop"}} {
		tiers[t] = saidOf(d["tier."+t.String()])
		for _, kind := range kinds {
			// Without either, the tape was refused or not tested.
			if tiers[t] == policy.CertificateProven && d["tape."+kind] == "" && d["unmade."+kind] == "" {
				tiers[t] = policy.CertificateNone
			}
		}
		if tiers[t] != policy.CertificateProven {
			open = append(open, fmt.Sprintf("tier %s: %s", t, d["tier."+t.String()]))
		}
	}
	if made, err = time.Parse(time.RFC3339Nano, v.Act.Time); err != nil {
		return nil, made, errors.New("it does not say when it was made")
	}
	if len(open) == 0 {
		return tiers, made, nil
	}
	slices.Sort(open)
	return tiers, made, errors.New("it says " + strings.Join(open, "; "))
}

func saidOf(text string) string {
	var n [5]int
	words := strings.Split(text, ", ")
	if len(words) != len(n) { // "refused: …", or nothing
		return policy.CertificateNone
	}
	for i, name := range []string{"proven ", "refuted ", "inconclusive ", "absent ", "inherited "} {
		number, ok := strings.CutPrefix(words[i], name)
		v, err := strconv.Atoi(number)
		if !ok || err != nil || v < 0 {
			return policy.CertificateNone
		}
		n[i] = v
	}
	switch {
	case n[1] > 0:
		return policy.CertificateRefuted
	case n[0] > 0 && n[2] == 0:
		return policy.CertificateProven
	}
	return policy.CertificateNone
}

// Uncertified returns why Config.Floor lets no call run at a tier, nil if calls may run.
func (k *Kernel) Uncertified(t tier.Tier) error {
	said, why := k.certificateOf(t)
	if !k.cfg.Floor || said == policy.CertificateProven {
		return nil
	}
	return why
}

// denial is the error of a denied call. It names the environment variables that caused the
// denial. If the floor alone stands in the way it gives the certificate's state and the remedy.
func (k *Kernel) denial(set *policy.Set, d policy.Decision, s *sealed) error {
	t := s.capsule.TierFloor
	if len(s.envCode) > 0 && len(d.Policies) > 0 && set.Reads("env_code", d.Policies...) {
		return fault.New(fault.Denied, d.Reason, "decide call",
			fmt.Errorf("%s: leads the program to code that the call, or others than root, can write", strings.Join(s.envCode, ", "))).
			WithHint("leave it as it is, or set it to a folder of the system; a policy can permit it by name")
	}
	if !slices.Equal(d.Policies, []string{policy.FloorCertificate}) {
		return fault.New(fault.Denied, d.Reason, "decide call", nil)
	}
	_, why := k.certificateOf(t)
	return fault.New(fault.Denied, "certificate_missing", fmt.Sprintf("decide call at tier %s by the sandbox certificate of this boot", t), why).
		WithHint("palyra sandbox certify before palyrad starts; under systemd: systemctl restart palyra-certify.service")
}

// cellDigest returns the digest of palyra-cell's present file, "" if it can't be read.
func (k *Kernel) cellDigest() string {
	if k.cfg.CellPath == "" {
		return ""
	}
	file, err := filepath.Abs(k.cfg.CellPath)
	if err != nil {
		return ""
	}
	h, err := pin.At(nil, file, pin.Anywhere)
	if err != nil {
		return ""
	}
	defer h.Close()
	f, err := h.Open()
	if err != nil {
		return ""
	}
	defer f.Close()
	if k.state == nil || !h.System() { // a file that others can change is read each time
		d, _, err := pin.Digest(context.Background(), f, maxExecutable)
		if err != nil {
			return ""
		}
		return d.String()
	}
	d, err := k.state.digests.Of(context.Background(), f, h.Stat, maxExecutable)
	if err != nil || pin.Changed(f, h.Stat) != nil {
		return ""
	}
	return d.Sum.String()
}

// osRelease returns uname -r, "" if /proc doesn't have it.
func osRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
