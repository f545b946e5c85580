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
			p.problems = append(p.problems, Problem{Reason: "config_bad_value", Key: k.Name, Text: fmt.Sprintf("from %s: %v", name, err), Fix: valueFix(k)})
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
				return v
			}
		}
		return ""
	}
	if c.State.Dir == "" {
		c.State.Dir = stateDir(get)
	}
	if places := sockets(get, c.State.Dir); c.Listen.Socket == "" && len(places) > 0 {
		c.Listen.Socket = places[0]
	}
}

// SystemSocket is where the unit in deploy/ puts palyrad's socket.
const SystemSocket = "/run/palyra/palyrad.sock"

// FindSocket returns where a client in this environment finds palyrad: at the first
// of the places where one without configuration would listen that has a socket of
// this user, since palyrad may have been started from another shell; else at
// SystemSocket.
func FindSocket(getenv func(string) string) string {
	for _, s := range sockets(getenv, stateDir(getenv)) {
		if ownSocket(s) {
			return s
		}
	}
	return SystemSocket
}

// stateDir returns where palyrad keeps its state without configuration, "" if the
// environment does not say.
func stateDir(getenv func(string) string) string {
	if dir := directory(getenv, "STATE_DIRECTORY"); dir != "" {
		return dir
	}
	if dir := directory(getenv, "XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "palyra")
	}
	if dir := directory(getenv, "HOME"); dir != "" {
		return filepath.Join(dir, ".local", "state", "palyra")
	}
	return ""
}

// sockets lists where palyrad listens without configuration; it takes the first.
func sockets(getenv func(string) string, state string) (out []string) {
	if dir := directory(getenv, "RUNTIME_DIRECTORY"); dir != "" {
		out = append(out, filepath.Join(dir, socketFile))
	}
	if dir := directory(getenv, "XDG_RUNTIME_DIR"); dir != "" {
		out = append(out, filepath.Join(dir, "palyra", socketFile))
	}
	if state != "" {
		out = append(out, filepath.Join(state, socketFile))
	}
	return out
}

const socketFile = "palyrad.sock"

// directory returns the absolute path that a variable holds, "" if it holds none.
// systemd lists several directories with colons between them; the first counts.
func directory(getenv func(string) string, name string) string {
	dir, _, _ := strings.Cut(getenv(name), ":")
	if !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Clean(dir)
}
