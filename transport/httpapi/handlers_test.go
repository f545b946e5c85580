package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/transport/api/apitest"
)

// TestEveryOperation asks for everything once as it should be asked for; rig
// holds each answer against the document.
func TestEveryOperation(t *testing.T) {
	r := newRig(t)
	seen := map[string]bool{}
	ask := func(status int, method, path, body string, headers ...string) answer {
		t.Helper()
		seen[r.checker.Operation(method, strings.SplitN(path, "?", 2)[0])] = true
		return r.want(r.send(method, path, body, headers...), status)
	}
	id, tag := r.session()
	seen["createSession"] = true
	ask(200, get, "/api/v1/sessions?limit=1&state=open", "")
	ask(200, get, "/api/v1/sessions/"+id, "")
	a := ask(201, post, "/api/v1/runs", `{"session":"`+id+`","steps":[{"tool":"test.echo","input":{"a":[1]}}],"budget":{"calls":3}}`, r.key())
	var run hub.Run
	a.into(t, &run)
	if got := a.header.Get("Location"); got != "/api/v1/runs/"+run.ID {
		t.Errorf("Location %q", got)
	}
	ask(200, get, "/api/v1/runs?session="+id+"&state=done&state=failed", "")
	ask(200, get, "/api/v1/runs/"+run.ID, "")
	ask(200, get, "/api/v1/runs/"+run.ID+"/tape", "", "Accept: application/x-ndjson")
	ask(200, get, "/api/v1/runs/"+run.ID+"/tape", "")
	ask(200, post, "/api/v1/runs/"+r.run(apitest.ToolWait)+"/cancel", "")
	ask(200, post, "/api/v1/runs/"+run.ID+"/input", `{"mode":"steer","text":"stop"}`)
	ask(204, post, "/api/v1/runs/"+run.ID+"/metadata", `{"metadata":{"ticket":"42"}}`)
	ask(200, get, "/api/v1/runs/"+run.ID+"/output?step=0&stdout=1&stderr=2&until=now", "")
	ask(400, get, "/api/v1/runs/"+run.ID+"/output?until=then", "")
	digest := r.hub.PutArtifact([]byte("0123456789"))
	ask(200, get, "/api/v1/runs/"+run.ID+"/artifacts/"+digest, "")
	ask(200, post, "/api/v1/calls", `{"tool":"test.echo"}`)
	ask(202, post, "/api/v1/calls", `{"tool":"test.wait","session":"`+id+`"}`, "Prefer: respond-async")
	ask(200, get, "/api/v1/tools", "")
	ask(200, get, "/api/v1/models", "")
	ask(200, get, "/api/v1/usage?by=principal&days=31&session="+id, "")
	ask(200, post, "/api/v1/workspaces/find", `{"paths":["/src/a","/etc"]}`)
	ask(200, get, "/api/v1/instructions", "")
	ask(200, post, "/api/v1/instructions/"+apitest.Workspace+"/inspect", "")
	ask(404, post, "/api/v1/instructions/none/inspect", "")
	ask(200, post, "/api/v1/instructions/"+apitest.Workspace+"/accept", `{"digest":"sha256:`+strings.Repeat("0", 64)+`","anyway":true}`)
	ask(204, http.MethodDelete, "/api/v1/instructions/"+apitest.Workspace, "")
	ask(200, get, "/api/v1/servers", "")
	ask(201, post, "/api/v1/servers", `{"name":"docs","spec":{"argv":["docs-server"]}}`, r.key())
	ask(200, get, "/api/v1/servers/"+apitest.Server, "")
	ask(404, get, "/api/v1/servers/none", "")
	ask(200, post, "/api/v1/servers/"+apitest.Server+"/inspect", "")
	ask(200, post, "/api/v1/servers/"+apitest.Server+"/accept", `{"digest":"sha256:`+strings.Repeat("0", 64)+`"}`)
	ask(200, get, "/api/v1/servers/"+apitest.Server+"/tools", "")
	ask(204, http.MethodDelete, "/api/v1/servers/"+apitest.Server, "")
	ask(200, get, "/api/v1/layers?session="+id+"&after="+apitest.Layer, "")
	ask(400, get, "/api/v1/layers?after=A", "")
	ask(200, get, "/api/v1/layers/"+apitest.Layer, "")
	ask(404, get, "/api/v1/layers/none", "")
	ask(400, get, "/api/v1/layers/A_B", "")
	ask(200, get, "/api/v1/layers/"+apitest.Layer+"/patch?files=binary", "")
	list := `{"digest":"sha256:` + strings.Repeat("0", 64) + `"}`
	ask(202, post, "/api/v1/layers/"+apitest.Layer+"/apply", list)
	ask(400, post, "/api/v1/layers/"+apitest.Layer+"/apply", `{"digest":""}`)
	ask(404, post, "/api/v1/layers/none/apply", list)
	ask(202, post, "/api/v1/layers/"+apitest.Layer+"/undo", list)
	ask(202, post, "/api/v1/layers/"+apitest.Layer+"/recover", "")
	ask(204, http.MethodDelete, "/api/v1/layers/"+apitest.Layer, "")
	ap := r.hub.Ask(run.ID)
	ask(200, get, "/api/v1/approvals?state=pending", "")
	ask(200, get, "/api/v1/approvals/"+ap.ID, "")
	ask(200, post, "/api/v1/approvals/"+ap.ID+"/preview", `{"approve":true,"scope":"timed","for_ns":600000000000,"pattern":{"within":[2]}}`)
	ask(200, post, "/api/v1/approvals/"+ap.ID+"/resolve", `{"approve":true}`, `If-Match: "v1"`)
	ask(200, post, "/api/v1/pairings", "")
	ask(200, get, "/api/v1/pairings", "")
	ask(200, get, "/api/v1/pairings/"+apitest.Pairing+"?unlike=open", "")
	ask(404, get, "/api/v1/pairings/par_"+strings.Repeat("0", 32), "")
	ask(200, post, "/api/v1/pairings/"+apitest.Pairing+"/approve", `{"digits":"`+apitest.PairingDigits+`","scopes":[],"replace":true}`)
	ask(403, post, "/api/v1/pairings/"+apitest.Pairing+"/approve", `{"digits":"000000"}`)
	ask(200, post, "/api/v1/pairings/"+apitest.Pairing+"/deny", "")
	const ref, value = `"ref":"` + apitest.SecretRef + `"`, `"value":"aHVzaA=="`
	ask(200, post, "/api/v1/vault/set", `{`+ref+`,`+value+`,"expires":"2125-01-02T03:04:05Z"}`)
	ask(200, post, "/api/v1/vault/rollback", `{`+ref+`,"secret_version":1}`)
	a = ask(200, post, "/api/v1/vault/reveal", `{`+ref+`}`)
	var revealed hub.VaultResult
	if a.into(t, &revealed); string(revealed.Value) != apitest.SecretValue || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("revealed: %d bytes, %v", len(revealed.Value), a.header)
	}
	ask(400, post, "/api/v1/vault/reveal", `{`+ref+`}`, r.key()) // no key repeats the answer
	ask(400, get, "/api/v1/vault?ref=x", "")
	ask(200, post, "/api/v1/vault/list", `{"session":"`+id+`"}`)
	ask(200, post, "/api/v1/vault/remove", `{`+ref+`}`)
	ask(200, post, "/api/v1/vault/rotate", `{"drop":["old"]}`)
	ask(200, post, "/api/v1/vault/recipients", `{"label":"safe","recipient":"palyra-recipient-1:x"}`)
	ask(200, post, "/api/v1/vault/import", `{"secrets":[{`+ref+`,`+value+`}]}`)
	large := strings.Repeat(`{`+ref+`,"value":"`+strings.Repeat("A", 4096)+`"},`, 999)
	ask(200, post, "/api/v1/vault/import", `{"secrets":[`+large+`{`+ref+`,`+value+`}]}`) // more than any other operation's
	ask(413, post, "/api/v1/vault/set", `{`+ref+`,"value":"`+strings.Repeat("A", 1<<20)+`"}`)
	ask(413, post, "/api/v1/vault/import", `{"secrets":[`+strings.Repeat("{},", 1<<17)+`{}]}`)
	ask(413, post, "/api/v1/vault/import", `{"secrets":[`+strings.Repeat(" ", 25<<20)+`]}`)
	ask(200, post, "/api/v1/vault/export", `{"to":"age1","refs":["`+apitest.SecretRef+`"]}`)
	ask(200, get, "/api/v1/vault", "")
	ask(200, post, "/api/v1/memory/search", `{"query":"release","limit":3,"of":"`+id+`"}`)
	ask(200, post, "/api/v1/memory/list", `{"before":7}`)
	ask(200, post, "/api/v1/memory/add", `{"items":[{"text":"x","tags":["t"],"confidence":0}],"import":true}`)
	ask(200, post, "/api/v1/memory/forget", `{"ids":["`+apitest.MemoryID+`"]}`)
	ask(200, get, "/api/v1/memory", "")
	ask(200, post, "/api/v1/vault/verify", "")
	ask(200, get, "/api/v1/grants", "")
	ask(200, post, "/api/v1/grants/grt_"+strings.Repeat("0", 32)+"/revoke", "")
	ask(200, get, "/api/v1/policy", "")
	ask(200, get, "/api/v1/policy/sets", "")
	ask(200, get, "/api/v1/policy/sets/sha256:"+strings.Repeat("1", 64), "")
	ask(200, post, "/api/v1/policy/explain", `{"tool":"test.echo"}`)
	ask(200, post, "/api/v1/policy/test", `{}`)
	ask(200, post, "/api/v1/policy/test", `{"candidate":{"files":{"a.cedar":"permit(principal,action,resource);"}}}`)
	ask(200, post, "/api/v1/policy/diff", `{"candidate":{"files":{}},"last":3}`)
	ask(200, post, "/api/v1/policy/diff", `{"diff":"--- /dev/null","last":3}`)
	ask(200, get, "/api/v1/policy/decisions/00112233", "")
	ask(404, get, "/api/v1/policy/decisions/ffffffff", "")
	ask(400, get, "/api/v1/policy/decisions/0011", "")
	ask(400, get, "/api/v1/policy/decisions/00112233445566778899AABBCCDDEEFF/bundle", "")
	ask(200, get, "/api/v1/policy/decisions/00112233445566778899aabbccddeeff/bundle", "")
	ask(500, post, "/api/v1/reload", "")
	ask(200, get, "/api/v1/receipts/0", "")
	ask(200, post, "/api/v1/journal/receipt/verify", `{"receipt":{"mediaType":"x"}}`)
	ask(200, get, "/api/v1/reach", "")
	ask(200, post, "/api/v1/journal/verify", "")
	ask(200, get, "/api/v1/journal", "")
	ask(200, get, "/api/v1/journal/entries?from=0&limit=10", "")
	ask(200, get, "/api/v1/journal/entries/0/proof", "")
	ask(200, get, "/api/v1/journal/consistency?old=1", "")
	ask(200, get, "/api/v1/journal/checkpoint", "")
	if a := ask(200, get, "/api/v1/journal/tile/entries/x001/234.p/7", ""); string(a.body) != "entries/x001/234.p/7" {
		t.Errorf("tile %q", a.body)
	}
	ask(200, get, "/api/v1/journal/watch?old=1", "")
	ask(204, post, "/api/v1/journal/cosignatures", `{"vkey":"v","note":"n"}`)
	ask(200, get, "/api/v1/keys", "")
	ask(200, post, "/api/v1/keys/rotate", `{"introduce_only":true}`)
	a = ask(201, post, "/api/v1/tokens", `{"name":"ci","scopes":["run.start"],"ttl_ns":3600000000000}`, r.key())
	var tok hub.TokenSecret
	a.into(t, &tok)
	ask(200, get, "/api/v1/tokens", "")
	ask(201, post, "/api/v1/tokens/"+tok.ID+"/rotate", `{"overlap_ns":1000}`, r.key(), "If-Match: "+a.header.Get("ETag"))
	ask(200, post, "/api/v1/tokens/"+tok.ID+"/revoke", "", "If-Match: *")
	ask(200, post, "/api/v1/console", "")
	ask(200, get, "/api/v1/devices", "")
	ask(200, get, "/api/v1/devices/"+apitest.Device, "")
	ask(404, get, "/api/v1/devices/none", "")
	ask(200, post, "/api/v1/devices/"+apitest.Device+"/renew", `{"csr":"MAA="}`)
	ask(200, post, "/api/v1/devices/"+apitest.Device+"/revoke", "")
	ask(204, http.MethodDelete, "/api/v1/devices/"+apitest.Device, "")
	ask(200, get, "/api/v1/passkeys", "")
	ask(200, post, "/api/v1/passkeys/"+apitest.Passkey+"/revoke", "")
	ask(200, get, "/api/v1/authority", "")
	ask(200, post, "/api/v1/authority/replace-root", `{"at_once":true}`)
	ask(200, get, "/api/v1/members", "")
	ask(200, http.MethodPut, "/api/v1/members/uid:1000", `{"role":"operator"}`, "If-None-Match: *")
	ask(200, http.MethodPut, "/api/v1/members/uid:1000", `{"role":"admin"}`, `If-Match: "v1"`)
	ask(204, http.MethodDelete, "/api/v1/members/uid:1000", "", `If-Match: "v2"`)
	ask(200, get, "/api/v1/status", "")
	ask(200, get, "/api/v1/doctor", "")
	ask(200, get, "/api/v1/config", "")
	ask(200, post, "/api/v1/stop", `{"all":true,"deny_new":true}`)
	ask(200, post, "/api/v1/resume", "")
	ask(200, post, "/api/v1/backup", `{"recipients":["age1"]}`)
	a = ask(200, post, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		"Accept: "+accept)
	ask(204, http.MethodDelete, "/mcp", "", "Mcp-Session-Id: "+a.header.Get("Mcp-Session-Id"))
	a = ask(200, post, "/mcp/"+apitest.Server, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		"Accept: application/json, text/event-stream")
	ask(404, http.MethodDelete, "/mcp", "", "Mcp-Session-Id: "+a.header.Get("Mcp-Session-Id")) // it's another address's
	ask(204, http.MethodDelete, "/mcp/"+apitest.Server, "", "Mcp-Session-Id: "+a.header.Get("Mcp-Session-Id"))
	ask(200, get, "/api/v1/openapi.json", "")
	ask(200, get, "/livez", "")
	ask(200, get, "/readyz", "")
	if a := ask(200, get, "/metrics", ""); !strings.Contains(string(a.body), `palyra_http_requests_total{operation="getTile",code="2xx"} 1`) ||
		!strings.Contains(string(a.body), "palyra_runs_active 0") {
		t.Errorf("metrics lack what happened:\n%s", a.body)
	}
	ask(200, post, "/api/v1/sessions/"+id+"/end", "", "If-Match: "+tag)
	for _, op := range Operations() {
		if !seen[op.ID] {
			t.Errorf("operation %s was not asked for", op.ID)
		}
	}
}

// TestProblems: what the outside learns of errors, by who asks.
func TestProblems(t *testing.T) {
	r := newRig(t)
	id, _ := r.session()
	body := func(tool string) string { return fmt.Sprintf(`{"session":%q,"steps":[{"tool":%q}]}`, id, tool) }
	owner, weak := "Authorization: Bearer "+apitest.OwnerToken, "Authorization: Bearer "+apitest.WeakToken

	p := r.refused(r.sendTCP(post, "/api/v1/runs", body(apitest.ToolDeny), owner, r.key()), 403, "policy_denied")
	if p.Decision != "00112233445566778899aabbccddeeff" || p.Layer != "policy" || len(p.Rules) != 1 || p.Rules[0] != "never" || p.Fix != "permit it" ||
		p.Hint != "ask the operator" {
		t.Errorf("denial for an owner: %+v", p)
	}
	p = r.refused(r.sendTCP(post, "/api/v1/runs", body(apitest.ToolDeny), weak, r.key()), 403, "")
	if p.Decision != "00112233445566778899aabbccddeeff" || p.Kind != "denied" || p.Layer+p.Fix+p.Hint+p.Detail != "" || p.Rules != nil {
		t.Errorf("denial for a token without policy.read: %+v", p)
	}
	// The operator gets the rest by the id; who may not read policy does not.
	var why hub.DecisionReport
	r.want(r.sendTCP(get, "/api/v1/policy/decisions/"+p.Decision, "", owner), 200).into(t, &why)
	if why.DecisionID != p.Decision || why.Fix != "permit it" || len(why.Rules) != 1 {
		t.Errorf("decision for an owner: %+v", why)
	}
	r.refused(r.sendTCP(get, "/api/v1/policy/decisions/"+p.Decision, "", weak), 403, "scope_missing")
	for _, who := range []string{owner, weak} {
		a := r.sendTCP(post, "/api/v1/runs", body(apitest.ToolBug), who, r.key())
		p = r.refused(a, 500, "internal")
		if strings.Contains(string(a.body), "permission denied") || strings.Contains(string(a.body), apitest.Secret) {
			t.Errorf("an error from inside is shown: %s", a.body)
		}
		if id := strings.TrimPrefix(p.Instance, "urn:palyra:request:"); !strings.Contains(r.log.String(), id) || !strings.Contains(r.log.String(), apitest.Secret) {
			t.Error("the log does not have the error under the problem's id")
		}
	}
	a := r.send(post, "/api/v1/reload", "")
	if p = r.refused(a, 500, "config_invalid"); strings.Contains(string(a.body), apitest.Secret) || p.Hint != "palyra-admin config validate" {
		t.Errorf("error about the host: %s", a.body)
	}
	r.refused(r.sendTCP(get, "/api/v1/runs/run_"+strings.Repeat("0", 32), "", weak), 404, "not_found")
}

// TestIdempotency: what has a key happens once.
func TestIdempotency(t *testing.T) {
	r := newRig(t)
	r.refused(r.send(post, "/api/v1/sessions", `{}`), 400, "invalid_input")
	key := r.key()
	first := r.want(r.send(post, "/api/v1/sessions", `{"title":"a"}`, key), 201)
	before := r.hub.Changes()
	again := r.want(r.send(post, "/api/v1/sessions", `{"title":"a"}`, key), 201)
	if string(first.body) != string(again.body) || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("replayed: %s, first: %s", again.body, first.body)
	}
	r.refused(r.send(post, "/api/v1/sessions", `{"title":"b"}`, key), 422, "idempotency_key_reused")
	if r.hub.Changes() != before {
		t.Error("something happened twice")
	}
	// The same key of another principal is another key.
	r.want(r.sendTCP(post, "/api/v1/sessions", `{"title":"b"}`, key, "Authorization: Bearer "+apitest.WeakToken), 201)

	id, _ := r.session()
	body := fmt.Sprintf(`{"session":%q,"steps":[{"tool":"test.wait"}]}`, id)
	key = r.key()
	var one, two hub.Run
	r.want(r.send(post, "/api/v1/runs", body, key), 201).into(t, &one)
	r.want(r.send(post, "/api/v1/runs", body, key), 201).into(t, &two)
	if one.ID != two.ID {
		t.Errorf("runs %s and %s with one key", one.ID, two.ID)
	}
	for name, k := range map[string]string{"long": strings.Repeat("x", 129), "space": "a b", "umlaut": "ä"} {
		t.Run(name, func(t *testing.T) {
			r.refused(r.send(post, "/api/v1/sessions", `{}`, "Idempotency-Key: "+k), 400, "invalid_input")
		})
	}
	r.refused(r.send(post, "/api/v1/sessions", `{}`, "Idempotency-Key: a", "Idempotency-Key: b"), 400, "invalid_input")
	r.refused(r.send(post, "/api/v1/stop", `{"all":false,"deny_new":false}`, r.key()), 400, "invalid_input")
	r.refused(r.send(post, "/api/v1/runs", `{"session":"`+id+`","steps":[],"idempotency_key":"other"}`, r.key()), 400, "invalid_input")
}

// TestSecretOnce: the text of a token is in one answer only.
func TestSecretOnce(t *testing.T) {
	r := newRig(t)
	key := r.key()
	body := `{"name":"ci","scopes":["run.start"],"ttl_ns":1000000000}`
	a := r.want(r.send(post, "/api/v1/tokens", body, key), 201)
	if !strings.Contains(string(a.body), "palyra_the_secret_text") {
		t.Fatalf("no secret: %s", a.body)
	}
	a = r.send(post, "/api/v1/tokens", body, key)
	p := r.refused(a, 409, "exists")
	if strings.Contains(string(a.body), "secret_text") || !strings.Contains(p.Detail, "tok_") {
		t.Errorf("second answer: %s", a.body)
	}
	if a = r.want(r.send(get, "/api/v1/tokens", ""), 200); strings.Contains(string(a.body), "secret_text") {
		t.Errorf("list: %s", a.body)
	}
	if strings.Contains(r.log.String(), "secret_text") {
		t.Error("the secret is in the log")
	}
}

// TestKeyOfAnError: a request that was refused did not use up its key.
func TestKeyOfAnError(t *testing.T) {
	r := newRig(t)
	key := r.key()
	tok := "tok_" + strings.Repeat("0", 32)
	r.refused(r.send(post, "/api/v1/tokens/"+tok+"/rotate", `{"overlap_ns":1}`, key, "If-Match: *"), 404, "not_found")
	r.refused(r.send(post, "/api/v1/tokens/"+tok+"/rotate", `{"overlap_ns":2}`, key, "If-Match: *"), 404, "not_found")
}

// TestVersions: what can be changed is changed for the version that was seen.
func TestVersions(t *testing.T) {
	r := newRig(t)
	id, tag := r.session()
	end := "/api/v1/sessions/" + id + "/end"
	r.refused(r.send(post, end, ""), 428, "invalid_input")
	for _, bad := range []string{`v1`, `W/"v1"`, `"1"`, `"v01"`, `"v0"`, `"v-1"`, `"v1", "v2"`, `""`, `"v99999999999999999999"`} {
		r.refused(r.send(post, end, "", "If-Match: "+bad), 400, "invalid_input")
	}
	r.refused(r.send(post, end, "", "If-None-Match: *"), 400, "invalid_input")
	r.refused(r.send(post, end, "", "If-Match: "+tag, `If-Match: "v2"`), 400, "invalid_input")
	r.refused(r.send(post, end, "", `If-Match: "v7"`), 412, "version_conflict")
	if a := r.send(get, "/api/v1/sessions/"+id, "", "If-None-Match: "+tag); a.status != 304 || len(a.body) != 0 {
		t.Errorf("GET of the version that is there: %d", a.status)
	}
	a := r.want(r.send(post, end, "", "If-Match: "+tag), 200)
	if got := a.header.Get("ETag"); got != `"v2"` {
		t.Errorf("ETag %q after a change", got)
	}
	r.refused(r.send(post, end, "", "If-Match: "+tag), 412, "version_conflict")
	// The second to answer is told so.
	ap := r.hub.Ask("run_" + strings.Repeat("0", 32))
	r.want(r.send(post, "/api/v1/approvals/"+ap.ID+"/resolve", `{"approve":false}`, `If-Match: "v1"`), 200)
	r.refused(r.send(post, "/api/v1/approvals/"+ap.ID+"/resolve", `{"approve":true}`, `If-Match: "v1"`), 412, "version_conflict")
	r.refused(r.send(http.MethodPut, "/api/v1/members/uid:1", `{"role":"admin"}`, "If-Match: *"), 400, "invalid_input")
	r.refused(r.send(http.MethodPut, "/api/v1/members/uid:0", `{"role":"admin"}`, "If-None-Match: *"), 412, "version_conflict")
}

// TestPages goes through a list.
func TestPages(t *testing.T) {
	r := newRig(t)
	var want []string
	for range 5 {
		id, _ := r.session()
		want = append([]string{id}, want...)
	}
	var got []string
	after := ""
	for range 5 {
		var p hub.Page[hub.Session]
		r.want(r.send(get, "/api/v1/sessions?limit=2"+after, ""), 200).into(t, &p)
		for _, s := range p.Items {
			got = append(got, s.ID)
		}
		if p.Next == "" {
			break
		}
		after = "&after=" + p.Next
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("pages give %v, want %v", got, want)
	}
	run := "run_" + strings.Repeat("0", 32)
	for query, reason := range map[string]string{
		"limit=0": "invalid_input", "limit=1001": "invalid_input", "limit=-1": "invalid_input", "limit=01": "invalid_input", "limit=1e1": "invalid_input",
		"after=x": "invalid_input", "after=" + run: "invalid_input", "after=": "invalid_input", "limit=1&limit=2": "invalid_input",
		"state=gone": "invalid_input", "Limit=1": "invalid_input", "x=1": "invalid_input", "limit=%zz": "invalid_input", "a;b": "invalid_input",
	} {
		t.Run(query, func(t *testing.T) { r.refused(r.send(get, "/api/v1/sessions?"+query, ""), 400, reason) })
	}
}

// TestArtifacts: bytes, never something that a browser would show.
func TestArtifacts(t *testing.T) {
	r := newRig(t)
	path := "/api/v1/runs/run_" + strings.Repeat("0", 32) + "/artifacts/"
	digest := r.hub.PutArtifact([]byte("0123456789"))
	a := r.want(r.send(get, path+digest, ""), 200)
	if a.header.Get("Content-Type") != hub.MediaBytes || a.header.Get(hub.HeaderMediaType) != "text/htmlX: y" || string(a.body) != "0123456789" {
		t.Errorf("artifact: %v %q", a.header, a.body)
	}
	for _, tt := range []struct {
		header, want, contentRange string
		status                     int
	}{
		{"bytes=2-4", "234", "bytes 2-4/10", 206},
		{"bytes=7-", "789", "bytes 7-9/10", 206},
		{"bytes=-3", "789", "bytes 7-9/10", 206},
		{"bytes=-30", "0123456789", "bytes 0-9/10", 206},
		{"bytes=8-99", "89", "bytes 8-9/10", 206},
		{"bytes=0-1,3-4", "0123456789", "", 200},
		{"lines=1-2", "0123456789", "", 200},
		{"bytes=4-2", "0123456789", "", 200},
	} {
		a := r.want(r.send(get, path+digest, "", "Range: "+tt.header), tt.status)
		if string(a.body) != tt.want || a.header.Get("Content-Range") != tt.contentRange {
			t.Errorf("%s: %q, Content-Range %q; want %q %q", tt.header, a.body, a.header.Get("Content-Range"), tt.want, tt.contentRange)
		}
	}
	for _, h := range []string{"bytes=10-", "bytes=-0", "bytes=99-100"} {
		r.refused(r.send(get, path+digest, "", "Range: "+h), 416, "invalid_input")
	}
	if a := r.send(http.MethodHead, path+digest, ""); a.status != 200 || a.header.Get("Content-Length") != "10" {
		t.Errorf("HEAD: %d %v", a.status, a.header)
	}
	r.want(r.send(get, path+digest, "", `If-None-Match: "`+digest+`"`), 304)
	for _, bad := range []string{"x", strings.ToUpper(digest), digest[:20], digest[7:]} {
		r.refused(r.send(get, path+bad, ""), 400, "invalid_input")
	}
}

// TestBackupThatBreaks must not look whole.
func TestBackupThatBreaks(t *testing.T) {
	r := newRig(t)
	a := r.want(r.send(post, "/api/v1/backup", `{"recipients":["age1x"]}`), 200)
	if string(a.body) != "age-encryption.org/v1" {
		t.Errorf("backup %q", a.body)
	}
	req, _ := http.NewRequest(post, "http://palyra/api/v1/backup", strings.NewReader(`{"recipients":[]}`))
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.unix.Do(req)
	if err == nil {
		defer resp.Body.Close()
		if _, err = readAll(resp.Body, time.Second*5); err == nil {
			t.Error("a broken backup ended as if it were whole")
		}
	}
}

func TestTileName(t *testing.T) {
	for name, want := range map[string]bool{
		"0/000": true, "0/x001/234": true, "5/x123/x456/789": true, "entries/067": true, "0/001.p/17": true, "entries/x001/000.p/255": true,
		"": false, "0": false, "0/": false, "0/1": false, "0/0001": false, "64/000": false, "00/000": false, "0/x000/001": false, "0/001/234": false,
		"0/001.p": false, "0/001.p/0": false, "0/001.p/256": false, "0/001.p/01": false, "0/../000": false, "x/000": false, "-1/000": false,
		"0/x001": false, "data/000": false, "0/000/": false, "0/x1000/000": false, "entries": false, "0/١٢٣": false,
	} {
		if got := tileName(name); got != want {
			t.Errorf("tileName(%q) = %v, want %v", name, got, want)
		}
	}
}
