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

// TestSecretInCall: a run whose input has the value of a secret leaves nothing behind.
func TestSecretInCall(t *testing.T) {
	const value = "correct horse battery"
	h := open(t, func(c *Config) {
		c.HoldsSecret = func(user string, b []byte) bool { return user == alice && bytes.Contains(b, []byte(value)) }
	})
	q := Request{User: alice, Session: h.sess, Steps: []hub.Step{{Tool: "t"}, {Tool: "t", Input: json.RawMessage(`{"a":"` + value + `"}`)}}}
	if id, err := h.Start(t.Context(), q); fault.ReasonOf(err) != "secret_in_call" || id != "" {
		t.Errorf("%q, %v", id, err)
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
	q.Steps = q.Steps[:1]
	if _, err := h.Start(t.Context(), q); err != nil { // the control
		t.Error(err)
	}
}
