package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// The bounds of what one list has of servers' tools: clients hand all of it to their model.
const (
	maxOffered      = 512
	maxOfferedBytes = 2 << 20 // of definitions
)

// offer counts the changes of what servers offer, so that a client can ask whether its list still
// stands without having it made again.
type offer struct {
	boot    string
	changes atomic.Uint64
}

func newOffer() *offer { return &offer{boot: rand.Text()} }

func (o *offer) changed() { o.changes.Add(1) }

// revision names all that the list of tools of a caller depends on.
func (h *Hub) revision(c hub.Caller, who policy.Entity) string {
	sum := canon.Sum([]byte(strings.Join(append([]string{h.offer.boot, fmt.Sprint(h.offer.changes.Load()), h.k.PolicySet().Digest().String(),
		who.Type, who.ID, c.Token, c.Device, c.Surface, fmt.Sprint(h.holds(c, access.RunStart))}, who.Roles...), "\x00")))
	return hex.EncodeToString(sum[:16])
}

// listTools lists palyrad's own tools, and those of MCP servers that the caller may use: with
// run.start, where policy doesn't deny a call of the tool that has no arguments.
func (h *Hub) listTools(ctx context.Context, c hub.Caller, q hub.ToolQuery) (l hub.ToolList, err error) {
	l.Items = []hub.Tool{}
	who, err := h.caller(c)
	if err != nil {
		return l, err
	}
	if l.Revision = h.revision(c, who.Principal); q.Known == l.Revision {
		return l, nil
	}
	if h.cfg.Tools != nil {
		l.Items = h.cfg.Tools()
	}
	if h.cfg.Gateway == nil || !h.holds(c, access.RunStart) {
		return l, nil
	}
	names, err := store.View(ctx, h.st, func(tx *store.Tx) ([]string, error) { return tx.ServerNames() })
	if err != nil || len(names) == 0 {
		return l, err
	}
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return l, err
	}
	defer release()
	ctx, done, err := h.explaining(ctx, c)
	if err != nil {
		return l, err
	}
	defer done()
	number, bytes := 0, 0
	for _, name := range names {
		row, err := h.serverRow(ctx, name)
		if fault.KindOf(err) == fault.NotFound {
			continue
		}
		if err != nil {
			return l, err
		}
		first := gateway.FirstTool(row)
		if first == "" {
			continue
		}
		ask, err := h.askServer(ctx, who, name, first)
		if ctx.Err() != nil {
			return l, h.named(c, err)
		}
		if err != nil { // a call would end so, too
			l.LeftOut = append(l.LeftOut, hub.ToolLeftOut{Server: name, Why: "its program can't be called: " + fault.ReasonOf(err)})
			continue
		}
		set := h.k.PolicySet()
		tools, out, err := gateway.Merged(row, func(tool string) bool {
			ask.Context.MCP.Tool = tool
			return set.Decide(ask).Effect != policy.Deny
		})
		if err != nil {
			return l, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("list tools of server %q", name), err)
		}
		l.LeftOut = append(l.LeftOut, out...)
		more := 0
		for _, t := range tools {
			more += len(t.Definition)
		}
		if number+len(tools) > maxOffered || bytes+more > maxOfferedBytes {
			l.LeftOut = append(l.LeftOut, hub.ToolLeftOut{Server: name, Why: fmt.Sprintf("with it there are more than %d tools of servers, or %d bytes of them", maxOffered, maxOfferedBytes)})
			continue
		}
		number, bytes = number+len(tools), bytes+more
		l.Items = append(l.Items, tools...)
	}
	return l, nil
}

// askServer returns policy's question about a call of a server's tool that has no arguments.
func (h *Hub) askServer(ctx context.Context, who kernel.Caller, server, tool string) (policy.Request, error) {
	who.Layer = func(_ context.Context, workspace string, staged bool) (string, error) {
		if !staged {
			return "", nil
		}
		return layerName("", workspace), nil
	}
	input, err := json.Marshal(map[string]string{"server": server, "tool": tool})
	if err != nil {
		return policy.Request{}, fault.New(fault.Internal, "internal", "ask about a server", err)
	}
	return h.k.Question(ctx, who, proposal(hub.ToolMCPCall, input, "", ""), nil)
}

// methodsOf returns the methods to list that policy permits without a person's yes: a client that
// is told of them lists unasked. Without an answer of policy's there are none.
func (h *Hub) methodsOf(ctx context.Context, c hub.Caller, server string) (out []string) {
	if !h.holds(c, access.RunStart) {
		return nil
	}
	who, err := h.caller(c)
	if err != nil {
		return nil
	}
	ctx, done, err := h.explaining(ctx, c)
	if err != nil {
		return nil
	}
	defer done()
	ask, err := h.askServer(ctx, who, server, hub.MethodListResources)
	if err != nil {
		return nil
	}
	set := h.k.PolicySet()
	for _, m := range []string{hub.MethodListResources, hub.MethodListPrompts} {
		ask.Context.MCP.Tool = m
		if set.Decide(ask).Effect == policy.Allow {
			out = append(out, m)
		}
	}
	return out
}
