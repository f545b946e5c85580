package apitest

import (
	"testing"

	"palyra/hub"
	"palyra/transport/api"
)

type thing struct {
	Name string   `json:"name"`
	N    uint64   `json:"n,omitempty"`
	Tags []string `json:"tags"`
	Of   *thing   `json:"of"`
}

// TestCheckerFinds what does not agree: one that found nothing would pass everything.
func TestCheckerFinds(t *testing.T) {
	doc, err := api.Document([]*hub.Operation{
		{ID: "make", Method: "POST", Path: "/things", In: api.Type[thing](), Out: api.Type[thing](), Status: 201},
		{ID: "get", Method: "GET", Path: "/things/{id}", Out: api.Type[thing](), Status: 200},
		{ID: "tile", Method: "GET", Path: "/things/{id}/{rest...}", Media: []string{hub.MediaBytes}, Status: 200},
		{ID: "stream", Method: "GET", Path: "/stream", Out: api.Type[thing](), Media: []string{hub.MediaNDJSON}, Status: 200},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewChecker(doc)
	if err != nil {
		t.Fatal(err)
	}
	ok := `{"name":"x","tags":["a"],"of":null}`
	for _, tt := range []struct {
		name, method, path string
		status             int
		media, body        string
		good               bool
	}{
		{"good", "GET", "/api/v1/things/1", 200, "application/json", ok, true},
		{"charset", "GET", "/api/v1/things/1", 200, "application/json; charset=utf-8", ok, true},
		{"nested", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"x","tags":[],"of":` + ok + `}`, true},
		{"problem", "GET", "/api/v1/things/1", 404, api.MediaProblem, `{"type":"t","title":"t","status":404,"kind":"k"}`, true},
		{"slashes", "GET", "/api/v1/things/1/a/b", 200, hub.MediaBytes, "x", true},
		{"lines", "GET", "/api/v1/stream", 200, hub.MediaNDJSON, ok + "\n\n" + ok + "\n", true},
		{"missing member", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"x","of":null}`, false},
		{"null list", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"x","tags":null,"of":null}`, false},
		{"another member", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"x","tags":[],"of":null,"y":1}`, false},
		{"wrong type", "GET", "/api/v1/things/1", 200, "application/json", `{"name":1,"tags":[],"of":null}`, false},
		{"negative", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"","n":-1,"tags":[],"of":null}`, false},
		{"fraction", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"","n":1.5,"tags":[],"of":null}`, false},
		{"wrong deep inside", "GET", "/api/v1/things/1", 200, "application/json", `{"name":"","tags":[],"of":{"name":"","tags":[1],"of":null}}`, false},
		{"wrong in a line", "GET", "/api/v1/stream", 200, hub.MediaNDJSON, ok + "\n{}\n", false},
		{"other status", "GET", "/api/v1/things/1", 201, "application/json", ok, false},
		{"other media", "GET", "/api/v1/things/1", 200, "text/html", ok, false},
		{"problem that is none", "GET", "/api/v1/things/1", 500, "text/plain", "oops", false},
		{"other path", "GET", "/api/v1/other", 200, "application/json", ok, false},
	} {
		if err := c.Response(tt.method, tt.path, tt.status, tt.media, []byte(tt.body)); (err == nil) != tt.good {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for body, good := range map[string]bool{ok: true, `{}`: false, "": false} {
		if err := c.Request("POST", "/api/v1/things", []byte(body)); (err == nil) != good {
			t.Errorf("request %q: %v", body, err)
		}
	}
	if err := c.Request("GET", "/api/v1/things/1", []byte("{}")); err == nil {
		t.Error("a body where the document has none")
	}
}
