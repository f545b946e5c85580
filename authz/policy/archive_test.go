package policy

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestRestoreOlderSchema: a set that was checked against another schema is restored with it, sees
// the attributes that it has and no others, and is exported with it.
func TestRestoreOlderSchema(t *testing.T) {
	const staged = "      staged: Bool,"
	at := strings.Index(schemaText(), staged)
	if at < 0 {
		t.Fatal("the schema has no workspace.staged")
	}
	line, _, _ := strings.Cut(schemaText()[at:], "\n")
	older := strings.Replace(schemaText(), line+"\n", "", 1)
	newer := strings.Replace(schemaText(), line, "      colour: Bool,\n"+line, 1)
	files := []file{{"a.cedar", kindPolicy, []byte(`@id("a") permit (principal, action == Palyra::Action::"tool.execute", resource);
@id("b") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.workspace has staged };`)}}
	texts := map[string]string{"a.cedar": string(files[0].data)}
	r := benchRequest()
	for name, c := range map[string]struct {
		schema string
		want   Effect
		staged bool
		bundle string // reason of the refusal; "": there is a bundle
	}{
		"the program's": {schemaText(), Deny, true, ""},
		"older":         {older, Allow, false, ""},
		"newer":         {newer, Deny, true, "question_not_recorded"},
	} {
		t.Run(name, func(t *testing.T) {
			d := digestOf(c.schema, files)
			s, err := Restore(texts, c.schema, d)
			if err != nil {
				t.Fatal(err)
			}
			if s.Digest() != d || s.Schema() != c.schema || !maps.Equal(s.Texts(), texts) {
				t.Errorf("digest %s, schema of %d bytes", s.Digest(), len(s.Schema()))
			}
			if got := s.Decide(r); got.Effect != c.want {
				t.Errorf("it decides %v, want %v", got, c.want)
			}
			b, err := s.Bundle(r, "0123")
			if fault.ReasonOf(err) != c.bundle {
				t.Fatalf("bundle: %v, want %q", err, c.bundle)
			}
			if err != nil {
				return
			}
			var context struct{ Workspace map[string]any }
			if err := json.Unmarshal(b.Questions[0].Context, &context); err != nil {
				t.Fatal(err)
			}
			if _, has := context.Workspace["staged"]; has != c.staged || b.Schema != c.schema || b.Answer.Effect != c.want || b.PolicySet != d {
				t.Errorf("the bundle: %v in workspace, effect %v, schema of %d bytes", context.Workspace, b.Answer.Effect, len(b.Schema))
			}
		})
	}
	for name, schema := range map[string]string{"": "", "another": older + " ", "none": "x"} {
		if _, err := Restore(texts, schema, digestOf(older, files)); fault.ReasonOf(err) != "store_corrupt" {
			t.Errorf("schema %q: %v", name, err)
		}
	}
	if _, err := Restore(texts, "x", digestOf("x", files)); fault.ReasonOf(err) != "store_corrupt" {
		t.Errorf("a schema that is none: %v", err)
	}
	if s, err := Restore(texts, "", digestOf(schemaText(), files)); err != nil || s.Schema() != schemaText() {
		t.Errorf("without a schema: %v", err)
	}
}
