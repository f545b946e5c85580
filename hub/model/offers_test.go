package model

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/internal/fault"
)

const object = `{"type":"object","properties":{"path":{"type":"string"}}}`

func builtin(name string) hub.Tool {
	return hub.Tool{Name: name, Description: "Does " + name + ".", InputSchema: json.RawMessage(object)}
}

func served(server, tool string) hub.Tool {
	return hub.Tool{Name: gateway.MergedName(server, tool), Server: server, InputSchema: json.RawMessage(object),
		Definition: json.RawMessage(fmt.Sprintf(`{"inputSchema":%s,"name":%q}`, object, tool))}
}

func offers(t *testing.T, tools ...hub.Tool) *Catalog {
	t.Helper()
	c, err := Offers(tools)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOffers: a name leads back to the tool that was offered under it, and a call of a server's tool
// is one of mcp.call.
func TestOffers(t *testing.T) {
	tools := []hub.Tool{builtin("fs.read_file"), builtin("palyra.echo"), served("docs", "search"), served("docs", "pages/read.one"), served("docs", strings.Repeat("x", 100))}
	c := offers(t, tools...)
	if len(c.Offers) != 5 || len(c.LeftOut) != 0 || !regexp.MustCompile(`^toolcat_[0-9a-f]{16}$`).MatchString(c.ID) {
		t.Fatalf("%+v", c)
	}
	for _, o := range c.Offers {
		if !regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(o.Name) {
			t.Errorf("the name %q", o.Name)
		}
	}
	for name, want := range map[string]string{
		"fs_read_file": `{"tool":"fs.read_file","input":{"path":"a"}}`,
		"palyra_echo":  `{"tool":"palyra.echo","input":{"path":"a"}}`,
		"docs__search": `{"tool":"mcp.call","input":{"arguments":{"path":"a"},"server":"docs","tool":"search"}}`,
		gateway.MergedName("docs", "pages/read.one"):         `{"tool":"mcp.call","input":{"arguments":{"path":"a"},"server":"docs","tool":"pages/read.one"}}`,
		gateway.MergedName("docs", strings.Repeat("x", 100)): `{"tool":"mcp.call","input":{"arguments":{"path":"a"},"server":"docs","tool":"` + strings.Repeat("x", 100) + `"}}`,
	} {
		s, err := c.Step(name, ` {"path": "a"} `)
		if b, _ := json.Marshal(s); err != nil || string(b) != want {
			t.Errorf("%s: %s, %v; want %s", name, b, err, want)
		}
	}
	slices.Reverse(tools)
	if other := offers(t, tools...); other.ID != c.ID {
		t.Error("the order of the list changes the catalog")
	}
	tools[0].Description += "!"
	if other := offers(t, tools...); other.ID == c.ID {
		t.Error("another description is the same catalog")
	}
}

// TestCollisions: two tools never have one name, and each keeps its own in any order.
func TestCollisions(t *testing.T) {
	tools := []hub.Tool{builtin("a.b_c"), builtin("a_b.c"), builtin("a.b c"), builtin("é" + strings.Repeat("y", 80)), builtin("z.plain")}
	first := offers(t, tools...)
	slices.Reverse(tools)
	for _, c := range []*Catalog{first, offers(t, tools...)} {
		if len(c.Offers) != 5 || len(c.LeftOut) != 0 || c.ID != first.ID {
			t.Fatalf("%+v", c)
		}
		back := map[string]bool{}
		for _, o := range c.Offers {
			s, err := c.Step(o.Name, "")
			if err != nil || len(o.Name) > maxName || back[s.Tool] {
				t.Errorf("%q leads to %+v, %v", o.Name, s, err)
			}
			back[s.Tool] = true
		}
	}
	if s, err := first.Step("z_plain", "{}"); err != nil || s.Tool != "z.plain" {
		t.Errorf("a name that is unique is changed: %v", err)
	}
	if _, err := first.Step("a_b_c", "{}"); err == nil {
		t.Error("a name of two tools leads to one of them")
	}
	twice := offers(t, builtin("a.b"), builtin("a.b"))
	if len(twice.Offers) != 1 || len(twice.LeftOut) != 1 {
		t.Errorf("one tool twice: %+v", twice)
	}
}

// TestLeftOut: what no model can read isn't offered, and is named.
func TestLeftOut(t *testing.T) {
	with := func(t hub.Tool, schema string) hub.Tool { t.InputSchema = json.RawMessage(schema); return t }
	for want, tool := range map[string]hub.Tool{
		`has not the type "object"`:   with(builtin("a.b"), `{"type":"string"}`),
		`not the type "object"`:       with(builtin("a.c"), ``),
		`the type "object"`:           with(builtin("a.d"), `{"Type":"object"}`),
		"one reading":                 with(builtin("a.e"), `{"type":"object","x":1,"x":2}`),
		"limit 65536":                 with(builtin("a.f"), `{"type":"object","description":"`+strings.Repeat("x", maxOffer)+`"}`),
		"its definition is none":      {Name: "docs__x", Server: "docs", InputSchema: json.RawMessage(object), Definition: json.RawMessage(`[]`)},
		"its description isn't UTF-8": {Name: "a.g", Description: "\xff", InputSchema: json.RawMessage(object)},
	} {
		c := offers(t, tool, builtin("z.z"))
		if len(c.Offers) != 1 || len(c.LeftOut) != 1 || !strings.Contains(c.LeftOut[0].Why, want) || c.LeftOut[0].Tool != tool.Name || c.LeftOut[0].Server != tool.Server {
			t.Errorf("want %s: %+v", want, c)
		}
		if _, err := c.Step(hub.NameForModels(tool.Name), "{}"); fault.ReasonOf(err) != "not_found" {
			t.Errorf("%s: a tool that is left out can be called: %v", want, err)
		}
	}
	var many []hub.Tool
	for i := range maxTools + 3 {
		many = append(many, builtin(fmt.Sprintf("a.t%03d", i)))
	}
	if c := offers(t, many...); len(c.Offers) != maxTools || len(c.LeftOut) != 3 || c.LeftOut[0].Tool != "a.t128" {
		t.Errorf("too many: %d, %+v", len(c.Offers), c.LeftOut)
	}
	many = many[:20]
	for i := range many {
		many[i].Description = strings.Repeat("x", 60<<10)
	}
	if c := offers(t, many...); len(c.Offers) != 8 || len(c.LeftOut) != 12 {
		t.Errorf("too large together: %d, %d", len(c.Offers), len(c.LeftOut))
	}
}

// TestArguments: what a model writes is one object or its mistake.
func TestArguments(t *testing.T) {
	c := offers(t, builtin("a.b"), served("docs", "x"))
	for _, name := range []string{"a_b", "docs__x"} {
		for _, text := range []string{"null", "[]", `"a"`, "{", `{"a":1}{}`, `{"a":1,"a":2}`, strings.Repeat(`{"a":`, 80) + "1" + strings.Repeat("}", 80)} {
			if s, err := c.Step(name, text); fault.KindOf(err) != fault.Usage {
				t.Errorf("%s: %.40s: %+v, %v", name, text, s, err)
			}
		}
	}
	if s, err := c.Step("a_b", " "); err != nil || string(s.Input) != "{}" {
		t.Errorf("no arguments: %+v, %v", s, err)
	}
}
