package main

import (
	"fmt"
	"strings"
)

// labFile is what the kernel lab has committed of its last whole run; a test there
// holds it to what the lab expects.
const labFile = "../lab/recorded.json"

// kernels is labFile, as much of it as the page shows.
type kernels struct {
	Machines []struct {
		Machine  string `json:"machine"`
		Arch     string `json:"arch"`
		Kernel   string `json:"kernel"`
		Init     string `json:"init"`
		Run      int    `json:"run"`
		Passed   int    `json:"passed"`
		Unsure   int    `json:"inconclusive"`
		Failed   int    `json:"failed"`
		Unproven []struct {
			Check  string `json:"check"`
			Reason string `json:"reason"`
		} `json:"unproven"`
	} `json:"machines"`
}

func (k *kernels) write(b *strings.Builder) {
	b.WriteString(`## Other kernels

The kernel lab (` + "`make lab`" + `): each machine emulated, its checks what
[conformance/README.md](../conformance/README.md#the-kernel-lab) says, as root and as an unprivileged user where both can.

| machine | architecture | kernel | first process | checks | passed | inconclusive | failed |
|---|---|---|---|--:|--:|--:|--:|
`)
	for _, m := range k.Machines {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %d | %d | %d | %d |\n", m.Machine, m.Arch, m.Kernel, m.Init, m.Run, m.Passed, m.Unsure, m.Failed)
	}
	b.WriteString("\nInconclusive: as expected, but a part of it proved nothing.\n\n| machine | check | why |\n|---|---|---|\n")
	for _, m := range k.Machines {
		for _, u := range m.Unproven {
			fmt.Fprintf(b, "| %s | %s | %s |\n", m.Machine, u.Check, strings.ReplaceAll(u.Reason, "|", "\\|"))
		}
	}
	b.WriteString("\n")
}
