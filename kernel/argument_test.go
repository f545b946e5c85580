package kernel

import (
	"encoding/json"
	"strings"
	"testing"

	"palyra/internal/canon"
)

// TestArgumentText: policy and approver are told no two values of an argument the same way.
func TestArgumentText(t *testing.T) {
	long := strings.Repeat("a", maxArgumentText+1)
	object := `{"a":"` + long + `"}`
	text := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	digest := func(s string) string { return canon.Sum([]byte(s)).String() }
	seen := map[string]string{}
	for value, want := range map[string]string{
		`"a"`: "a", `""`: "", `" 5"`: `" 5"`, `"a=b"`: "a=b", `"sha1"`: "sha1", `"{"`: "{",
		`5`: "5", `true`: "true", `null`: "null", `[]`: "[]", `{"a":"b"}`: `{"a":"b"}`,
		`"5"`: `"5"`, `"true"`: `"true"`, `"null"`: `"null"`, `"[]"`: `"[]"`,
		text(`{"a":"b"}`): text(`{"a":"b"}`), text(`"5"`): text(`"5"`), text(digest(long)): text(digest(long)),
		text(long): digest(long), object: digest(object), text(object): digest(text(object)),
	} {
		got := argumentText(json.RawMessage(value))
		if got != want {
			t.Errorf("%.60s: %.90q, want %.90q", value, got, want)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.60s is told as %.60s is", value, other)
		}
		seen[got] = value
	}
}
