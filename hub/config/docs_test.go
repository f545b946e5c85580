package config

import (
	"fmt"
	"slices"
	"strings"
)

// certificateDocs is what holds from single-vm on beside the floors.
const certificateDocs = `
From single-vm on a call runs only at a tier for which ` + "`context.certificate`" + ` is ` + "`proven`" + `
([certificate.md](certificate.md#what-counts)); other profiles leave that to policy. The rule is
` + "`palyra.floor.certificate`" + `, one of two behind a set's own; its denials are ` + "`certificate_missing`" + `. The
other is ` + "`palyra.floor.network`" + `: no call is in [the host's network](../EGRESS.md#the-hosts-network).
`

// page returns docs/formats/config.md.
func page() string {
	var b strings.Builder
	b.WriteString(docsHead)
	fmt.Fprintf(&b, "```toml\n%s```\n\n%s", example, docsRules)
	var reload []string
	keys := Keys()
	for _, k := range keys {
		if k.Reload {
			reload = append(reload, "`"+k.Name+"`")
		}
	}
	fmt.Fprintf(&b, "7. SIGHUP reads file and policies again, and applies\n   %s,\n   %s.\n%s",
		strings.Join(reload[:4], ", "), strings.Join(reload[4:], ", "), docsSighup)
	b.WriteString("## Profiles\n\nA profile is a floor: it changes no value, and refuses weaker ones than it and those before it want.\n")
	last := ""
	for _, f := range Floors() {
		if f.Profile != last {
			fmt.Fprintf(&b, "\nFrom `%s` on:\n\n", f.Profile)
			last = f.Profile
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", f.Key, f.Want)
	}
	b.WriteString("\nUnder every profile a listener beyond loopback needs TLS, authentication and a rate limit.\n")
	b.WriteString(certificateDocs)
	b.WriteString("\n## Keys\n\nIn brackets: values, unit or bounds, and the default.\n")
	names, docs := sections()
	last = ""
	for i, k := range keys {
		if k.section != last {
			fmt.Fprintf(&b, "\n### [%s]\n\n", k.section)
			table, _, _ := strings.Cut(k.section, ".")
			if doc := docs[slices.Index(names, table)]; doc != "" {
				b.WriteString(doc + "\n\n")
			}
			last = k.section
		} else if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "- `%s` (%s; `%s`): %s\n", leaf(k.Name), valueOf(k), orQuotes(k), k.Doc)
	}
	return b.String()
}

// valueOf is a key's type, unit and bounds as the page has them: "4KiB to 64MiB".
func valueOf(k Key) string {
	if len(k.OneOf) > 0 {
		return strings.TrimPrefix(kindOf(k), "one of ")
	}
	switch b := bounds(k); {
	case b != "" && k.Type == "integer":
		return b + " " + k.Unit
	case b != "":
		return b + strings.TrimPrefix(k.Unit, map[string]string{"size": "bytes", "duration": "duration"}[k.Type])
	case k.Unit != "":
		return k.Unit
	}
	return k.Type
}

func orQuotes(k Key) string {
	s := k.Default
	switch {
	case k.Type == "list":
		return "[]"
	case s == "":
		return `""`
	}
	return s
}

// example is a complete small configuration; a test loads it.
const example = `profile = "single-vm"

[listen]
socket_group = "palyra-users"

[policy]
dir = "/etc/palyra/policy"

[workspaces.reports]
path = "/srv/palyra/reports"
read_only = false

[approvals]
timeout = "10m"
`

const docsHead = `# Configuration

<!-- Made from the tags of hub/config's struct; rewritten by: make generate -->

palyrad reads one TOML file, ` + "`--config`" + `. Everything has a default; this is a whole configuration:

`

const docsRules = `1. An unknown key, table or ` + "`PALYRA_`" + ` variable MUST be refused, with its line and the nearest name.
2. Case counts: ` + "`Profile`" + ` is not ` + "`profile`" + `.
3. Durations are Go's text (` + "`\"90s\"`" + `), sizes a number of bytes or text (` + "`\"64KiB\"`, `\"16MiB\"`" + `), modes
   octal text.
4. The file MUST be a regular file of at most 256 KiB that only root or palyrad's user may write.
5. A variable ` + "`PALYRA_SECTION_KEY`" + ` overrides ` + "`section.key`" + `, ` + "`PALYRA_PROFILE`" + ` the profile; none
   declares workspaces or models.
6. Secrets MUST NOT stand in it: no key takes one, and text that looks like a private key or token
   is refused.
`

const docsSighup = `   Other changes are logged as waiting for a restart. After an error everything stays as it was.

` + "`palyra config schema`" + ` prints the JSON Schema, ` + "`palyra config explain KEY`" + ` one key with its floors
and the cost of a weaker value, and ` + "`palyrad --check`" + ` checks a file.

`
