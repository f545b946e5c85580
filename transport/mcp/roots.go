package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
)

// A client may declare roots: the folders of the host that it works in. They choose the workspace
// of calls that name none, among those that the operator declared, and the folder there that their
// programs start in. They give no access: palyrad decides a call in the chosen workspace as one
// that names it, and a root outside all workspaces is named in the next answer and counts for
// nothing.
//
// Until 2025-11-25 the client is asked with roots/list when it lists or calls tools, once until it
// says that they changed. From sessionless on a server asks nothing by itself: the call of a tool
// is answered with the question, and the client makes it again with its roots. Over HTTP all
// clients of a credential share a seat then, so that each such call is asked about.

const (
	methodRoots        = "roots/list"
	methodRootsChanged = "notifications/roots/list_changed"

	// metaCapabilities is the member of _meta with what a client can do, from sessionless on.
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"

	rootsWait   = 5 * time.Second // for a client's answer; without it there are none
	maxAsked    = 8               // times, of a client whose calls don't come again with an answer
	maxRoot     = 4096            // bytes of a root that is looked for
	maxNamed    = 3               // roots that an answer names
	maxRootText = 120             // bytes of each
)

// place is where calls are made that name no workspace. The zero place is none.
type place struct {
	workspace, folder string
	note              string // for the model: what of the roots counts for nothing
}

// roots is what a connection knows of its client's roots.
type roots struct {
	say     func([]byte) error // sends the client a request; nil: over HTTP its own request says how
	resolve func(string) string
	each    bool          // clients share the connection: nothing is kept
	turn    chan struct{} // holds one: the client is asked by one request at a time

	mu       sync.Mutex
	declared bool                            // guarded by mu; by initialize
	at       *place                          // guarded by mu; nil: not known
	told     bool                            // guarded by mu; the note of at
	changes  int                             // guarded by mu; of the roots
	asked    int                             // guarded by mu; answers to calls that asked, since the last change
	waits    map[string]chan json.RawMessage // guarded by mu; for the results of requests, by id
}

func newRoots() *roots {
	return &roots{turn: make(chan struct{}, 1), waits: map[string]chan json.RawMessage{}, resolve: func(p string) string { return p }}
}

// notice takes down what a message of the client's says about roots.
func (r *roots) notice(req *jsonrpc.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch req.Method {
	case methodInitialize:
		var p struct {
			Capabilities struct {
				Roots *struct{} `json:"roots"`
			} `json:"capabilities"`
		}
		r.declared = json.Unmarshal(req.Params, &p) == nil && p.Capabilities.Roots != nil
	case methodRootsChanged:
		r.changes++
		r.at, r.asked = nil, 0
	}
}

// answered takes a client's answer to a request of ours. Others are dropped.
func (r *roots) answered(message []byte) {
	var m struct {
		ID     string          `json:"id"`
		Result json.RawMessage `json:"result"`
	}
	if json.Unmarshal(message, &m) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.waits[m.ID]; c != nil {
		delete(r.waits, m.ID)
		c <- m.Result // it has room for one
	}
}

// list asks the client, and returns the URIs. An answer that is none is no root.
func (r *roots) list(ctx context.Context) ([]string, error) {
	say := r.say
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		say = q.say
	}
	if say == nil {
		return nil, errors.New("the client can't be asked")
	}
	id, c := "roots_"+rand.Text(), make(chan json.RawMessage, 1)
	r.mu.Lock()
	r.waits[id] = c
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waits, id)
		r.mu.Unlock()
	}()
	if err := say(encode(map[string]any{"jsonrpc": "2.0", "id": id, "method": methodRoots})); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, rootsWait)
	defer cancel()
	var text json.RawMessage
	select {
	case text = <-c:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-goneOf(ctx):
		return nil, errors.New("the client has gone")
	}
	return urisOf(text)
}

// urisOf reads the result of roots/list.
func urisOf(result []byte) (uris []string, err error) {
	var res struct {
		Roots []struct {
			URI string `json:"uri"`
		} `json:"roots"`
	}
	if err := json.Unmarshal(result, &res); err != nil {
		return nil, err
	}
	for _, root := range res.Roots {
		uris = append(uris, root.URI)
	}
	return uris, nil
}

// here returns the place for a request that lists or calls tools. ask says that a call has to be
// answered with the question for the roots first.
func (s *server) here(ctx context.Context, meta sdk.Meta, given sdk.InputResponseMap, call bool) (at place, ask bool) {
	at = place{workspace: s.cfg.Workspace}
	if s.cfg.Server != "" {
		return at, false
	}
	r := s.roots
	if version, _ := meta[metaVersion].(string); version >= sessionless {
		return s.hereAlone(ctx, meta, given, call)
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return at, false
	}
	defer func() { <-r.turn }()
	r.mu.Lock()
	known, declared, changes := r.at, r.declared, r.changes
	r.mu.Unlock()
	if !declared {
		return at, false
	}
	if known == nil {
		uris, err := r.list(ctx)
		if ctx.Err() != nil {
			return at, false // another request may ask
		}
		if err != nil {
			known = &place{workspace: s.cfg.Workspace, note: "The client didn't say its roots."}
		} else {
			p := s.choose(ctx, uris)
			known = &p
		}
		r.keep(known, changes)
	}
	return *known, false
}

// hereAlone is here for a client of a sessionless version.
func (s *server) hereAlone(ctx context.Context, meta sdk.Meta, given sdk.InputResponseMap, call bool) (at place, ask bool) {
	r := s.roots
	can, _ := meta[metaCapabilities].(map[string]any)
	at = place{workspace: s.cfg.Workspace}
	if _, declared := can["roots"].(map[string]any); !declared {
		return at, false
	}
	r.mu.Lock()
	known, changes := r.at, r.changes
	if ask = call && given == nil && known == nil && (r.each || r.asked < maxAsked); ask {
		r.asked++
	}
	r.mu.Unlock()
	switch answer, ok := given["roots"]; {
	case ok:
		uris, err := urisOf(encode(answer))
		if err != nil { // an answer to another question
			return at, false
		}
		at = s.choose(ctx, uris)
		if !r.each {
			r.keep(&at, changes)
		}
		return at, false
	case known != nil:
		return *known, false
	}
	return at, ask
}

// question is the answer to a call that asks for the roots. The client makes the call again.
func question() *sdk.CallToolResult {
	q := new(sdk.CallToolResult)
	if json.Unmarshal([]byte(`{"resultType":"input_required","content":[],"inputRequests":{"roots":{"method":"roots/list","params":{}}}}`), q) != nil {
		panic("mcp: internal error: the SDK's result has other members")
	}
	return q
}

// keep remembers a place, unless the roots have changed since it was asked for.
func (r *roots) keep(at *place, changes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes == changes {
		r.at, r.told = at, false
	}
}

// note returns what an answer has to say about the roots: once, where the connection has one
// client.
func (r *roots) note(at place) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each {
		return at.note
	}
	if r.told || r.at == nil {
		return ""
	}
	r.told = true
	return at.note
}

// choose finds the place that a client's roots leave: the workspace that holds all that are in one,
// and the folder there, if there is one root.
func (s *server) choose(ctx context.Context, uris []string) place {
	at := place{workspace: s.cfg.Workspace}
	var outside, paths, from []string
	for _, uri := range uris {
		p, ok := rootPath(uri)
		if !ok || len(paths) == hub.MaxFolders {
			outside = append(outside, uri)
			continue
		}
		paths, from = append(paths, path.Clean(s.roots.resolve(p))), append(from, uri)
	}
	var found []hub.Folder
	if len(paths) > 0 {
		page, err := hub.FindFolders.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.FolderQuery{Paths: paths})
		if err != nil || len(page.Items) != len(paths) {
			at.note = "The client's roots couldn't be looked for."
			return at
		}
		found = page.Items
	}
	names, folders := map[string]bool{}, map[string]bool{}
	for i, f := range found {
		if s.cfg.Workspace != "" { // the operator's word: roots choose a folder in there at most
			f.Workspaces = slices.DeleteFunc(slices.Clone(f.Workspaces), func(name string) bool { return name != s.cfg.Workspace })
		}
		if len(f.Workspaces) == 0 {
			outside = append(outside, from[i])
			continue
		}
		for _, name := range f.Workspaces {
			names[name] = true
		}
		folders[f.Folder] = true
	}
	var notes []string
	switch all := slices.Sorted(maps.Keys(names)); {
	case len(all) == 1:
		at.workspace = all[0]
		if len(folders) == 1 {
			at.folder = slices.Collect(maps.Keys(folders))[0]
		}
	case len(all) > 1:
		notes = append(notes, "The client's roots are in several workspaces: name one of "+strings.Join(all, ", ")+".")
	}
	if len(outside) > 0 {
		notes = append(notes, "Of the client's roots these are in no workspace that calls may have here, and give no access: "+named(outside)+".")
	}
	at.note = strings.Join(notes, " ")
	return at
}

// named quotes some roots. They are foreign text.
func named(uris []string) string {
	var out []string
	for _, uri := range uris[:min(len(uris), maxNamed)] {
		out = append(out, fmt.Sprintf("%+q", hub.Clip(uri, maxRootText)))
	}
	if more := len(uris) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// rootPath returns the folder that a URI names. It refuses what two programs could read as
// different folders: .. and an escaped slash.
func rootPath(uri string) (string, bool) {
	if len(uri) > maxRoot {
		return "", false
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Opaque != "" || u.User != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", false
	}
	p := u.Path
	if !strings.HasPrefix(p, "/") || strings.Contains(strings.ToLower(u.EscapedPath()), "%2f") || strings.IndexByte(p, 0) >= 0 ||
		slices.Contains(strings.Split(p, "/"), "..") {
		return "", false
	}
	return path.Clean(p), true
}

// apply gives arguments the place, if the tool works in a workspace and they name none.
func (at place) apply(s *schema, m map[string]json.RawMessage) {
	if at.workspace == "" || s.properties["workspace"] == nil || m["workspace"] != nil {
		return
	}
	m["workspace"] = encode(at.workspace)
	if at.folder != "" && s.properties["cwd"] != nil && m["cwd"] == nil {
		m["cwd"] = encode(at.folder)
	}
}

// needs says that a call of a tool depends on the place.
func (t *table) needs(name string, arguments json.RawMessage) bool {
	s, err := schemaOf(t.tools[name].InputSchema)
	var m map[string]json.RawMessage
	if err != nil || s.properties["workspace"] == nil {
		return false
	}
	return json.Unmarshal(arguments, &m) != nil || m["workspace"] == nil
}

// shown is the list of tools with the place as their default. A client with roots need name no
// workspace, also where they aren't known yet.
func (s *server) shown(t *table, at place, meta sdk.Meta) []*sdk.Tool {
	if s.cfg.Server != "" || at.workspace == s.cfg.Workspace && at.folder == "" && !s.roots.has(meta) {
		return t.list
	}
	var out []*sdk.Tool
	for _, tool := range t.list {
		text, ok := tool.InputSchema.(json.RawMessage)
		if _, foreign := t.theirs[tool.Name]; foreign || !ok {
			out = append(out, tool)
			continue
		}
		sc, err := schemaOf(text)
		if err != nil || sc.properties["workspace"] == nil {
			out = append(out, tool)
			continue
		}
		sc.optional("workspace")
		if at.workspace != "" {
			sc.fallback("workspace", at.workspace)
		}
		if at.folder != "" {
			sc.fallback("cwd", at.folder)
		}
		other := *tool
		other.InputSchema = sc.text()
		out = append(out, &other)
	}
	return out
}

// has says that the client declares roots.
func (r *roots) has(meta sdk.Meta) bool {
	if version, _ := meta[metaVersion].(string); version >= sessionless {
		can, _ := meta[metaCapabilities].(map[string]any)
		_, declared := can["roots"].(map[string]any)
		return declared
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.declared
}
