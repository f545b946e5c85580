package mcp

import (
	"bytes"
	"context"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
)

// The tools of servers come and go, and what was accepted of them changes, while a client is
// connected. It's told so when its list has become another one. palyrad is asked by the revision
// of the list, which costs it nothing while that stands.

// lookForTools is the time between two looks.
const lookForTools = 10 * time.Second

// take takes over a list, and says whether it's another one than before.
func (s *server) take(t *table) (another bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.tools
	if was == nil || was.revision != t.revision {
		s.changed = map[their]bool{}
	}
	t.list = slices.DeleteFunc(t.list, func(tool *sdk.Tool) bool {
		at, ok := t.theirs[tool.Name]
		if !ok || !s.changed[at] {
			return false
		}
		delete(t.tools, tool.Name)
		delete(t.theirs, tool.Name)
		return true
	})
	if s.tools = t; s.places == nil {
		s.places, s.together = make(chan struct{}, maxSessions), s.cfg.Staged || t.staged || s.cfg.Server != ""
	}
	return was != nil && !bytes.Equal(encode(was.list), encode(t.list))
}

// refresh asks palyrad for its tools again, for a client that asks for them.
func (s *server) refresh(ctx context.Context) (*table, error) {
	t, err := s.fetch(ctx)
	if err != nil {
		return nil, err
	}
	if s.cfg.Server != "" { // that list has no revision: this one is at least as new
		s.mu.Lock()
		if s.tools != nil {
			t.revision = s.tools.revision
		}
		s.mu.Unlock()
	}
	s.take(t)
	return t, nil
}

// known returns the tools as they were asked for last.
func (s *server) known(ctx context.Context) (*table, error) {
	s.mu.Lock()
	t := s.tools
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	return s.refresh(ctx)
}

// renew asks palyrad whether the tools are others now, and if so tells the client.
func (s *server) renew(ctx context.Context) (*table, error) {
	was, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	l, err := hub.ListTools.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.ToolQuery{Known: was.revision})
	if err != nil {
		return nil, err
	}
	if l.Revision == was.revision {
		return was, nil
	}
	var t *table
	if s.cfg.Server == "" {
		t, err = tableOf(l, s.cfg.Workspace)
	} else if t, err = s.fetch(ctx); err == nil {
		t.revision = l.Revision
	}
	if err != nil {
		return nil, err
	}
	if s.take(t) && s.tell != nil {
		s.tell()
	}
	return t, nil
}

// drop takes a tool out that its server has changed, until palyrad has another list.
func (s *server) drop(at their) {
	s.mu.Lock()
	was := s.tools
	s.changed[at] = true
	s.mu.Unlock()
	t := &table{list: slices.Clone(was.list), tools: map[string]hub.Tool{}, theirs: map[string]their{}, staged: was.staged, revision: was.revision, methods: was.methods}
	for name, tool := range was.tools {
		t.tools[name] = tool
	}
	for name, at := range was.theirs {
		t.theirs[name] = at
	}
	if s.take(t) && s.tell != nil {
		s.tell()
	}
}

// look renews the tools of a connection, once it knows some, until ctx is done.
func (s *server) look(ctx context.Context) {
	t := time.NewTicker(lookForTools)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		asked := s.tools != nil
		s.mu.Unlock()
		if asked {
			_, _ = s.renew(ctx) // palyrad may be away: the next look is as good
		}
	}
}

// teller returns what tells the SDK's sessions that tools have changed. The SDK does so when its
// own table does, which no client sees: receive answers for it.
func teller(m *sdk.Server) func() {
	return func() {
		m.AddTool(&sdk.Tool{Name: "changed", InputSchema: map[string]any{"type": "object"}}, nothing)
	}
}

// nothing is the handler of tools that the SDK knows of, but doesn't call.
func nothing(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	return &sdk.CallToolResult{IsError: true}, nil
}
