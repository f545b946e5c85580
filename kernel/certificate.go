package kernel

// CertificateFile is the name, in the state directory, of the receipt of the
// newest sandbox certificate (kernel/certify).
const CertificateFile = "certificate.json"

// Self names whom Call is for, as records spell it: "uid:1000".
func (k *Kernel) Self() string { return principal(k.cfg.Principal) }
