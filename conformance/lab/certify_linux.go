package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

const certificateFile = stateDir + "/certificate.json"

// certificate is what palyra-certify.service left before palyrad started, of
// this boot, verified with the public keys.
func (m *manager) certificate() (string, error) {
	if err := same("result of palyra-certify.service", m.property("palyra-certify.service", "Result"), "success"); err != nil {
		return "", err
	}
	if _, err := m.do("palyra", "attest", "verify", "--trust", stateDir+"/trust", certificateFile); err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id, d, err := actOf(certificateFile)
	if err := errors.Join(err, same("boot", id, strings.TrimSpace(string(boot)))); err != nil {
		return "", err
	}
	var open []string // what is not proven, with its reason
	for _, k := range sorted(d) {
		if strings.HasPrefix(k, "claim.") && (strings.Contains(d[k], " inconclusive") || strings.Contains(d[k], " refuted")) {
			open = append(open, k+": "+d[k])
		}
	}
	if len(open) > 0 {
		return "", fmt.Errorf("%s", strings.Join(open, "\n"))
	}
	return fmt.Sprintf("b: %s; c: %s; cgroup %s; capabilities %s, no_new_privs %s, seccomp %s, apparmor %s", d["tier.b"], d["tier.c"], d["cgroup.c.cold"],
		d["process.cap_bnd"], d["process.no_new_privs"], d["process.seccomp"], d["process.apparmor"]), nil
}

// actOf reads an administrative act's boot and details from its receipt.
func actOf(file string) (boot string, detail map[string]string, err error) {
	var bundle struct{ DsseEnvelope struct{ Payload string } }
	var statement struct {
		Predicate struct {
			BootID string `json:"boot_id"`
			Detail map[string]string
		}
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &bundle)
	}
	if err == nil {
		b, err = base64.StdEncoding.DecodeString(bundle.DsseEnvelope.Payload)
	}
	if err == nil {
		err = json.Unmarshal(b, &statement)
	}
	return statement.Predicate.BootID, statement.Predicate.Detail, err
}

// uncertified: without a certificate palyrad serves, says what is missing and
// runs nothing, at either tier.
func (m *manager) uncertified() (string, error) {
	_, err := m.do("systemctl", "stop", "palyrad.service")
	if err == nil {
		err = os.Rename(certificateFile, certificateFile+".away")
	}
	if err == nil {
		// palyra-certify.service has done its part of this boot.
		_, err = m.do("systemctl", "start", "palyrad.service")
	}
	if err != nil {
		return "", err
	}
	s, err := m.status()
	if err != nil {
		return "", err
	}
	r, err := m.tool("uncertified", "palyra.echo", `{"text":"hello"}`)
	var texts []string
	for _, st := range r.Steps {
		texts = append(texts, st.Outcome+" "+st.Reason)
	}
	if len(texts) == 0 {
		return "", errors.Join(err, errors.New("there is no step"))
	}
	return fmt.Sprintf("%s; warnings %q", strings.Join(texts, ", "), s.Warnings), nil
}

// recertified: the hint's command helps while palyrad runs, and restarts it.
func (m *manager) recertified() (string, error) {
	// The next steps start palyrad more often than the manager allows in five minutes.
	defer m.do("systemctl", "reset-failed", "palyrad.service")
	before := m.property("palyrad.service", "MainPID")
	if _, err := m.do("systemctl", "restart", "palyra-certify.service"); err != nil {
		return "", err
	}
	err := until("palyrad is another", func() bool {
		pid := m.property("palyrad.service", "MainPID")
		return pid != before && pid != "0" && m.property("palyrad.service", "ActiveState") == "active"
	})
	if err != nil {
		return "", err
	}
	r, err := m.tool("recertified", "palyra.echo", `{"text":"hello"}`)
	s, serr := m.status()
	return fmt.Sprintf("%v; %d warnings", r, len(s.Warnings)), errors.Join(err, serr)
}
