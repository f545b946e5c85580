package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"palyra/hub/place"
)

// variables applies PALYRA_SECTION_KEY. A variable that names no key is a problem: a typing
// error must not leave a setting unchanged.
func (p *parser) variables(env []string) {
	byEnv := make(map[string]Key)
	var names []string
	for _, k := range Keys() {
		if k.Env != "" {
			byEnv[k.Env] = k
			names = append(names, k.Env)
		}
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "PALYRA_") || foreign(name) {
			continue
		}
		k, ok := byEnv[name]
		if !ok {
			fix := ""
			if n := nearest(name, names); n != "" {
				fix = fmt.Sprintf("did you mean %s?", n)
			}
			p.problems = append(p.problems, Problem{Text: "variable " + clip(name) + " names no key", Fix: fix})
			continue
		}
		if err := set(reflect.ValueOf(p.c).Elem().FieldByIndex(k.index), k, value); err != nil {
			p.problems = append(p.problems, Problem{Key: k.Name, Text: fmt.Sprintf("from %s: %v", name, err), Fix: valueFix(k)})
			continue
		}
		p.c.source[k.Name] = "env"
	}
}

// clients are the variables of palyra, the command line: an operator's shell may have them
// when it starts palyrad.
var clients = []string{"PALYRA_SOCKET", "PALYRA_TOKEN", "PALYRA_URL"}

func foreign(name string) bool {
	return slices.Contains(clients, name) || strings.HasPrefix(name, "PALYRA_TEST_")
}

// resolve fills in the places that depend on who starts palyrad and how.
func (c *Config) resolve(env []string) {
	get := func(name string) string {
		for _, e := range slices.Backward(env) {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
	if c.State.Dir == "" {
		c.State.Dir = place.StateDir(get)
	}
	if places := place.Sockets(get, c.State.Dir); c.Listen.Socket == "" && len(places) > 0 {
		c.Listen.Socket = places[0]
	}
}
