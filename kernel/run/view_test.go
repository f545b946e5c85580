package run

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"palyra/authz/approval"
)

// TestCardKeepsWhatIsLoose: values of variables and names of what is not held are in
// what an approver gets by the API, as JSON and as text, and read back.
func TestCardKeepsWhatIsLoose(t *testing.T) {
	q := &approval.Request{Tool: "process.run", Call: approval.Call{
		Argv: []string{"find"}, EnvNames: []string{"PATH"}, EnvChanged: []string{"PATH=/workspace/bin"},
		Loose: []string{"/workspace/link"}, Absent: []string{"/workspace/late"}, Libraries: []string{"/workspace/lib"}}}
	c := cardOf(q)
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PATH=/workspace/bin", "/workspace/link", "/workspace/late", "/workspace/lib"} {
		if !strings.Contains(string(b), `"`+want+`"`) || !strings.Contains(c.Text, `"`+want+`"`) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	var again card
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	got, err := CallOf(&again.Card)
	if err != nil {
		t.Fatal(err)
	}
	want := &q.Call
	if !reflect.DeepEqual(got.EnvChanged, want.EnvChanged) || !reflect.DeepEqual(got.Absent, want.Absent) || !reflect.DeepEqual(got.Libraries, want.Libraries) {
		t.Errorf("got %+v", got)
	}
}
