package tool

import (
	"context"
	"fmt"

	"palyra/authz/policy"
	"palyra/call/egress/target"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/kernel"
)

// expandFetch is for http.fetch: its program is palyra-fetch, and the call's hosts are the URL's
// and those that the input names, and its credential bindings are uses of secrets for the URL's
// host. Policy, card, palyra-egress and receipt have them as any call's.
func expandFetch(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error) {
	in := input.(*toolproto.FetchInput)
	at, err := target.Parse(in.URL)
	if err != nil {
		return nil, err
	}
	x, err := expandPlain(ctx, t, e, who, input)
	if err != nil {
		return nil, err
	}
	x.Argv[0] = t.cfg.Fetch
	x.EgressHosts = append([]string{at.Rule().String()}, in.EgressHosts...)
	for i, b := range in.CredentialBindings {
		c, err := toolproto.ParseFetchCredential(b)
		if err != nil {
			return nil, err
		}
		methods := in.Method
		if methods == "POST" {
			methods = "GET,POST" // a redirect may be asked with GET
		}
		x.EgressSecrets = append(x.EgressSecrets, fmt.Sprintf("%s=%s header:%s %s %s", toolproto.FetchVariable(i), c.Ref, c.Header, methods, at.Rule()))
	}
	x.Network = isolate.NetworkFresh // with hosts it leads to them
	return x, nil
}
