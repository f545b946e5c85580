package run

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestSecretInCall: a run whose input, or metadata, has the value of a secret leaves nothing behind.
func TestSecretInCall(t *testing.T) {
	const value = "correct horse battery"
	h := open(t, func(c *Config) {
		c.HoldsSecret = func(user string, b []byte) bool { return user == alice && bytes.Contains(b, []byte(value)) }
	})
	q := Request{User: alice, Session: h.sess, Steps: []hub.Step{{Tool: "t"}, {Tool: "t", Input: json.RawMessage(`{"a":"` + value + `"}`)}}}
	if id, err := h.Start(t.Context(), q); fault.ReasonOf(err) != "secret_in_call" || id != "" {
		t.Errorf("%q, %v", id, err)
	}
	good := q
	good.Steps = q.Steps[:1]
	id, err := h.Start(t.Context(), good) // the control
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []map[string]string{{"a": "b", "key": value}, {value: ""}} {
		bad := good
		bad.Metadata = m
		if id, err := h.Start(t.Context(), bad); fault.ReasonOf(err) != "secret_in_call" || id != "" {
			t.Errorf("%q, %v", id, err)
		}
		if err := h.SetMetadata(t.Context(), id, m); fault.ReasonOf(err) != "secret_in_call" {
			t.Errorf("set later: %v", err)
		}
	}
	files, err := filepath.Glob(h.dir + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte(value)) {
			t.Errorf("%s has it", f)
		}
	}
}
