package main

import (
	"fmt"
	"strings"
)

// labFile is the kernel lab's committed record of its last whole run; a test there holds it
// to the lab's expectations.
const labFile = "../lab/recorded.json"

// kernels is the part of labFile that the page shows.
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

Emulated by the [kernel lab](../conformance/lab/README.md) (` + "`make lab`" + `), as root and as an
unprivileged user where both can.

| machine | architecture | kernel | first process | checks | passed | inconclusive | failed |
|---|---|---|---|--:|--:|--:|--:|
`)
	for _, m := range k.Machines {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %d | %d | %d | %d |\n", m.Machine, m.Arch, m.Kernel, m.Init, m.Run, m.Passed, m.Unsure, m.Failed)
	}
	b.WriteString("\nInconclusive: as expected, but part of the check proved nothing.\n\n")
	var checks [][2]string
	on := make(map[[2]string][]string)
	for _, m := range k.Machines {
		for _, u := range m.Unproven {
			c := [2]string{u.Check, u.Reason}
			if on[c] == nil {
				checks = append(checks, c)
			}
			on[c] = append(on[c], m.Machine)
		}
	}
	for _, c := range checks {
		fmt.Fprintf(b, "- %s (%s): %s\n", c[0], strings.Join(on[c], ", "), c[1])
	}
	b.WriteString("\n")
}
