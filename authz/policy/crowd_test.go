package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// alike are texts of which those in a row have the same FNV-1 hash behind any of the row before.
var alike = [][]string{
	{"BvsZU<Abb64P", "g?4sy@<^T4dA", "OpfX`V@][?a@", "nj7X`?R>]Nwk", "O;jxGTQ5>:RT", "L^DzQHN;Y:;W", "D75Dl]VGBN>3", "i_nzTIBQ=vWW"},
	{"XpfAxB012r`R", "[]p_NZ;;ABiQ", "s6iK00Qi61IS", "ZOz;]Hwp:_=^", "L<8WEy8FqLHV", "5QBXAcjv7n4q", "MO29]k9OJ_V^", "EB2H86:2sZ<H"},
	{"A[<K=cpTcG^T", "NgWGR8kI:43Y", "dfePKIVA18FH", "iiSRemCOD8OG", "z=3bDObI8TGF", "KX?ZBB^X4Hds", "RWbV?tpJtK77", "FV>O1P908B@x"},
}

// crowd returns n texts that want much the same places in one of cedar-go's sets.
func crowd(n int) (texts []string) {
	heads := []string{""}
	for _, row := range alike {
		var longer []string
		for _, h := range heads {
			for _, s := range row {
				longer = append(longer, h+s)
			}
		}
		heads = longer
	}
	for _, h := range heads {
		for c := '0'; c <= 'z' && len(texts) < n; c++ {
			texts = append(texts, h+string(c))
		}
	}
	return texts
}

// TestChosenSets: a request whose texts are chosen to make sets slow is refused; it would take an
// evaluation seconds. As many others aren't, nor copies of one.
func TestChosenSets(t *testing.T) {
	s, err := LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(`@id("a") permit (principal, action == Palyra::Action::"tool.execute", resource) when { !context.args.contains("x") };`)}})
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	decide := func(args []string) Decision {
		return s.Decide(Request{Principal: LocalUser("u"), Action: ToolExecute, Resource: Tool("process.run"), Context: Context{Args: args}})
	}
	if d := decide(crowd(n)); d.Effect != Deny || d.Reason != ReasonBadRequest || len(d.Errors) != 1 || !strings.Contains(d.Errors[0], "context.args") {
		t.Errorf("chosen: %s %s %.200q", d.Effect, d.Reason, d.Errors)
	}
	var files []string
	for i := range n {
		files = append(files, fmt.Sprintf("src/module%d/file%d.go", i%100, i))
	}
	for name, args := range map[string][]string{
		"files":  files,
		"copies": slices.Repeat([]string{"-v"}, n),
		"few":    crowd(uncrowded),
	} {
		if d := decide(args); d.Effect != Allow {
			t.Errorf("%s: %s %s %.200q", name, d.Effect, d.Reason, d.Errors)
		}
	}
}

// TestChosenSetsAreLookedAt: each list of a context is looked at.
func TestChosenSetsAreLookedAt(t *testing.T) {
	texts := crowd(5000)
	c := reflect.ValueOf(new(Context)).Elem()
	lists := 0
	var look func(path string, v reflect.Value)
	look = func(path string, v reflect.Value) {
		switch {
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				look(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case v.Type() == reflect.TypeFor[[]string]() && v.CanSet():
			lists++
			v.Set(reflect.ValueOf(texts))
			if err := (&given{Context: c.Addr().Interface().(*Context)}).checkSets(); err == nil {
				t.Errorf("%s isn't looked at", path)
			}
			v.SetZero()
		}
	}
	look("context", c)
	if lists < 8 {
		t.Errorf("%d lists", lists)
	}
}
