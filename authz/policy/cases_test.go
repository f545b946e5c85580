package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

func TestParseRequest(t *testing.T) {
	r := benchRequest()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := parseRequest(text)
	if err != nil || !reflect.DeepEqual(back, r) {
		t.Fatalf("%v\n got %+v\nwant %+v", err, back, r)
	}
	good := `{"principal": {"type": "Palyra::User", "id": "u"}, "action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}, "context": {}}`
	if _, err := parseRequest([]byte(good)); err != nil {
		t.Errorf("control: %v", err)
	}
	for name, text := range map[string]string{
		"empty":         "",
		"not JSON":      "principal",
		"an array":      "[]",
		"unknown key":   strings.Replace(good, `"context": {}`, `"context": {"approved": true}`, 1),
		"duplicate key": strings.Replace(good, `"action"`, `"action": "vault.get", "action"`, 1),
		"nested twice":  strings.Replace(good, `"id": "u"`, `"id": "u", "id": "v"`, 1),
		"another case":  strings.Replace(good, `"action"`, `"Action"`, 1),
		"trailing data": good + "{}",
		"truncated":     good[:len(good)-1],
		"null":          strings.Replace(good, `{}`, `null`, 1),
		"not UTF-8":     strings.Replace(good, `"u"`, "\"\xff\"", 1),
		"wrong type":    strings.Replace(good, `"u"`, `7`, 1),
		"bad digest":    strings.Replace(good, `{}`, `{"capsule_digest": "sha256:00"}`, 1),
		"deep":          strings.Repeat("[", 100) + strings.Repeat("]", 100),
		"huge":          `{"action": "` + strings.Repeat("a", maxFile) + `"}`,
		"no principal":  strings.Replace(good, `"id": "u"`, `"id": ""`, 1),
	} {
		if r, err := parseRequest([]byte(text)); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

func TestParseCases(t *testing.T) {
	for name, text := range map[string]string{
		"version":           `{"version": 2, "tests": []}`,
		"no version":        `{"tests": []}`,
		"unknown key":       `{"version": 1, "tests": [], "note": ""}`,
		"no name":           `{"version": 1, "tests": [{"request": {}, "effect": "deny"}]}`,
		"name twice":        `{"version": 1, "tests": [{"name": "a", "request": {}, "effect": "deny"}, {"name": "a", "request": {}, "effect": "deny"}]}`,
		"no request":        `{"version": 1, "tests": [{"name": "a", "effect": "deny"}]}`,
		"no effect":         `{"version": 1, "tests": [{"name": "a", "request": {}}]}`,
		"unknown effect":    `{"version": 1, "tests": [{"name": "a", "request": {}, "effect": "Deny"}]}`,
		"unknown in base":   `{"version": 1, "base": {"who": 1}, "tests": [{"name": "a", "request": {}, "effect": "deny"}]}`,
		"unknown in detail": `{"version": 1, "tests": [{"name": "a", "request": {"context": {"exe": 1}}, "effect": "deny"}]}`,
	} {
		if _, err := casesOf(file{"t.test.json", kindTest, []byte(text)}); fault.ReasonOf(err) != "policy_invalid" || !strings.Contains(err.Error(), "t.test.json") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBaseIsNotShared: a request lays its fields over the base and doesn't leak into the next.
func TestBaseIsNotShared(t *testing.T) {
	cases, err := casesOf(file{"t.test.json", kindTest, []byte(`{"version": 1,
		"base": {"context": {"args": ["a", "b"], "tier": "c"}},
		"tests": [
			{"name": "1", "request": {"context": {"args": ["x"]}}, "effect": "deny"},
			{"name": "2", "request": {}, "effect": "deny"}
		]}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := cases[0].request.Context; !reflect.DeepEqual(got.Args, []string{"x"}) || got.Tier != "c" {
		t.Errorf("1: %+v", got)
	}
	if got := cases[1].request.Context; !reflect.DeepEqual(got.Args, []string{"a", "b"}) {
		t.Errorf("2: %+v", got)
	}
}

// parseRequest reads a request as policy tests and palyra policy check spell it: strict JSON,
// with the names of the struct's tags.
func parseRequest(data []byte) (Request, error) {
	var r Request
	if len(data) > maxFile {
		return r, fault.New(fault.Usage, "too_large", "parse policy request", fmt.Errorf("larger than %d bytes", maxFile))
	}
	if err := canon.Decode(data, &r, limits); err != nil {
		return Request{}, fault.New(fault.Usage, "invalid_input", "parse policy request", err)
	}
	if err := r.check(); err != nil {
		return Request{}, fault.New(fault.Usage, "invalid_input", "check policy request", err)
	}
	return r, nil
}

// casesOf reads the tests of a file.
func casesOf(f file) (all []testCase, err error) {
	err = eachCase(context.Background(), f, new(tested), func(c *testCase) error {
		all = append(all, *c)
		return nil
	})
	return all, err
}
