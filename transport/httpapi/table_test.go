package httpapi

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/api/apitest"
)

var update = flag.Bool("update", false, "rewrite docs/formats/openapi.json")

const document = "../../docs/formats/openapi.json"

// TestDocument holds the committed document to the table.
func TestDocument(t *testing.T) {
	got, err := api.Document(Operations())
	if err != nil {
		t.Fatal(err)
	}
	again, err := api.Document(Operations())
	if err != nil || !bytes.Equal(got, again) {
		t.Fatal("the same table gives another document")
	}
	if *update {
		if err := os.WriteFile(document, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the table gives; run go test ./transport/httpapi -run TestDocument -update", document)
	}
	a := newRig(t).send(get, "/api/v1/openapi.json", "")
	if a.status != 200 || !bytes.Equal(a.body, got) {
		t.Errorf("served document: status %d, equal %v", a.status, bytes.Equal(a.body, got))
	}
}

// TestBodiesAreAccepted: a generated client may set each member that the document
// has; what goes into headers is no member of a body.
func TestBodiesAreAccepted(t *testing.T) {
	for _, o := range Operations() {
		body := api.InputOf(o).BodyType
		if body == nil {
			continue
		}
		for i := range body.NumField() {
			name, _, _ := strings.Cut(body.Field(i).Tag.Get("json"), ",")
			if slices.Contains([]string{"idempotency_key", "version", "if_match"}, name) {
				t.Errorf("%s: member %q, which belongs into a header", o.ID, name)
			}
		}
	}
}

// permissions are those of authz/access, which transport does not import.
var permissions = []string{"session.read", "session.write", "run.start", "run.cancel", "approval.read", "approval.resolve", "policy.read",
	"policy.manage", "token.manage", "member.manage", "config.read", "journal.read", "artifact.read", "backup.manage", "trust.operate", "vault.manage", "layer.apply", "memory.manage"}

// TestEveryRouteHasAPermission: there is no way in beside the table, and no row
// that forgot to say who may.
func TestEveryRouteHasAPermission(t *testing.T) {
	public := []string{"livez", "readyz"}
	authenticated := []string{"getStatus", "getOpenAPI", "renewDevice", "watchJournal", "cosignJournal"} // the last three are for devices alone
	ids := map[string]bool{}
	for _, rt := range table() {
		switch {
		case rt.Permission == hub.Public && slices.Contains(public, rt.ID):
		case rt.Permission == hub.Authenticated && slices.Contains(authenticated, rt.ID):
		case !slices.Contains(permissions, rt.Permission):
			t.Errorf("%s: permission %q", rt.ID, rt.Permission)
		}
		if ids[rt.ID] || rt.ID == "" {
			t.Errorf("operation id %q: empty or twice", rt.ID)
		}
		ids[rt.ID] = true
		if rt.serve == nil || rt.Summary == "" || rt.Tag == "" {
			t.Errorf("%s: no handler, summary or tag", rt.ID)
		}
		if rt.in.BodyType != nil && rt.Method == get {
			t.Errorf("%s: GET with a body", rt.ID)
		}
		if rt.Method == post && rt.Status == 201 && !rt.Idempotent {
			t.Errorf("%s creates without an idempotency key", rt.ID)
		}
	}
}

var parameter = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// fill puts something that looks right into a path's parameters.
func fillPath(p string) string {
	return parameter.ReplaceAllStringFunc(p, func(m string) string {
		hex := strings.Repeat("0123456789abcdef", 2)
		switch m {
		case "{session}":
			return "ses_" + hex
		case "{run}":
			return "run_" + hex
		case "{approval}":
			return "apr_" + hex
		case "{grant}":
			return "grt_" + hex
		case "{token}":
			return "tok_" + hex
		case "{digest}":
			return "sha256:" + hex + hex
		case "{pairing}":
			return apitest.Pairing
		case "{server}":
			return apitest.Server
		case "{layer}":
			return apitest.Layer
		case "{decision}":
			return "00112233"
		case "{index}":
			return "0"
		case "{name...}":
			return "0/000"
		}
		return "uid:7"
	})
}

// TestNobodyGetsInWithout asks for every operation without a credential, with a
// wrong one, and with one that lacks the permission.
func TestNobodyGetsInWithout(t *testing.T) {
	weak := []string{"session.read", "session.write", "run.start"}
	for _, rt := range table() {
		t.Run(rt.ID, func(t *testing.T) {
			r := newRig(t)
			path := fillPath(rt.Full())
			for _, headers := range [][]string{
				nil, {"Authorization: Bearer palyra_wrong"}, {"Authorization: Basic dXNlcjpwYXNz"},
				{"X-Forwarded-User: alice", "Palyra-User: uid:0"},
			} {
				a := r.sendTCP(rt.Method, path, "", headers...)
				if rt.Permission == hub.Public {
					if a.status != 200 {
						t.Errorf("%v: status %d, want 200", headers, a.status)
					}
					continue
				}
				r.refused(a, 401, "unauthenticated")
				if got := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
					t.Errorf("%v: WWW-Authenticate %q", headers, got)
				}
			}
			a := r.sendTCP(rt.Method, path, "", "Authorization: Bearer "+apitest.WeakToken)
			lacks := rt.Permission != hub.Public && rt.Permission != hub.Authenticated && !slices.Contains(weak, rt.Permission)
			if lacks {
				if p := r.refused(a, 403, "scope_missing"); p.Permission != rt.Permission || p.Layer != "access" || len(p.Decision) != 32 ||
					!strings.HasSuffix(p.Instance, p.Decision) || len(p.Rules) != 1 || p.Fix == "" {
					t.Errorf("problem %+v does not name the permission %q, or its decision", p, rt.Permission)
				}
			} else if a.status == 401 || a.status == 403 {
				t.Errorf("status %d with the permission: %s", a.status, a.body)
			}
			if r.hub.Changes() != 0 {
				t.Error("something was changed")
			}
		})
	}
}

// TestWrongMethodsAndPaths are problems too, and never redirects.
func TestWrongMethodsAndPaths(t *testing.T) {
	r := newRig(t)
	a := r.send(http.MethodPatch, "/api/v1/sessions", "")
	r.refused(a, 405, "invalid_input")
	if got := a.header.Get("Allow"); got != "POST, GET, HEAD" {
		t.Errorf("Allow %q", got)
	}
	for _, p := range []string{"/", "/api", "/api/v1", "/api/v1/", "/api/v1/sessions/", "/api/v1//sessions", "/api/v1/x/../sessions",
		"/api/v2/sessions", "/api/v1/journal/tile/", "/favicon.ico", "/debug/pprof"} {
		r.refused(r.send(get, p, ""), 404, "not_found")
	}
	if a := r.send(http.MethodHead, "/api/v1/status", ""); a.status != 200 || len(a.body) != 0 {
		t.Errorf("HEAD: %d with %d bytes", a.status, len(a.body))
	}
}

// TestHealthOnly: without authentication there is health and nothing else.
func TestHealthOnly(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HealthOnly = true })
	for _, p := range []string{"/livez", "/readyz", "/metrics"} {
		r.want(r.sendTCP(get, p, ""), 200)
	}
	for _, rt := range table() {
		if !rt.Root {
			r.refused(r.sendTCP(rt.Method, fillPath(rt.Full()), "", "Authorization: Bearer "+apitest.OwnerToken), 404, "not_found")
		}
	}
}

// hidesStatus is a hub whose callers may not read how the daemon is.
type hidesStatus struct {
	Hub
	err error
}

func (h hidesStatus) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	if op == hub.GetStatus.Operation {
		return hub.Status{Version: "test", Hidden: true}, h.err
	}
	return h.Hub.Do(ctx, c, op, in)
}

// TestMetricsAreAsked: who sits at the socket and holds no role learns no metrics;
// the route's permission is asked of the hub, not of the token's scopes alone.
func TestMetricsAreAsked(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Hub = hidesStatus{Hub: c.Hub} })
	a := r.send(get, "/metrics", "")
	if r.refused(a, 403, "permission_denied"); strings.Contains(string(a.body), "palyra_http_requests_total") {
		t.Errorf("%s", a.body)
	}
	r = newRig(t, func(c *Config) {
		c.Hub = hidesStatus{c.Hub, fault.New(fault.Unavailable, "not_ready", "read status", nil)}
	})
	r.refused(r.send(get, "/metrics", ""), 503, "not_ready")
}

// TestShortOfMemory: when the heap is above the mark only an owner at the socket begins
// anything; members can still end work, and everybody sees whether the daemon lives.
func TestShortOfMemory(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Memory = budget.NewMark(1) })
	var served []string
	for _, rt := range table() {
		path, token, before := fillPath(rt.Full()), "Authorization: Bearer "+apitest.OwnerToken, r.hub.Changes()
		a := r.sendTCP(rt.Method, path, "", token)
		if a.status == 503 && strings.Contains(a.problem(t).Detail, "begin work: requests hold the memory") {
			if a.header.Get("Retry-After") == "" || r.hub.Changes() != before {
				t.Errorf("%s: %v, and %d changes", rt.ID, a.header, r.hub.Changes()-before)
			}
		} else if rt.Permission != hub.Public {
			served = append(served, rt.ID)
		}
		if a := r.send(rt.Method, path, ""); a.status == 503 {
			t.Errorf("%s: an owner at the socket gets %s", rt.ID, a.body)
		}
	}
	if want := []string{"cancelRun", "denyPairing", "mcpEnd", "mcpServerEnd", "resolveApproval", "stop"}; !slices.Equal(slices.Sorted(slices.Values(served)), want) {
		t.Errorf("served above the mark: %v, want %v", served, want)
	}
	if r.Server.cfg.Memory.Refused() == 0 {
		t.Error("no refusal was counted")
	}
}
