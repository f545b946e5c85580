package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/call/egress"
	"palyra/call/egress/target"
	"palyra/hub"
	"palyra/internal/fault"
)

// A server that is reached over HTTP has a program, too: palyra-fetch, which puts the messages of
// the gateway to the URL. So it's decided, confined and recorded as any other, and reaches its
// hosts as any call does.

// spoken are the headers that palyra-fetch says itself, and those that carry what a client is
// allowed to: neither is an operator's to set.
var spoken = []string{"accept", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id", "user-agent"}

// checkRemote checks what a server with a URL has besides its limits, and adds the URL's host to
// its hosts. bad makes an error of what is wrong.
func checkRemote(s *hub.ServerSpec, bad func(format string, args ...any) error) error {
	switch {
	case s.URL == "":
		return bad("headers are sent to a url, and there is none")
	case len(s.Argv) > 0:
		return bad("a server has a program or a url, not both")
	case len(s.Env)+len(s.Mounts) > 0 || s.Workspace != "" || s.ReadOnly || s.Network != "":
		return bad("a server with a url has no variables, mounts, workspace and network: its program is palyra-fetch")
	}
	at, err := target.Parse(s.URL)
	if err != nil {
		return err
	}
	s.URL = at.String()
	s.EgressHosts = append(s.EgressHosts, at.Rule().String())
	for i, h := range s.Headers {
		name, value, err := header(h)
		if err != nil {
			return bad("header %.80q: %w", name, err)
		}
		s.Headers[i] = name + ": " + value
	}
	slices.Sort(s.Headers)
	uses, err := egress.ParseUses(s.EgressSecrets)
	if err != nil {
		return err
	}
	for _, u := range uses {
		switch {
		case u.Rule() != at.Rule():
			return bad("the secret of %s goes to %s, and the url leads to %s", u.Name, u.Rule(), at.Rule())
		case !at.TLS():
			return bad("a secret goes to https:// alone")
		case u.Place.Kind == egress.InHeader && slices.Contains(spoken, u.Place.Name):
			return bad("the header %s is the protocol's", u.Place.Name)
		}
	}
	return nil
}

// header reads "NAME: VALUE". Values stand in capsules and the journal, so headers that hold
// credentials by custom are refused.
func header(text string) (name, value string, err error) {
	name, value, ok := strings.Cut(text, ":")
	name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
	if !ok {
		return name, "", errors.New("want NAME: VALUE")
	}
	if _, err := egress.ParsePlace(egress.InHeader + ":" + name); err != nil {
		return name, "", err
	}
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return name, "", errors.New("the value has a byte that isn't printable ASCII")
		}
	}
	secret := strings.Contains(name, "authorization") || strings.Contains(name, "cookie")
	for _, end := range []string{"token", "key", "secret", "password"} {
		secret = secret || strings.HasSuffix(name, end)
	}
	switch {
	case secret:
		return name, "", fmt.Errorf("it holds credentials, which the journal would have: egress_secrets (--egress-secret 'TOKEN=vault://global/NAME header:%s HOST') sends them out of the vault", name)
	case slices.Contains(spoken, name):
		return name, "", errors.New("it's the protocol's")
	}
	return name, value, nil
}

// remote returns the program of a server with a URL, which policy, approvers and capsules see.
func (g *Gateway) remote(name string, s *hub.ServerSpec) ([]string, error) {
	if g.cfg.Fetch == "" {
		return nil, fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("start server %q", name), errors.New("there is no palyra-fetch beside palyra-tool, and it's the program of a server with a url"))
	}
	argv := []string{g.cfg.Fetch, hub.ToolMCPServe, s.URL}
	for _, h := range s.Headers {
		name, value, _ := strings.Cut(h, ": ")
		argv = append(argv, egress.InHeader+":"+name+"="+value)
	}
	uses, err := egress.ParseUses(s.EgressSecrets)
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		if word := "secret:" + u.Place.String() + "=" + u.Name; !slices.Contains(argv, word) {
			argv = append(argv, word)
		}
	}
	return argv, nil
}
