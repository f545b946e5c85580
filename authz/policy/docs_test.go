package policy

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestDocumentation loads the policies on the operators' page.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := func(lang string) (out []string) {
		for _, b := range strings.Split(string(page), "```"+lang+"\n")[1:] {
			text, _, _ := strings.Cut(b, "```")
			out = append(out, text)
		}
		return out
	}
	cedars, jsons := blocks("cedar"), blocks("json")
	if len(cedars) != 8 || len(jsons) != 2 {
		t.Fatalf("%d cedar and %d json blocks", len(cedars), len(jsons))
	}
	s, err := LoadFS(fstest.MapFS{"10-programs.cedar": {Data: []byte(cedars[0])}, "programs.test.json": {Data: []byte(jsons[0])}})
	if err != nil {
		t.Errorf("the example directory: %v", err)
	} else if n := len(s.RunTests()); n != 2 {
		t.Errorf("the example directory: %d tests", n)
	}
	if n := strings.Count(cedars[1], "\n"); n != 3 {
		t.Errorf("allowing everything takes %d lines", n)
	}
	s, err = LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(cedars[1])}})
	if err != nil {
		t.Fatal(err)
	}
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/bash"
	if d := s.Decide(r); d.Effect != Allow {
		t.Errorf("allow_everything: %v", d.Effect)
	}
	// The recipes of "Who may say yes" come after those of "Recipes".
	for _, text := range cedars[2:] {
		if _, err := LoadFS(defaultWith(t, map[string]string{"50-local.cedar": text})); err != nil {
			t.Errorf("recipe: %v\n%s", err, text)
		}
	}
	if _, err := parseRequest([]byte(strings.ReplaceAll(jsons[1], "sha256:…", "sha256:"+strings.Repeat("0a", 32)))); err != nil {
		t.Errorf("the example request: %v", err)
	}
	// The page has every reason code that Load can give.
	var code strings.Builder
	for _, name := range []string{"compile.go", "load.go", "validate.go", "cases.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	for _, reason := range strings.FieldsFunc(code.String(), func(r rune) bool { return r == '"' }) {
		if strings.HasPrefix(reason, "policy_") && !strings.Contains(string(page), "`"+reason+"`") {
			t.Errorf("reason %s is not documented", reason)
		}
	}
	for _, p := range Default().Policies() {
		if !strings.Contains(string(page), "`"+p.ID+"`") {
			t.Errorf("default policy %s is not documented", p.ID)
		}
	}
}
