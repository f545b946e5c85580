package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"palyra/transport/api/apitest"
	"palyra/transport/openai"
)

func withOpenAI(c *Config) { c.OpenAI = openai.NewHandler() }

// foreignly sends a request that the OpenAPI document doesn't have.
func (r *rig) foreignly(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.tcp+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := r.web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: b}
}

// envelope is an error as OpenAI's clients read it.
type envelope struct {
	Error struct {
		Message, Type, Code string
	}
}

// TestForeignRoutes: a route of another's API lets in by the same credentials and permissions as any,
// and says no in the form of that API.
func TestForeignRoutes(t *testing.T) {
	r := newRig(t, withOpenAI)
	weak := strings.Split("session.read session.write run.start", " ")
	for _, rt := range foreign() {
		path := strings.NewReplacer("{model...}", "main", "{response}", "resp_"+strings.Repeat("0", 32)).Replace(rt.Full())
		body := ""
		if rt.in.BodyType != nil {
			body = `{"model":"main"}`
		}
		refused := func(a answer, status int, code string) {
			t.Helper()
			var e envelope
			a.into(t, &e)
			if a.status != status || e.Error.Message == "" || rt.ID != "anthropicMessages" && e.Error.Code != code {
				t.Errorf("%s: %d %s, want %d %s", rt.ID, a.status, a.body, status, code)
			}
		}
		refused(r.foreignly(rt.Method, path, body), 401, "missing_bearer_token")
		for _, h := range []string{"Authorization: Bearer palyra_wrong", "Authorization: Basic dXNlcjpwYXNz", "X-Api-Key: palyra_wrong"} {
			refused(r.foreignly(rt.Method, path, body, h), 401, "invalid_api_token")
		}
		refused(r.foreignly(rt.Method, path, body, "Authorization: Bearer "+apitest.OwnerToken, "X-Api-Key: "+apitest.OwnerToken), 401, "invalid_api_token")
		may := false
		for _, p := range weak {
			may = may || rt.Permission == p
		}
		a := r.foreignly(rt.Method, path, body, "X-Api-Key: "+apitest.WeakToken)
		alone := rt.ID == "openaiModels" || rt.ID == "openaiModel"
		if !may || !alone {
			refused(a, 403, "missing_scope")
		} else if a.status == 401 || a.status == 403 {
			t.Errorf("%s: %d %s", rt.ID, a.status, a.body)
		}
		if a := r.foreignly(rt.Method, path+"?x=1", body, "Authorization: Bearer "+apitest.OwnerToken); a.status != 400 {
			t.Errorf("%s with a parameter: %d", rt.ID, a.status)
		}
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{{get, "/v1/nothing", 404}, {"DELETE", "/v1/models", 405}, {"PUT", "/v1/responses", 405}} {
		a := r.foreignly(c.method, c.path, "", "Authorization: Bearer "+apitest.OwnerToken)
		var e envelope
		if a.into(t, &e); a.status != c.status || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
}

// TestForeignOff: without the surface its routes are refused as feature_off, as others are.
func TestForeignOff(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/v1/models", "/v1/responses/resp_" + strings.Repeat("0", 32)} {
		if a := r.foreignly(get, path, "", "Authorization: Bearer "+apitest.OwnerToken); a.status != 403 || a.problem(t).Reason != "feature_off" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	large := fmt.Sprintf(`{"model":"main","input":%q}`, strings.Repeat("a", 1<<20))
	r = newRig(t, withOpenAI)
	a := r.foreignly(post, "/v1/responses", large, "Authorization: Bearer "+apitest.OwnerToken)
	var e envelope
	if a.into(t, &e); a.status != 413 || e.Error.Code != "json_too_large" {
		t.Errorf("%d %s", a.status, a.body)
	}
}
