package diagnosis

import (
	"path"
	"strings"

	"palyra/call/egress"
)

// sshPort is the port of SSH, RFC 4253 §4.1.
const sshPort = 22

// sshLine fits a line of ssh's that says it got no further.
var sshLine = anyOf(has("ssh: could not resolve hostname", "ssh: connect to host", "host key verification failed", "permission denied (publickey", "kex_exchange_identification"),
	all(has("connection reset by ", "connection closed by "), has(" port ")))

// sshHost returns the host of which git asked over SSH, "" if it isn't known: that of a line of
// ssh's, if the program was denied it or the call names it, that of a remote among git's arguments,
// or the one whose SSH port the call names. It's a canonical name.
func sshHost(s *Seen, lines []string) string {
	for _, l := range lines {
		if !sshLine(s, l) {
			continue
		}
		for _, before := range []string{"ssh: could not resolve hostname ", "ssh: connect to host "} {
			if _, rest, ok := strings.Cut(l, before); ok {
				if host := known(s, strings.TrimSuffix(first(rest), ":")); host != "" {
					return host
				}
			}
		}
		if who, _, ok := strings.Cut(l, ": permission denied (publickey"); ok {
			if host := known(s, who[strings.LastIndexAny(who, "@ ")+1:]); host != "" {
				return host
			}
		}
	}
	if len(s.Argv) > 0 && path.Base(s.Argv[0]) == "git" {
		for _, arg := range s.Argv[1:] {
			if host := remoteHost(arg); host != "" {
				return host
			}
		}
	}
	return namedSSH(s.Hosts)
}

// namedSSH returns the one host whose SSH port rules name, "" if they name none or several.
func namedSSH(rules []string) (host string) {
	for _, text := range rules {
		r, err := egress.ParseRule(text)
		if err != nil || r.Port() != sshPort {
			continue
		}
		name, below := r.Name()
		if below || name == "" || host != "" {
			return ""
		}
		host = name
	}
	return host
}

func first(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// known returns a host in its one spelling if the program was denied it or a rule of the call is
// about it, else "".
func known(s *Seen, text string) string {
	host, _, err := egress.Host(text)
	if err != nil {
		return ""
	}
	for _, d := range s.Denied {
		if n, _, err := egress.Host(d.Host); err == nil && n == host {
			return host
		}
	}
	if rules, err := egress.ParseRules(s.Hosts); err == nil && len(rules.Ports(host)) > 0 {
		return host
	}
	return ""
}

// remoteHost returns the host of a remote over SSH as git takes them (git-clone(1), GIT URLS):
// ssh://USER@HOST:PORT/PATH, or USER@HOST:PATH without a slash before the colon. "" for another.
func remoteHost(remote string) string {
	at, url := "", false
	for _, scheme := range []string{"ssh://", "git+ssh://", "ssh+git://"} {
		if at, url = strings.CutPrefix(remote, scheme); url {
			break
		}
	}
	if url {
		at, _, _ = strings.Cut(at, "/")
		at = at[strings.LastIndexByte(at, '@')+1:]
		if end := strings.LastIndexByte(at, ':'); end > strings.LastIndexByte(at, ']') {
			at = at[:end]
		}
	} else {
		var ok bool
		if at, _, ok = strings.Cut(remote, ":"); !ok || !strings.Contains(at, "@") || strings.ContainsAny(at, "/ =[") {
			return ""
		}
		at = at[strings.LastIndexByte(at, '@')+1:]
	}
	host, _, err := egress.Host(at)
	if err != nil {
		return ""
	}
	return host
}
