package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"palyra/hub"
)

// TestManyConversations: a new conversation with the agent is answered where as many are open as may
// be, and those are more than the lists that a principal has room for.
func TestManyConversations(t *testing.T) {
	const open = 8 // there is room for 6 lists
	r := newPlace(t, fmt.Sprintf("limits.sessions_per_principal = %d\n[models.main]\nprovider = \"scripted\"\n", open)).start()
	var token hub.TokenSecret
	r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["run.start","session.read","session.write","artifact.read","run.cancel"],"ttl_ns":3600000000000}`, &token)
	for range open {
		r.must(201, "POST", "/api/v1/sessions", `{"title":"openai conversation"}`, nil)
	}
	req, err := http.NewRequest("POST", "http://localhost/v1/responses", strings.NewReader(`{"model":"agent","input":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token.Secret)
	res, err := r.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%d %s, %v", res.StatusCode, b, err)
	}
}
