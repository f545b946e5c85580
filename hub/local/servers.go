package local

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The acts in the journal about MCP servers.
const (
	actServerAdded    = "server.add"
	actServerAccepted = "server.accept"
	actServerRemoved  = "server.remove"
)

// serverOperations returns the operations of MCP servers; without a gateway there are none.
func (h *Hub) serverOperations() []hub.Entry {
	if h.cfg.Gateway == nil {
		return nil
	}
	return []hub.Entry{
		hub.ListServers.By(h.listServers),
		hub.AddServer.By(h.addServer),
		hub.GetServer.By(h.getServer),
		hub.InspectServer.By(h.inspectServer),
		hub.AcceptServer.By(h.acceptServer),
		hub.RemoveServer.By(h.removeServer),
		hub.ListServerTools.By(h.listServerTools),
	}
}

// startServer is gateway.Start: a run of its own, in the name of who asks the server.
func (h *Hub) startServer(ctx context.Context, a run.Attaching, input []byte) (string, error) {
	return h.runs.Start(ctx, run.Request{User: a.Caller.User, Surface: a.Caller.Surface, Device: a.Caller.Device, Token: a.Caller.Token, Reserve: a.Reserve,
		Steps: []hub.Step{{Tool: hub.ToolMCPServe, Input: input}}, Attended: true})
}

// awaitServer is gateway.Wait.
func (h *Hub) awaitServer(ctx context.Context, id string) (hub.StepResult, error) {
	if err := h.runs.Wait(ctx, id); err != nil {
		return hub.StepResult{}, err
	}
	r, err := h.runs.Read(ctx, id)
	if err != nil || len(r.Steps) == 0 {
		return hub.StepResult{}, err
	}
	return r.Steps[0], nil
}

// over ends what a session has that isn't in the store.
func (h *Hub) over(session string) {
	h.endCaches(session)
	if h.cfg.Gateway != nil {
		h.cfg.Gateway.End(session)
	}
}

func (h *Hub) serverRow(ctx context.Context, name string) (*store.Server, error) {
	return store.View(ctx, h.st, func(tx *store.Tx) (*store.Server, error) { return tx.Server(name) })
}

func (h *Hub) listServers(ctx context.Context, c hub.Caller, _ hub.None) (none hub.Page[hub.Server], err error) {
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Server, error) { return tx.Servers() })
	if err != nil {
		return none, err
	}
	return pageOf(rows, store.MaxPage, func(*store.Server) int { return 0 }, func(s *store.Server) string { return s.Name }, func(s *store.Server) (hub.Server, error) {
		v, err := gateway.Of(s)
		v.Tools, v.Listed = nil, nil
		return v, err
	})
}

func (h *Hub) addServer(ctx context.Context, c hub.Caller, n hub.NewServer) (hub.Server, error) {
	if err := h.room(c); err != nil {
		return hub.Server{}, err
	}
	row, err := h.cfg.Gateway.Row(n, c.User)
	if err == nil {
		_, err = h.k.PolicySet().ExpandHosts(n.Spec.EgressHosts) // each call does it anew
	}
	if err != nil {
		return hub.Server{}, err
	}
	err = h.st.Update(ctx, func(tx *store.Tx) error {
		rows, err := tx.Servers()
		if err == nil && len(rows) >= gateway.MaxServers {
			err = fault.New(fault.Busy, "too_many", "add server", fmt.Errorf("there are %d, and may be no more", len(rows)))
		}
		if err != nil {
			return err
		}
		return tx.CreateServer(row)
	})
	if err == nil {
		err = h.recordServer(ctx, c, actServerAdded, row, nil)
	}
	if err != nil {
		return hub.Server{}, err
	}
	return gateway.Of(row)
}

// recordServer puts an act about a server into the journal, with what the server is, and with the
// tools if it's about them.
func (h *Hub) recordServer(ctx context.Context, c hub.Caller, act string, row *store.Server, tools *canon.Digest) error {
	detail := map[string]string{"spec": canon.Sum(row.Spec).String(), "version": strconv.FormatInt(row.Version, 10)}
	if tools != nil {
		detail["tools"] = tools.String()
	}
	_, err := h.record(context.WithoutCancel(ctx), c, act, row.Name, detail)
	return err
}

func (h *Hub) getServer(ctx context.Context, c hub.Caller, name string) (hub.Server, error) {
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return hub.Server{}, err
	}
	defer release()
	row, err := h.serverRow(ctx, name)
	if err != nil {
		return hub.Server{}, err
	}
	return gateway.Of(row)
}

// inspectServer makes a call in the caller's name.
func (h *Hub) inspectServer(ctx context.Context, c hub.Caller, name string) (hub.Server, error) {
	if err := h.room(c); err != nil {
		return hub.Server{}, err
	}
	row, err := h.serverRow(ctx, name)
	if err != nil {
		return hub.Server{}, err
	}
	list, err := h.cfg.Gateway.List(ctx, run.Attaching{Caller: c, Reserve: h.privileged(c)}, name)
	if err == nil {
		err = gateway.SetListed(row, list)
	}
	if err == nil {
		err = h.st.Update(ctx, func(tx *store.Tx) error { return tx.UpdateServer(row, c.User) })
	}
	if err != nil {
		return hub.Server{}, h.named(c, err)
	}
	h.offer.changed()
	return h.getServer(ctx, c, name)
}

func (h *Hub) acceptServer(ctx context.Context, c hub.Caller, a hub.Acceptance) (hub.Server, error) {
	const op = "accept server"
	want, err := canon.ParseDigest(a.Digest)
	if err != nil {
		return hub.Server{}, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if err := h.room(c); err != nil {
		return hub.Server{}, err
	}
	row, err := h.serverRow(ctx, a.Name)
	if err != nil {
		return hub.Server{}, err
	}
	v, err := gateway.Of(row)
	switch {
	case err != nil:
		return hub.Server{}, err
	case v.ListedDigest != want || len(row.Listed) == 0:
		return hub.Server{}, fault.New(fault.Busy, "tool_changed", op, errors.New("the tools that it listed last have another digest")).
			WithHint("look at them first: palyra mcp accept " + a.Name)
	}
	row.Accepted, row.AcceptedBy, row.AcceptedAt = row.Listed, c.User, time.Now().UTC()
	// The act first: no call rests on tools that the journal doesn't know as accepted.
	if err := h.recordServer(ctx, c, actServerAccepted, row, &want); err != nil {
		return hub.Server{}, err
	}
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.UpdateServer(row, c.User) }); err != nil {
		return hub.Server{}, err
	}
	h.offer.changed()
	for _, t := range v.Listed {
		if t.LeftOut != "" {
			h.cfg.Log.Warn("a tool of an MCP server is shown to no client", "server", row.Name, "tool", t.Name, "why", t.LeftOut)
		}
	}
	return gateway.Of(row)
}

func (h *Hub) removeServer(ctx context.Context, c hub.Caller, name string) (hub.None, error) {
	row, err := h.serverRow(ctx, name)
	if err != nil {
		return hub.None{}, err
	}
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.DeleteServer(name) }); err != nil {
		return hub.None{}, err
	}
	h.offer.changed()
	h.cfg.Gateway.EndServer(name, "it was removed")
	return hub.None{}, h.recordServer(ctx, c, actServerRemoved, row, nil)
}

func (h *Hub) listServerTools(ctx context.Context, c hub.Caller, name string) (hub.ServerTools, error) {
	p := hub.ServerTools{Items: []hub.ServerTool{}}
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return p, err
	}
	defer release()
	row, err := h.serverRow(ctx, name)
	if err != nil {
		return p, err
	}
	v, err := gateway.Of(row)
	if err == nil && row.AcceptedBy == "" {
		err = fault.New(fault.Usage, "server_not_accepted", fmt.Sprintf("list tools of server %q", name), errors.New("nobody has accepted them")).
			WithHint("an administrator looks at them and does: palyra mcp accept " + name)
	}
	if err != nil {
		return p, err
	}
	p.Items = append(p.Items, v.Tools...)
	p.Methods = h.methodsOf(ctx, c, name)
	return p, nil
}
