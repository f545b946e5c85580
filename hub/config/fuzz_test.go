package config

import (
	"errors"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// FuzzParse: no file makes Parse panic, take what a floor or the listener's rule
// forbids, or give an error without problems.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", example, "profile = \"worker-enabled\"\n[policy]\ndir = \"/p\"\n", "[listen]\nhttp = \"0.0.0.0:1\"\n",
		"x = '''\n[a]\n'''\n[limits]\nqueue = 0x10\n", "workspaces = { a = { path = \"/srv\", read_only = false } }\n", "[[a]]\n", "\"listen\".\"http\" = \"off\"\n",
		"[limits]\nbody = 1979-05-27T07:32:00Z\n", "a = [1,\n[2],\n\"]\"]\n", "\xff\xfe", "[models.a]\nprovider = \"openai\"\nurl = \"https://a.example/v1\"\nkey = \"vault://global/a\"\n", "[workspaces.\"a.b\"]\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		c, err := Parse("/etc/palyra/palyrad.toml", []byte(src), base)
		if err != nil {
			ps, ok := errors.AsType[Problems](err)
			if c != nil || !ok || len(ps) == 0 || fault.ReasonOf(err) == "" {
				t.Fatalf("error %v with %v", err, c)
			}
			for _, p := range ps {
				if p.Text == "" || p.Line < 0 || p.Line > strings.Count(src, "\n")+1 {
					t.Fatalf("problem %+v", p)
				}
			}
			return
		}
		for _, fl := range Floors() {
			if fl.Applies(c.Profile) && !fl.holds(c) {
				t.Fatalf("taken below the floor of %s", fl.Key)
			}
		}
		if c.HTTPBeyondLoopback() && (!c.TLS() || c.Listen.HTTPAuth != "token" || c.Limits.RequestsPerSecond == 0) {
			t.Fatal("taken: an open listener")
		}
		for name, w := range c.Workspaces {
			if !ownNames.MatchString(name) || w.Path == "/" || beneath(c.State.Dir, w.Path) {
				t.Fatalf("taken: workspace %q at %q", name, w.Path)
			}
		}
		for name, m := range c.Models {
			if m.Key != "" && !strings.HasPrefix(strings.ToLower(m.URL), "https:") || m.Provider == "" {
				t.Fatalf("taken: model %q, %+v", name, m)
			}
		}
		if reload, restart := c.Diff(c); len(reload)+len(restart) != 0 {
			t.Fatalf("differs from itself: %v %v", reload, restart)
		}
	})
}
