package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// The host that calls reach, by the machine's own /etc/hosts: there is no other network.
const labHost = "packages.example"

// installEgress follows the document.
func (m *manager) installEgress() (string, error) {
	if err := os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n127.0.0.1 "+labHost+"\n"), 0o644); err != nil {
		return "", err
	}
	if _, err := m.script("install-2"); err != nil {
		return "", err
	}
	if err := same("user", m.property("palyra-egress.service", "User"), "palyra-egress"); err != nil {
		return "", err
	}
	return m.doctorOf("egress")
}

// egress: a call reaches the host that it names. palyra-egress leads it there, as a user of its own
// in a unit of its own; palyra-cell's unit has no network.
func (m *manager) egress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "from the host\n")
			c.Close()
		}
	}()
	at := l.Addr().(*net.TCPAddr).Port
	call := func(name, hosts string) (run, error) {
		return m.answered(name, "process.run", fmt.Sprintf(`{"argv":["/usr/lib/lab","fetch","%s:%d"],"egress_hosts":[%s]}`, labHost, at, hosts))
	}
	named := fmt.Sprintf(`"%s:%d"`, labHost, at)
	r, err := call("egress", named+fmt.Sprintf(`,"127.0.0.0/8:%d"`, at))
	if err != nil || r.State != "done" || r.Steps[0].Stdout.Text != "from the host\n" {
		return "", fmt.Errorf("%v: %v", err, r)
	}
	b, err := m.do("palyra", "attest", "show", "/tmp/egress.json")
	if want := fmt.Sprintf("%q port %d", labHost, at); err != nil || !strings.Contains(b, want) {
		return "", fmt.Errorf("%v: the receipt doesn't say %s: %s", err, want, b)
	}
	// Without the rule for the network the name leads nowhere.
	if r, err = call("forbidden", named); len(r.Steps) != 1 || r.Steps[0].Outcome != "executed" || r.Steps[0].Exit == 0 {
		return "", fmt.Errorf("without a rule for the network: %v: %v", err, r)
	}
	return "done", nil
}

// noHost: palyra-egress's death costs no more than its own calls, and without it a call is refused
// by name.
func (m *manager) noHost() (string, error) {
	if _, err := m.do("systemctl", "kill", "--kill-who=main", "--signal=KILL", "palyra-egress.service"); err != nil {
		return "", err
	}
	if err := until("palyra-egress is there again", func() bool {
		said, err := m.doctorOf("egress")
		return err == nil && strings.HasPrefix(said, "yes")
	}); err != nil {
		return "", err
	}
	if _, err := m.do("systemctl", "stop", "palyra-egress.service"); err != nil {
		return "", err
	}
	r, err := m.tool("nohost", "process.run", `{"argv":["/usr/lib/lab","fetch","packages.example:443"],"egress_hosts":["packages.example"]}`)
	if len(r.Steps) != 1 {
		return "", fmt.Errorf("%v: %v", err, r)
	}
	said := r.Steps[0].Outcome + " " + r.Steps[0].Reason
	_, err = m.do("systemctl", "start", "palyra-egress.service")
	return said, err
}
