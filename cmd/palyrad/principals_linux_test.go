package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/sample"
	"palyra/transport/api"
)

// party is a principal of TestPrincipals, what it says, and what it has.
type party struct {
	user, mark, token string
	has               map[string][]string // ids by kind, of what is there
	waiting           []string            // runs that wait for a person
	desk              string              // a session for those alone
	from              map[string]string   // by artifact, a run that has it
	items             map[string]bool     // of memory
	named             map[string]bool     // ids of the other's that it asked for: its own requests have them
}

// way is how an operation is asked. id gives the id of a thing of a kind.
type way struct {
	query func(w *world, id func(kind string) string) string
	body  func(w *world, p *party, id func(kind string) string) string // default: an empty object, where there is one
	// public says why things of this operation are known to other principals: by id, and no more. ""
	// is for others: an id of another's is as one of none.
	public string
	took   func(w *world, p *party, answer []byte)
}

// world is palyrad and two of its operators.
type world struct {
	*running
	t       *testing.T
	r, pick *rand.Rand // pick chooses ids alone: requests about two principals' differ in nothing else
	parties [2]*party
	size    string // of the journal
	first   int    // what comes next of what a principal begins with; 0: nothing
	routes  []*hub.Operation
	done    map[string][3]int // by operation: answers of 2xx to its own, refused to its own, asked about the other's
}

func (w *world) one(of ...string) string { return of[w.r.IntN(len(of))] }

// send makes a request as a principal.
func (w *world) send(p *party, method, path, body string) (int, []byte) {
	w.t.Helper()
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if p != nil { // else the owner
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	req.Header.Set("Accept", "application/x-ndjson, application/json, */*")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if method == "POST" || method == "PUT" || method == "DELETE" {
		if needsKey[method+" "+path] || strings.HasSuffix(path, "/rotate") {
			n := w.r.IntN(300) // both use the same
			if w.first > 0 {
				n, w.first = 1000+w.first, w.first+1
			}
			req.Header.Set("Idempotency-Key", fmt.Sprint("key-", n))
		}
		if ifMatch.MatchString(method + " " + path) {
			req.Header.Set("If-Match", "*")
		}
	}
	conn, err := net.Dial("unix", w.sock)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	req.Close = true
	sent := req.Write(conn) // what is refused by its head is answered before its body is read
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		w.t.Fatalf("%s %s %.300s: %v, %v", method, path, body, sent, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	var head bytes.Buffer
	_ = resp.Header.Write(&head)
	if p != nil {
		w.look(p, path+body, append(head.Bytes(), b...))
	}
	return resp.StatusCode, b
}

// look fails if an answer has words of the other principal, or ids that no request of its own had.
func (w *world) look(p *party, asked string, answer []byte) {
	w.t.Helper()
	o := w.parties[0]
	if o == p {
		o = w.parties[1]
	}
	secret := append([]string{o.mark, strings.ToLower(o.mark), o.user + `"`, o.token}, o.waiting...)
	if o.desk != "" {
		secret = append(secret, o.desk)
	}
	for _, kind := range []string{"session", "run", "memory", "token", "layer", "response", "artifact"} {
		secret = append(secret, o.has[kind]...)
	}
	for _, s := range secret {
		if strings.Contains(asked, strings.TrimSuffix(s, `"`)) {
			p.named[s] = true
		}
		if bytes.Contains(answer, []byte(s)) && !p.named[s] {
			w.t.Fatalf("%s asks %.300s\nand is told %q of %s in\n%.2000s", p.user, asked, s, o.user, answer)
		}
	}
}

var (
	needsKey = make(map[string]bool)
	ifMatch  = regexp.MustCompile(`(/end|/resolve|/revoke|/rotate|/members/[^/]*)$`)
	volatile = regexp.MustCompile(`[0-9a-f]{16,}|\d+(\.\d+)?|T[0-9:.]+Z`)
)

// follow waits until a run has ended, or waits for a person, and takes up what it left.
func (w *world) follow(p *party, id string) {
	w.t.Helper()
	for limit := time.Now().Add(patience); ; {
		status, b := w.send(p, "GET", "/api/v1/runs/"+id, "")
		var r hub.Run
		if status != 200 || json.Unmarshal(b, &r) != nil {
			w.t.Fatalf("%s can't read its own run: %d %s", p.user, status, b)
		}
		switch r.State {
		case hub.RunDone, hub.RunFailed, hub.RunCancelled:
			p.have("run", r.ID)
			for _, s := range r.Steps {
				if !s.Stdout.Artifact.IsZero() {
					p.have("artifact", s.Stdout.Artifact.String())
					p.from[s.Stdout.Artifact.String()] = r.ID
				}
				if s.LogIndex != nil {
					p.have("index", fmt.Sprint(*s.LogIndex))
				}
				if s.DecisionID != "" {
					p.have("decision", s.DecisionID)
				}
				for _, m := range memoryID.FindAllString(s.Stdout.Text, -1) {
					if s.Tool == "memory.retain" {
						p.have("memory", m)
						p.items[m] = true
					}
				}
			}
			return
		case hub.RunWaitingApproval:
			if !slices.Contains(p.waiting, r.ID) {
				p.waiting = append(p.waiting, r.ID)
			}
			return
		}
		if time.Now().After(limit) {
			w.t.Fatalf("run %s is %s", id, r.State)
		}
	}
}

var memoryID = regexp.MustCompile(`mem_[0-9a-f]{32}`)

// list takes up which items a principal has.
func (w *world) list(p *party) (all map[string]bool) {
	w.t.Helper()
	all = make(map[string]bool)
	for before := int64(0); ; {
		status, b := w.send(p, "POST", "/api/v1/memory/list", fmt.Sprintf(`{"limit":256,"before":%d}`, before))
		var r hub.MemoryResult
		if status != 200 || json.Unmarshal(b, &r) != nil {
			w.t.Fatalf("%d %s", status, b)
		}
		for _, it := range r.Items {
			all[it.ID] = true
		}
		if before = r.Next; before == 0 {
			p.items = all
			return all
		}
	}
}

// act has a principal ask an operation once: about its own things, or about the other's and then about
// none, where the answers have to be the same.
func (w *world) act(method, route string, x *way, p, of *party, empty string) {
	w.t.Helper()
	name := method + " " + route
	build := func(id func(kind string) string) (path, body string, named bool) {
		artifact := ""
		get := func(kind string) string { named = true; return id(kind) }
		own := w.r.IntN(3) == 0
		path = param.ReplaceAllStringFunc(route, func(m string) string {
			kind := strings.TrimSuffix(strings.Trim(m, "{}"), "...")
			switch {
			case kind == "run" && strings.Contains(route, "artifacts") && own && len(p.has["artifact"]) > 0:
				return p.from[p.has["artifact"][0]]
			case kind == "run" && strings.Contains(route, "artifacts"):
				artifact = get("artifact")
				if run := of.from[artifact]; run != "" {
					return run
				}
			case kind == "digest" && artifact != "":
				return artifact
			case kind == "digest" && strings.Contains(route, "artifacts"):
				kind = "artifact"
			case kind == "name":
				return w.one("0/000", "entries/000", "entries/000.p/"+w.size, "0/000.p/"+w.size)
			}
			return get(kind)
		})
		if x.query != nil {
			if q := x.query(w, get); q != "" {
				path += "?" + q
			}
		}
		if body = empty; x.body != nil {
			body = x.body(w, p, get)
		}
		return path, body, named
	}
	none := func(kind string) string {
		if kind == "artifact" {
			kind = "digest"
		}
		return nones[kind]()
	}
	have := func(kind string) string {
		ids := of.has[kind]
		if kind == "run" && (of != p || strings.HasSuffix(route, "/cancel")) {
			ids = append(slices.Clone(ids), of.waiting...)
		}
		if len(ids) == 0 {
			return none(kind)
		}
		return ids[w.pick.IntN(len(ids))]
	}
	seed := w.r.Uint64()
	rnd := w.r
	w.r = rand.New(rand.NewPCG(seed, 0))
	path, body, named := build(have)
	w.r = rnd
	status, answer := w.send(p, method, path, body)
	takes := func(status int, answer []byte) {
		if status < 300 && x.took != nil {
			x.took(w, p, answer)
		}
	}
	takes(status, answer)
	n := w.done[name]
	defer func() { w.done[name] = n }()
	if of == p {
		if status < 300 {
			n[0]++
		} else {
			n[1]++
		}
		return
	}
	n[2]++
	if !named || x.public != "" {
		return
	}
	w.r = rand.New(rand.NewPCG(seed, 0))
	path2, body2, _ := build(none)
	w.r = rnd
	status2, answer2 := w.send(p, method, path2, body2)
	takes(status2, answer2)
	if bytes.Contains(slices.Concat(answer, answer2), []byte("idempotency_key_reused")) { // of its own earlier request
		return
	}
	plain := func(b []byte) string { return volatile.ReplaceAllString(string(b), "#") }
	if status != status2 || plain(answer) != plain(answer2) {
		w.t.Errorf("%s asks %s %s %s\nof another's: %d %.1500s\nof none:      %d %.1500s", p.user, method, path, body, status, answer, status2, answer2)
	}
}

var param = regexp.MustCompile(`\{[a-z.]+\}`)

// TestPrincipals has two operators do whatever can be done, in any order, over HTTP and with the same
// idempotency keys. No answer to one has a word of the other, or the id of anything that is the
// other's; what is the other's is asked for as what isn't there; and nothing of theirs is gone.
func TestPrincipals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: is two other users")
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("PALYRA_TEST_SEED"); s != "" {
		fmt.Sscan(s, &seed)
	}
	t.Logf("PALYRA_TEST_SEED=%d", seed)
	w := newWorld(t, seed)
	for _, o := range w.routes {
		if _, ok := ways[o.ID]; !ok {
			t.Errorf("%s %s: no way says how one principal asks for another's", o.Method, o.Full())
		}
	}
	if len(ways) != len(w.routes) {
		t.Errorf("%d ways, and %d operations", len(ways), len(w.routes))
	}
	type task struct {
		method, route, empty string
		way                  way
	}
	var all, makes []task
	for _, o := range w.routes {
		x := task{o.Method, o.Full(), "", ways[o.ID]}
		if api.InputOf(o).BodyType != nil {
			x.empty = "{}"
		}
		all = append(all, x)
		if slices.Contains([]string{"createSession", "startRun", "call", "addMemory", "searchMemory"}, o.ID) {
			makes = append(makes, x, x)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(foreignWays)) {
		method, path, _ := strings.Cut(key, " ")
		all = append(all, task{method, path, "", foreignWays[key]})
		if key == "POST /v1/responses" {
			makes = append(makes, all[len(all)-1])
		}
	}
	for _, p := range w.parties {
		w.begins(p)
	}
	for n := range sample.Of(100, 600) {
		x := all[w.r.IntN(len(all))]
		if n%2 == 0 {
			x = makes[w.r.IntN(len(makes))]
		}
		w.act(x.method, x.route, &x.way, w.parties[w.r.IntN(2)], w.parties[w.r.IntN(2)], x.empty)
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, x := range all { // whatever chance left out
		for i, p := range w.parties {
			if i == 0 || !testing.Short() {
				w.act(x.method, x.route, &x.way, p, w.parties[1-i], x.empty)
			}
			if i == 1 || !testing.Short() {
				w.act(x.method, x.route, &x.way, p, p, x.empty)
			}
		}
	}
	for _, p := range w.parties {
		was := p.items
		if now := w.list(p); !maps.Equal(was, now) {
			t.Errorf("%s remembered %d items, and has %d", p.user, len(was), len(now))
		}
		ended(w, nil, nil)
	}
	did := 0
	for name, n := range w.done {
		if n[0] > 0 {
			did++
		}
		if testing.Verbose() {
			t.Logf("%-60s %v", name, n)
		}
	}
	t.Logf("%d of %d operations had something to answer", did, len(all))
	if did < 25 {
		t.Errorf("only %d operations had something to answer", did)
	}
}

// begins gives a principal something of each kind.
func (w *world) begins(p *party) {
	w.t.Helper()
	do := func(o *hub.Operation, body string) {
		w.t.Helper()
		x := ways[o.ID]
		status, answer := w.send(p, o.Method, o.Full(), body)
		if status >= 300 {
			w.t.Fatalf("%s: %d %s", o.ID, status, answer)
		}
		if x.took != nil {
			x.took(w, p, answer)
		}
	}
	w.first = 1
	defer func() { w.first = 0 }()
	for range 4 {
		do(hub.CreateSession.Operation, text(`{"title":%s}`, p.mark))
	}
	session := func(i int) string { return text(`"session":%s,`, p.has["session"][i]) }
	for _, step := range allSteps(p, func(kind string) string {
		if len(p.has[kind]) == 0 {
			return nones[strings.Replace(kind, "artifact", "digest", 1)]()
		}
		return p.has[kind][0]
	}) {
		do(hub.StartRun.Operation, "{"+session(0)+`"staged":true,"steps":[`+step+`]}`)
	}
	do(hub.StartRun.Operation, "{"+session(3)+`"staged":true,"steps":[`+writes(p)+`]}`)
	for _, id := range p.waiting { // a layer
		var page hub.Page[hub.Approval]
		_, b := w.send(nil, "GET", "/api/v1/approvals?state=pending&run="+id, "")
		if err := json.Unmarshal(b, &page); err != nil || len(page.Items) != 1 {
			w.t.Fatalf("%s, %v", b, err)
		}
		if status, b := w.send(nil, "POST", "/api/v1/approvals/"+page.Items[0].ID+"/resolve", `{"approve":true}`); status != 200 {
			w.t.Fatalf("%d %s", status, b)
		}
		p.waiting = nil
		w.follow(p, id)
	}
	p.desk = p.has["session"][3]
	p.has["session"] = p.has["session"][:3]
	do(hub.StartRun.Operation, text(`{"session":%s,"steps":[`, p.desk)+writes(p)+`]}`)
	do(hub.StartRun.Operation, "{"+session(2)+text(`"agent":{"prompt":%s}}`, p.mark+" asks of an oak"))
	do(hub.AddMemory.Operation, text(`{"items":[{"text":%s}]}`, p.mark+" planted an "+words))
	do(hub.CreateToken.Operation, text(`{"name":%s,"scopes":["session.read"],"ttl_ns":3600000000000}`, p.mark))
	do(hub.ListApprovals.Operation, "")
	do(hub.ListLayers.Operation, "")
	do(hub.GetJournal.Operation, "")
	for _, kind := range []string{"session", "run", "artifact", "memory", "layer", "approval", "token", "index", "decision"} {
		if len(p.has[kind]) == 0 {
			w.t.Errorf("%s has no %s", p.user, kind)
		}
	}
}

// newWorld starts a palyrad with a vault, a scripted model and two operators.
func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	p := newPlace(t, "")
	state, key, src := filepath.Join(p.dir, "state"), filepath.Join(p.dir, "vault.key"), filepath.Join(p.dir, "src")
	cmd := exec.Command(filepath.Join(p.bin, "palyra"), "vault", "init", "--state", state, "--key", key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("palyra vault init: %v\n%s", err, out)
	}
	script := filepath.Join(p.dir, "script.json")
	if err := os.WriteFile(script, []byte(`{"turns":[{"text":"I look.","calls":[{"name":"memory_search","input":{"query":"an oak or a pine"}}]},
		{"text":"","calls":[{"name":"palyra_echo","input":{"text":"{{last}}"}}]},{"text":"That is all."},{"text":"Nothing more."},{"text":"No."}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := p.dir; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write(fmt.Sprintf("listen.http = \"off\"\nlisten.socket_group = \"%d\"\n[vault]\nidentity = %q\n[workspaces.src]\npath = %q\nread_only = false\n[limits]\nrequests_per_second = 0\n[models.hashes]\nprovider = \"scripted\"\nkind = \"embeddings\"\n[models.recalls]\nprovider = \"scripted\"\nscript = %q\n",
		strangers, key, src, script))
	w := &world{running: p.start(), t: t, r: rand.New(rand.NewPCG(seed, 1)), pick: rand.New(rand.NewPCG(seed, 2)), size: "1", done: make(map[string][3]int)}
	t.Cleanup(func() {
		w.signal(syscall.SIGTERM)
		if code := w.exit(); code != 0 || t.Failed() {
			t.Logf("palyrad ended with %d\n%s", code, w.log)
		}
	})
	w.routes = hub.Operations()
	for _, o := range w.routes {
		needsKey[o.Method+" "+o.Full()] = o.Idempotent
	}
	for i, mark := range []string{"Quernstone", "Vellichor"} {
		uid := 3001 + i
		w.makeOperator(uid)
		o := &party{user: fmt.Sprint("uid:", uid), mark: mark, has: make(map[string][]string), items: make(map[string]bool), from: make(map[string]string), named: make(map[string]bool)}
		conn := w.dialAs(uintptr(uid), 1)[0]
		c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
		scopes := []string{"session.read", "session.write", "run.start", "run.cancel", "approval.read", "approval.resolve", "policy.read", "token.manage", "journal.read", "artifact.read", "config.read", "layer.apply", "memory.manage"}
		req, err := http.NewRequest("POST", "http://localhost/api/v1/tokens", strings.NewReader(text(`{"name":"t","ttl_ns":36000000000000,"scopes":%s}`, scopes)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "first")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var token hub.TokenSecret
		if err != nil || resp.StatusCode != 201 || json.Unmarshal(b, &token) != nil {
			t.Fatalf("a token of %d: %d %s, %v", uid, resp.StatusCode, b, err)
		}
		o.token = token.Secret
		w.parties[i] = o
	}
	return w
}
