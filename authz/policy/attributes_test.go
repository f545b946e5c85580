package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"

	"palyra/internal/canon"
)

var update = flag.Bool("update", false, "rewrite the schema's contexts and the page's table of attributes")

// TestSchemaIsPrinted prints the contexts of the schema from the rows.
func TestSchemaIsPrinted(t *testing.T) {
	const name = "default/palyra.cedarschema"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got := text
	for i, context := range contextNames {
		got = between(t, got, "  type "+context+" = {\n", "  };\n", printed(1<<i))
	}
	printedFile(t, name, text, got)
}

// printed is the body of one of the schema's context types. Comments are in a column, unless
// the line is too long for that.
func printed(in contexts) string {
	type line struct{ indent, text, comment string }
	var lines []line
	own, record := 0, "" // attributes that no earlier context has; the record of the row before
	for i := range attributes {
		if attributes[i].home() == in {
			own++
		}
	}
	for i := range attributes {
		a := &attributes[i]
		if a.in&in == 0 {
			continue
		}
		if a.home() == in {
			if own > 1 && len(lines) > 0 {
				lines = append(lines, line{})
			}
			own = 0
		}
		top, sub, nested := strings.Cut(a.path, ".")
		if record != "" && (!nested || record != top) {
			lines = append(lines, line{"    ", "},", ""})
			record = ""
		}
		indent, name := "    ", a.path
		if nested {
			if indent, name = "      ", sub; record == "" {
				lines = append(lines, line{"    ", top + ": {", ""})
			}
			record = top
		}
		comment := map[contexts]string{inUse: a.use, inAnswer: a.answer}[in]
		if a.home() == in {
			comment = a.doc
		}
		lines = append(lines, line{indent, name + ": " + a.cedarType() + ",", a.listed(comment)})
	}
	if record != "" {
		lines = append(lines, line{"    ", "},", ""})
	}
	const widest = 26
	column := 0
	for _, l := range lines {
		if l.comment != "" {
			column = max(column, min(widest, len(l.indent+l.text)))
		}
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.indent + l.text)
		if l.comment != "" {
			b.WriteString(strings.Repeat(" ", max(0, column-len(l.indent+l.text))) + " // " + l.comment)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// home returns the first of the schema's contexts that has the attribute.
func (a *attribute) home() contexts { return a.in & -a.in }

// listed returns a sentence with the closed list in it.
func (a *attribute) listed(text string) string {
	var b strings.Builder
	for i, v := range a.of {
		switch {
		case i > 0 && i == len(a.of)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", v)
	}
	return strings.ReplaceAll(text, "{}", b.String())
}

// TestPageIsPrinted prints the lists of attributes and groups on the page about policies.
func TestPageIsPrinted(t *testing.T) {
	const name = "../../docs/formats/policy.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	var groups []contexts
	for i := range attributes {
		if in := attributes[i].in; !slices.Contains(groups, in) {
			groups = append(groups, in)
		}
	}
	for _, in := range groups {
		of := "all"
		if in != everywhere {
			var names []string
			for _, n := range in.names() {
				names = append(names, map[string]string{"Call": "calls", "Use": "permissions", "Answer": "answers", "Origin": "the rest"}[n])
			}
			of = strings.Join(names, " and ")
		}
		fmt.Fprintf(&b, "Of %s:\n\n", of)
		for i := range attributes {
			a := &attributes[i]
			if a.in != in {
				continue
			}
			said := a.page
			if said == "" {
				said = a.doc
			}
			if said == "" {
				t.Errorf("%s: no sentence for the page", a.path)
			}
			typ := ""
			if a.cedarType() != "String" {
				typ = " (`" + a.cedarType() + "`)"
			}
			fmt.Fprintf(&b, "- `%s`%s: %s\n", a.path, typ, a.listed(said))
		}
		b.WriteString("\n")
	}
	got := between(t, text, "<!-- generated: attributes -->\n", "<!-- end -->\n", b.String())
	b.Reset()
	for _, group := range vocabToolGroup {
		fmt.Fprintf(&b, "  - `Palyra::ToolGroup::%q`: `%s`\n", group, strings.Join(slices.Sorted(slices.Values(ToolsOf(group))), "`, `"))
	}
	printedFile(t, name, text, between(t, got, "  <!-- generated: groups -->\n", "  <!-- end -->\n", b.String()))
}

func between(t *testing.T, text []byte, begin, end, body string) []byte {
	t.Helper()
	pre, rest, ok := bytes.Cut(text, []byte(begin))
	_, post, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatalf("no %q … %q", begin, end)
	}
	return slices.Concat(pre, []byte(begin+body+end), post)
}

func printedFile(t *testing.T, name string, is, want []byte) {
	t.Helper()
	switch {
	case bytes.Equal(is, want):
	case *update:
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		got, should := strings.Split(string(is), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(got), len(should)) {
			if got[i] != should[i] {
				t.Errorf("line %d is %q, want %q", i+1, got[i], should[i])
				break
			}
		}
		t.Errorf("%s is stale: go test ./authz/policy -run IsPrinted -update", name)
	}
}

// TestRowsAgreeWithSchema: each attribute of each context has one row, with its type.
func TestRowsAgreeWithSchema(t *testing.T) {
	seen := make(map[string]bool)
	for i := range attributes {
		a := &attributes[i]
		if seen[a.path] || valuesOf(a) != 1 {
			t.Errorf("%s: has two rows, or not exactly one value", a.path)
		}
		seen[a.path] = true
	}
	for i, action := range map[int]string{0: ToolList, 1: ToolExecute, 2: PermissionUse, 3: ApprovalResolve} {
		want := make(map[string]string)
		var flat func(prefix string, r resolved.RecordType)
		flat = func(prefix string, r resolved.RecordType) {
			for name, at := range r {
				if sub, ok := at.Type.(resolved.RecordType); ok {
					flat(prefix+string(name)+".", sub)
					continue
				}
				want[prefix+string(name)] = typeName(at.Type)
			}
		}
		flat("", resolvedSchema().Actions[cedar.EntityUID{Type: actionType, ID: cedar.String(action)}].AppliesTo.Context)
		got := make(map[string]string)
		for _, a := range Attributes() {
			if slices.Contains(a.Contexts, contextNames[i]) {
				got[a.Path] = a.Type
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: rows have %v, the schema %v", action, got, want)
		}
	}
}

func valuesOf(a *attribute) (n int) {
	for _, is := range []bool{a.text != nil, a.set != nil, a.truth != nil, a.number != nil, a.digest != nil} {
		if is {
			n++
		}
	}
	return n
}

func typeName(t resolved.IsType) string {
	switch t := t.(type) {
	case resolved.StringType:
		return "String"
	case resolved.BoolType:
		return "Bool"
	case resolved.LongType:
		return "Long"
	case resolved.SetType:
		return "Set<" + typeName(t.Element) + ">"
	}
	return fmt.Sprintf("%T", t)
}

// leaves calls do for each plain field of a Context, with its path in JSON.
func leaves(v reflect.Value, prefix string, do func(path string, field reflect.Value)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if f := v.Field(i); f.Kind() == reflect.Struct {
			leaves(f, prefix+name+".", do)
		} else {
			do(prefix+name, f)
		}
	}
}

// TestFieldsHaveRows: policies see every field of a Context. The row that names a field reads
// it and nothing else; a row that names none reads fields that other rows check.
func TestFieldsHaveRows(t *testing.T) {
	values := func(c *Context) []string {
		g := given{Context: c}
		f := facts{given: g}
		out := make([]string, len(attributes))
		for i := range attributes {
			out[i] = fmt.Sprint(f.value(attrAt(i)))
		}
		return out
	}
	var paths []string
	leaves(reflect.ValueOf(new(Context)).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	for _, path := range paths {
		var c Context
		before := values(&c)
		leaves(reflect.ValueOf(&c).Elem(), "", func(at string, f reflect.Value) {
			if at == path {
				fill(t, at, f, "x=y")
			}
		})
		changed := make(map[string]bool)
		for i, v := range values(&c) {
			if v != before[i] {
				changed[attributes[i].path] = true
			}
		}
		if len(changed) == 0 {
			t.Errorf("no policy sees the field %s", path)
		}
		for i := range attributes {
			a := &attributes[i]
			switch {
			case a.from == path && !changed[a.path]:
				t.Errorf("context.%s does not read %s", a.path, path)
			case a.from != "" && a.from != path && changed[a.path] && !slices.Contains([]string{"line_args", "env"}, path):
				t.Errorf("context.%s reads %s, not %s", a.path, path, a.from)
			}
		}
	}
	for i := range attributes {
		if from := attributes[i].from; from != "" && !slices.Contains(paths, from) {
			t.Errorf("context.%s is from %s, which no request has", attributes[i].path, from)
		}
	}
}

func fill(t *testing.T, path string, f reflect.Value, text string) {
	t.Helper()
	switch v := f.Addr().Interface().(type) {
	case *string:
		*v = text
	case *[]string:
		*v = []string{text}
	case *bool:
		*v = true
	case *int64:
		*v = 7
	case *time.Duration:
		*v = 7 * time.Second
	case *canon.Digest:
		*v = canon.Sum([]byte(text))
	default:
		t.Fatalf("%s: no way to fill a %T", path, v)
	}
}

// TestTextIsChecked: policies get no text that isn't UTF-8, and no text outside an attribute's
// closed list.
func TestTextIsChecked(t *testing.T) {
	n := 0
	leaves(reflect.ValueOf(new(Context)).Elem(), "", func(path string, f reflect.Value) {
		if f.Kind() != reflect.String && f.Kind() != reflect.Slice {
			return
		}
		bad := []string{"/\xff", "A=\xff", "\xff"}
		if i := slices.IndexFunc(attributes[:], func(a attribute) bool { return a.from == path && a.of != nil }); i >= 0 {
			bad = append(bad, "closed")
		}
		for _, action := range []string{ToolExecute, ApprovalResolve} {
			for _, text := range bad {
				r := benchRequest()
				r.Action, r.Resource.Type = action, resourceType[action]
				if path == "env_code" {
					r.Context.EnvNames = []string{text}
				}
				leaves(reflect.ValueOf(&r.Context).Elem(), "", func(at string, f reflect.Value) {
					if at == path {
						fill(t, at, f, text)
					}
				})
				if d := Default().Decide(r); d.Reason != ReasonBadRequest {
					t.Errorf("%s with %s %q: %s", action, path, text, d.Reason)
				}
				n++
			}
		}
	})
	if n < 100 {
		t.Errorf("%d requests", n)
	}
}

// TestEachAttributeDecides: a policy that wants the value that a field of the request gives an
// attribute permits that request and not one without. Cedar agrees when it's given the whole
// context.
func TestEachAttributeDecides(t *testing.T) {
	seen := make(map[string]bool)
	leaves(reflect.ValueOf(new(Context)).Elem(), "", func(path string, _ reflect.Value) {
		for _, action := range []string{ToolExecute, ApprovalResolve, PermissionUse} {
			without := benchRequest()
			without.Action, without.Resource, without.Context = action, Entity{Type: resourceType[action], ID: "run.start"}, Context{}
			with := without
			leaves(reflect.ValueOf(&with.Context).Elem(), "", func(at string, f reflect.Value) {
				if at == path {
					text := "/x=y"
					if i := slices.IndexFunc(attributes[:], func(a attribute) bool { return a.from == path && a.of != nil }); i >= 0 {
						text = attributes[i].of[len(attributes[i].of)-1]
					}
					switch path {
					case "secrets":
						text = principalScope + "another/x"
					case "egress_secrets":
						text = "T=" + principalScope + "another/x header:x example.org:443"
					}
					fill(t, at, f, text)
				}
			})
			if path == "env_code" {
				with.Context.EnvNames = with.Context.EnvCode
			}
			if with.check() != nil { // no field of this action
				continue
			}
			one, none := Default().newEvaluation(&with, attrAll), Default().newEvaluation(&without, attrAll)
			for a := range one.facts.has.each {
				value, row := one.facts.value(a), &attributes[a.bit()]
				if value.Equal(none.facts.value(a)) {
					continue
				}
				seen[row.path] = true
				if path == "secrets" || path == "egress_secrets" { // each takes a permit of its own
					one := Default().Decide(with)
					if one.Effect == Allow {
						t.Errorf("a secret without a permit: %+v", one)
					}
				}
				s := mustCompile(t, `@id("y") permit (principal, action in [Palyra::Action::"vault.expose", Palyra::Action::"vault.use"], resource);`+fmt.Sprintf(`@id("x") permit (principal, action == Palyra::Action::%q, resource) when { context.%s == %s };`,
					action, row.path, value.MarshalCedar()))
				for _, c := range []struct {
					r    Request
					want Effect
				}{{with, Allow}, {without, Deny}} {
					if got, want := s.Decide(c.r), oracle(s, c.r); got.Effect != c.want || !sameAnswer(got, want) {
						t.Errorf("%s: context.%s with %s: got %+v, want %v and %+v", action, row.path, path, got, c.want, want)
					}
				}
			}
		}
	})
	for i := range attributes {
		if path := attributes[i].path; !seen[path] && path != "approved" && path != "interpreter_permitted" && !strings.HasPrefix(path, "use.") {
			t.Errorf("no request gives context.%s a value", path)
		}
	}
}

// TestAttributesTravel: a foreign engine gets the attributes that it needs.
func TestAttributesTravel(t *testing.T) {
	text, err := json.Marshal(Attributes())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"path":"stdin","type":"String","contexts":["Call"],"from":"stdin","absent":"none","values":["none","sealed","stream"]}`,
		`{"path":"executable.dir","type":"String","contexts":["Call","Answer"]}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not among %s", want, text)
		}
	}
}
