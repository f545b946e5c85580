package run

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestStdout: what a run's calls write goes to its own reader, and is kept nowhere; and such a run
// isn't one that would go on after a restart, without that.
func TestStdout(t *testing.T) {
	h := open(t, nil)
	var out bytes.Buffer
	q := Request{User: alice, Steps: []hub.Step{{Tool: "print", Input: json.RawMessage(`{"bytes":100000}`)}}, Attended: true, Stdout: &out}
	id := h.start(q)
	r := h.ended(id)
	if s := r.Steps[0]; r.State != hub.RunDone || out.Len() != 100000 || s.Stdout.Size != 0 || s.Stdout.Text != "" || !s.Stdout.Artifact.IsZero() || s.Stderr.Size == 0 {
		t.Errorf("%d bytes came; kept %+v and %+v", out.Len(), s.Stdout, s.Stderr)
	}
	files, err := filepath.Glob(h.dir + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	written := []byte(strings.Repeat("é", 20))
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, written) {
			t.Errorf("%s has it", f)
		}
	}
	q.Stdout = nil // the control
	if r := h.ended(h.start(q)); r.Steps[0].Stdout.Size != 100000 {
		t.Errorf("kept %+v", r.Steps[0].Stdout)
	}
	q.Stdout, q.Attended = &out, false
	if _, err := h.Start(t.Context(), q); fault.KindOf(err) != fault.Internal {
		t.Errorf("a run that goes on: %v", err)
	}
}
