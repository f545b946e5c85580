package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/isolate/knob"
	"palyra/isolate/tier"
	"palyra/kernel/internal/pin"
)

// CertificateFile is the name, in the state directory, of the receipt of the
// newest sandbox certificate (kernel/certify).
const CertificateFile = "certificate.json"

// CertifyAct is the name of the administrative act that a sandbox certificate is.
const CertifyAct = "sandbox.certify"

// Self names whom Call is for, as receipts name principals.
func (k *Kernel) Self() string { return principal(k.cfg.Principal) }

// certificates is what the sandbox certificate in the state directory says of the
// tiers. It is read when it is first asked for, and stays: nobody else can make
// another one while a Kernel holds the directory.
type certificates struct {
	once  sync.Once
	tiers map[tier.Tier]string // guarded by once
}

// certificate returns what policy hears of the certificate: one of
// policy.CertificateNone, CertificateProven and CertificateRefuted.
func (k *Kernel) certificate(t tier.Tier) string {
	k.certified.once.Do(func() { k.certified.tiers = k.readCertificate() })
	if v := k.certified.tiers[t]; v != "" {
		return v
	}
	return policy.CertificateNone
}

// readCertificate returns nothing for a certificate that is not there, not
// genuine, or about another boot, kernel, palyra-cell or kind of build.
func (k *Kernel) readCertificate() map[tier.Tier]string {
	b, err := durable.ReadRegular(filepath.Join(k.cfg.StateDir, CertificateFile), receipt.MaxBundle)
	if err != nil {
		return nil
	}
	trust, err := receipt.LoadTrust(filepath.Join(k.cfg.StateDir, "trust"))
	if err != nil {
		return nil
	}
	v, err := receipt.Verify(b, trust)
	if err != nil || v.Act == nil || v.Act.Act != CertifyAct {
		return nil
	}
	d := v.Act.Detail
	if boot := bootID(); boot == "" || v.Act.BootID != boot || d["kernel"] == "" || d["kernel"] != osRelease() ||
		d["test_build"] != knob.Build || d["palyra-cell"] == "" || d["palyra-cell"] != k.cellDigest() {
		return nil
	}
	return map[tier.Tier]string{tier.B: saidOf(d["tier.b"]), tier.C: saidOf(d["tier.c"])}
}

// saidOf reads "proven 51, refuted 0, inconclusive 0".
func saidOf(text string) string {
	words := strings.Split(text, ", ")
	if len(words) != 3 || !strings.HasPrefix(words[0], "proven ") || !strings.HasPrefix(words[1], "refuted ") {
		return policy.CertificateNone // "refused: …", or nothing
	}
	switch {
	case words[1] != "refuted 0":
		return policy.CertificateRefuted
	case words[0] == "proven 0":
		return policy.CertificateNone
	}
	return policy.CertificateProven
}

// cellDigest is the digest of palyra-cell as it is now, "" if it cannot be had.
func (k *Kernel) cellDigest() string {
	h, err := pin.At(nil, k.cfg.CellPath, pin.Anywhere)
	if err != nil {
		return ""
	}
	defer h.Close()
	f, err := h.Open()
	if err != nil {
		return ""
	}
	defer f.Close()
	if k.state == nil || !h.System() { // what somebody can change is read each time
		d, _, err := pin.Digest(f, maxExecutable)
		if err != nil {
			return ""
		}
		return d.String()
	}
	d, err := k.state.digests.Of(f, h.Stat, maxExecutable)
	if err != nil || pin.Changed(f, h.Stat) != nil {
		return ""
	}
	return d.Sum.String()
}

// osRelease is uname -r, "" if /proc does not say.
func osRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
