package httpapi

import (
	"bytes"
	"flag"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

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
		if o.Request == nil {
			continue
		}
		for i := range o.Request.NumField() {
			name, _, _ := strings.Cut(o.Request.Field(i).Tag.Get("json"), ",")
			if slices.Contains([]string{"idempotency_key", "version", "if_match"}, name) {
				t.Errorf("%s: member %q, which belongs into a header", o.ID, name)
			}
		}
	}
}

// permissions are those of authz/access, which transport does not import.
var permissions = []string{"session.read", "session.write", "run.start", "run.cancel", "approval.read", "approval.resolve", "policy.read",
	"policy.manage", "token.manage", "member.manage", "config.read", "journal.read", "artifact.read", "backup.manage"}

// TestEveryRouteHasAPermission: there is no way in beside the table, and no row
// that forgot to say who may.
func TestEveryRouteHasAPermission(t *testing.T) {
	public := []string{"livez", "readyz"}
	authenticated := []string{"getStatus", "getOpenAPI"}
	ids := map[string]bool{}
	for _, rt := range table() {
		switch {
		case rt.Permission == api.Public && slices.Contains(public, rt.ID):
		case rt.Permission == api.Authenticated && slices.Contains(authenticated, rt.ID):
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
		if rt.Request != nil && rt.Method == get {
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
				if rt.Permission == api.Public {
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
			lacks := rt.Permission != api.Public && rt.Permission != api.Authenticated && !slices.Contains(weak, rt.Permission)
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
	r.refused(a, 405, "method_not_allowed")
	if got := a.header.Get("Allow"); got != "POST, GET, HEAD" {
		t.Errorf("Allow %q", got)
	}
	for _, p := range []string{"/", "/api", "/api/v1", "/api/v1/", "/api/v1/sessions/", "/api/v1//sessions", "/api/v1/x/../sessions",
		"/api/v2/sessions", "/api/v1/journal/tile/", "/favicon.ico", "/debug/pprof"} {
		r.refused(r.send(get, p, ""), 404, "no_such_path")
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
			r.refused(r.sendTCP(rt.Method, fillPath(rt.Full()), "", "Authorization: Bearer "+apitest.OwnerToken), 404, "no_such_path")
		}
	}
}
