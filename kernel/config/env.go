package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// variables applies PALYRA_SECTION_KEY. One that names no key is a problem: a
// typing error must not leave a setting as it was.
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
			p.problems = append(p.problems, Problem{Reason: "config_unknown_key", Text: "variable " + clip(name) + " names no key", Fix: fix})
			continue
		}
		if err := set(reflect.ValueOf(p.c).Elem().FieldByIndex(k.index), k, value); err != nil {
			p.problems = append(p.problems, Problem{Reason: "config_bad_value", Key: k.Name, Text: fmt.Sprintf("from %s: %v", name, err)})
			continue
		}
		p.c.source[k.Name] = "env"
	}
}

// clients are the variables that belong to palyra, the command line: an
// operator's shell may have them when palyrad is started from it.
var clients = []string{"PALYRA_SOCKET", "PALYRA_TOKEN", "PALYRA_URL"}

func foreign(name string) bool {
	return slices.Contains(clients, name) || strings.HasPrefix(name, "PALYRA_TEST_")
}

// resolve fills in the places that depend on who starts palyrad and how.
func (c *Config) resolve(env []string) {
	get := func(name string) string {
		for _, e := range slices.Backward(env) {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				// systemd lists several directories with colons between them.
				if v, _, _ = strings.Cut(v, ":"); filepath.IsAbs(v) {
					return filepath.Clean(v)
				}
			}
		}
		return ""
	}
	if c.State.Dir == "" {
		switch {
		case get("STATE_DIRECTORY") != "":
			c.State.Dir = get("STATE_DIRECTORY")
		case get("XDG_STATE_HOME") != "":
			c.State.Dir = filepath.Join(get("XDG_STATE_HOME"), "palyra")
		case get("HOME") != "":
			c.State.Dir = filepath.Join(get("HOME"), ".local", "state", "palyra")
		}
	}
	if c.Listen.Socket == "" {
		switch {
		case get("RUNTIME_DIRECTORY") != "":
			c.Listen.Socket = filepath.Join(get("RUNTIME_DIRECTORY"), "palyrad.sock")
		case get("XDG_RUNTIME_DIR") != "":
			c.Listen.Socket = filepath.Join(get("XDG_RUNTIME_DIR"), "palyra", "palyrad.sock")
		case c.State.Dir != "":
			c.Listen.Socket = filepath.Join(c.State.Dir, "palyrad.sock")
		}
	}
}
