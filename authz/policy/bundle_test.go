package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestBundle: the answer follows from the questions, and the texts are policies.
func TestBundle(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/bash"
	b, err := Default().Bundle(r, "0123")
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Questions) != 4 || b.Questions[0].Action.ID != interpreterRun || b.Questions[0].Resource.ID != "bash" || b.Questions[3].Allow ||
		b.Kind != Shell || b.Answer.Effect != Deny || !slices.Equal(b.Answer.Policies, []string{"interpreters_unless_permitted"}) ||
		!slices.Equal(b.Questions[3].Policies, b.Answer.Policies) || len(b.Questions[0].Entities) != 5 {
		t.Errorf("%+v", b)
	}
	var context struct{ Approved bool }
	if json.Unmarshal(b.Questions[3].Context, &context) != nil || !context.Approved {
		t.Errorf("context %s", b.Questions[3].Context)
	}
	var all strings.Builder
	for _, text := range b.Policies {
		all.WriteString(text + "\n")
	}
	again := mustCompile(t, all.String())
	if d := again.Decide(b.Request); len(again.rules) != len(Default().rules) || d.Effect != Deny || !slices.Equal(d.Policies, b.Answer.Policies) {
		t.Errorf("the texts decide %v", d)
	}
	if _, err := Default().Bundle(Request{}, ""); err == nil {
		t.Error("a request that is none has a bundle")
	}
}
