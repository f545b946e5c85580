package run

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestMetadata: a run keeps what its caller noted, as it was, and another note makes another request.
func TestMetadata(t *testing.T) {
	h := open(t, nil)
	note := map[string]string{"ticket": "<42> & more", "empty": ""}
	q := Request{Steps: steps(`echo {"a":"<&>"}`), Metadata: note, Key: "k"}
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
	if err := h.SetMetadata(t.Context(), id, map[string]string{"": "a"}); fault.KindOf(err) != fault.Usage {
		t.Errorf("no name: %v", err)
	}
	before := h.read(id)
	if err := h.SetMetadata(t.Context(), id, many); err != nil {
		t.Fatal(err)
	}
	after := h.ended(id)
	if !maps.Equal(after.Metadata, many) {
		t.Errorf("%v", after.Metadata)
	}
	if after.Metadata, before.Metadata = nil, nil; !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, and was %+v", after, before)
	}
	if err := h.SetMetadata(t.Context(), "run_"+strings.Repeat("0", 32), nil); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of no run: %v", err)
	}
	if r := h.ended(h.start(Request{Steps: steps("echo {}"), Metadata: many})); !maps.Equal(r.Metadata, many) {
		t.Errorf("%d of %d", len(r.Metadata), len(many))
	}
}
