package run

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestMetadata: a run keeps what its caller noted, as it was, and another note makes another request.
func TestMetadata(t *testing.T) {
	h := open(t, nil)
	note := map[string]string{"ticket": "<42> & more", "empty": ""}
	q := Request{Steps: steps("echo {}"), Metadata: note, Key: "k"}
	id := h.start(q)
	if r := h.ended(id); !maps.Equal(r.Metadata, note) {
		t.Errorf("%v, want %v", r.Metadata, note)
	}
	if again := h.start(q); again != id {
		t.Errorf("the same request made %s", again)
	}
	q.Metadata = map[string]string{"ticket": "43"}
	if _, err := h.try(q); fault.ReasonOf(err) != "idempotency_key_reused" {
		t.Errorf("with another note: %v", err)
	}
	h.stop()
	h.reopen(nil)
	if r := h.read(id); !maps.Equal(r.Metadata, note) {
		t.Errorf("behind a restart: %v, want %v", r.Metadata, note)
	}
	many := make(map[string]string)
	for i := range hub.MaxMetadata + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for what, bad := range map[string]map[string]string{"many": many, "no name": {"": "a"}, "a long name": {strings.Repeat("a", hub.MaxMetadataName+1): ""},
		"a long value": {"a": strings.Repeat("a", hub.MaxMetadataValue+1)}, "no text": {"a": "\xff"}} {
		if _, err := h.try(Request{Steps: steps("echo {}"), Metadata: bad}); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", what, err)
		}
	}
	delete(many, "0")
	if r := h.ended(h.start(Request{Steps: steps("echo {}"), Metadata: many})); !maps.Equal(r.Metadata, many) {
		t.Errorf("%d of %d", len(r.Metadata), len(many))
	}
}
