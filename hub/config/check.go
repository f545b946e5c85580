package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"palyra/call/egress"
	"palyra/call/egress/target"
)

// check holds a resolved Config to the demands of its keys on each other and to the floors
// of its profile.
func (c *Config) check() []Problem {
	var ps []Problem
	add := func(key, fix, format string, args ...any) {
		ps = append(ps, Problem{Key: key, Line: c.line(key), Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	for _, p := range c.paths() {
		switch {
		case p.value == "" && p.needed:
			add(p.key, "give an absolute path", "has no value, and neither XDG nor systemd variables give one")
		case p.value != "" && (!filepath.IsAbs(p.value) || filepath.Clean(p.value) != p.value):
			add(p.key, "give an absolute path without . and ..", "is no clean absolute path")
		}
	}
	if len(c.Listen.Socket) > maxSocketPath {
		add("listen.socket", "", "is longer than %d bytes, which the kernel takes", maxSocketPath)
	}
	if len(ps) == 0 {
		ps = append(ps, c.checkWorkspaces()...)
		for _, p := range []pathKey{{"vault.identity", c.Vault.Identity, false}, {"keys.identity", c.Keys.Identity, false}} {
			if p.value != "" && beneath(p.value, c.State.Dir) {
				add(p.key, "keep it elsewhere: a copy of state.dir would open itself", "lies in state.dir")
			}
		}
	}
	if c.Notify.URL != "" {
		if _, err := target.Parse(c.Notify.URL); err != nil || len(c.Notify.URL) > maxURL {
			add("notify.url", "https://HOST/PATH, without user, password and fragment", "is no URL that http.fetch takes")
		}
	}
	if c.Notify.Secret != "" && (!strings.HasPrefix(c.Notify.Secret, "vault://") || !strings.HasPrefix(c.Notify.URL, "https://")) {
		add("notify.secret", "secret = \"vault://global/NAME\" and an https URL", "is no reference, or would not go over https")
	}
	if rule := c.Notify.Network; rule != "" {
		if r, err := egress.ParseRule(rule); err != nil || !r.Prefix().IsValid() {
			add("notify.network", "such as 10.1.0.0/16:443", "is no network with a port")
		}
	}
	ps = append(ps, c.checkListener()...)
	ps = append(ps, c.checkModels()...)
	for _, f := range Floors() {
		if f.Applies(c.Profile) && !f.holds(c) {
			add(f.Key, f.Fix, "profile %s wants %s: %s", c.Profile, f.Want, f.Why)
		}
	}
	return ps
}

// maxURL is the longest that http.fetch takes.
const maxURL = 2048

// maxSocketPath is the size of sun_path without its terminating zero (unix(7)).
const maxSocketPath = 107

type pathKey struct {
	key, value string
	needed     bool
}

func (c *Config) paths() []pathKey {
	ps := []pathKey{{"state.dir", c.State.Dir, true}, {"listen.socket", c.Listen.Socket, true}, {"policy.dir", c.Policy.Dir, false},
		{"cell.path", c.Cell.Path, false}, {"cell.starter", c.Cell.Starter, false}, {"tools.program", c.Tools.Program, false}, {"vault.identity", c.Vault.Identity, false}, {"keys.identity", c.Keys.Identity, false},
		{"listen.tls_cert", c.Listen.TLSCert, false}, {"listen.tls_key", c.Listen.TLSKey, false}}
	for _, name := range slices.Sorted(maps.Keys(c.Workspaces)) {
		ps = append(ps, pathKey{"workspaces." + name + ".path", c.Workspaces[name].Path, true})
	}
	return ps
}

// secrets are the files that no program may read. Their modes don't keep it from that: a cell that
// a user started has that user.
func (c *Config) secrets() (ps []pathKey) {
	for _, p := range []pathKey{{"vault.identity", c.Vault.Identity, false}, {"keys.identity", c.Keys.Identity, false}, {"listen.tls_key", c.Listen.TLSKey, false}} {
		if p.value != "" {
			ps = append(ps, p)
		}
	}
	return ps
}

// systemTrees can't be workspaces: they belong to the kernel or the host.
var systemTrees = []string{"/proc", "/sys", "/dev", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run/systemd"}

func (c *Config) checkWorkspaces() (ps []Problem) {
	for _, name := range slices.Sorted(maps.Keys(c.Workspaces)) {
		key, at := "workspaces."+name+".path", c.Workspaces[name].Path
		bad := func(format string, args ...any) {
			ps = append(ps, Problem{Key: key, Line: c.line(key), Text: fmt.Sprintf(format, args...),
				Fix: "give tools a directory of their own"})
		}
		if at == "/" {
			bad("is the whole host")
			continue
		}
		for _, t := range systemTrees {
			if beneath(at, t) {
				bad("lies in %s, which belongs to the host", t)
			}
		}
		for _, own := range []pathKey{{"state.dir", c.State.Dir, true}, {"policy.dir", c.Policy.Dir, false}, {"cell.path", c.Cell.Path, false},
			{"tools.program", c.Tools.Program, false}} {
			if own.value != "" && (beneath(at, own.value) || beneath(own.value, at)) {
				bad("overlaps %s: a tool could change what decides about it, or confines it", own.key)
			}
		}
		for _, own := range c.secrets() {
			if beneath(own.value, at) {
				bad("overlaps %s: a tool could read it", own.key)
			}
		}
		if c.path != "" && beneath(c.path, at) {
			bad("holds this configuration: a tool could change what decides about it")
		}
		ps = append(ps, c.checkDeclared(name)...)
	}
	return ps
}

// The bounds of what a workspace declares, as the kernel has them.
const (
	maxMounts = 16
	maxCaches = 8
	maxEnv    = 256
)

var (
	cacheNames = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	variables  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}=`)
)

// checkDeclared checks what calls in a workspace have. The kernel refuses more when a call is
// made: folders that are gone or that a cell can't show, and variables.
func (c *Config) checkDeclared(name string) (ps []Problem) {
	w := c.Workspaces[name]
	list := func(leaf string, l List, most int, check func(string) string) {
		key := "workspaces." + name + "." + leaf
		bad := func(format string, args ...any) {
			ps = append(ps, Problem{Key: key, Line: c.line(key), Text: fmt.Sprintf(format, args...),
				Fix: "palyra config explain workspaces." + ownName + "." + leaf})
		}
		if len(l) > most {
			bad("has %d elements, at most %d", len(l), most)
		}
		for i, s := range l {
			if slices.Contains(l[:i], s) {
				bad("has element %d twice", i+1)
			} else if text := check(s); text != "" {
				bad("element %d %s", i+1, text)
			}
		}
	}
	folder := func(at string) string {
		switch {
		case !filepath.IsAbs(at) || filepath.Clean(at) != at:
			return "is no clean absolute path"
		case at == "/":
			return "is the whole host"
		}
		return ""
	}
	list("mounts", w.Mounts, maxMounts, func(at string) string {
		for _, own := range []pathKey{{"state.dir", c.State.Dir, true}, {"workspaces." + name + ".path", w.Path, true}} {
			if own.value != "" && (beneath(at, own.value) || beneath(own.value, at)) {
				return "overlaps " + own.key
			}
		}
		for _, own := range c.secrets() {
			if beneath(own.value, at) {
				return "overlaps " + own.key
			}
		}
		return folder(at)
	})
	list("caches", w.Caches, maxCaches, func(s string) string {
		if !cacheNames.MatchString(s) {
			return "is no name for a cache: 1 to 32 of a-z, 0-9 and -, not - first"
		}
		return ""
	})
	list("programs", w.Programs, maxMounts, func(at string) string {
		if strings.ContainsAny(at, ":") {
			return "has a colon, which PATH can't hold"
		}
		return folder(at)
	})
	names := make(map[string]bool)
	list("env", w.Env, maxEnv, func(s string) string {
		v, _, _ := strings.Cut(s, "=")
		switch {
		case !variables.MatchString(s):
			return "is not NAME=VALUE"
		case v == "PATH":
			return "sets PATH, which programs does"
		case names[v]:
			return "sets a variable again"
		}
		names[v] = true
		return ""
	})
	return ps
}

// beneath reports whether path is dir or lies in it, as text.
func beneath(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// HTTPOff is the value of listen.http, peer.listen and pairing.listen that makes no listener.
const HTTPOff = "off"

// checkListener refuses a listener beyond loopback that lacks a protection, and names the
// missing ones.
func (c *Config) checkListener() (ps []Problem) {
	add := func(key, fix, format string, args ...any) {
		ps = append(ps, Problem{Key: key, Line: c.line(key), Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	if at := c.Peer.Listen; at != HTTPOff {
		switch addr, err := netip.ParseAddrPort(at); {
		case err != nil:
			add("peer.listen", `write "0.0.0.0:7444", an address of this host and a port, or "off"`, "is no numeric address with a port")
		case !addr.Addr().Unmap().IsLoopback() && c.Limits.RequestsPerSecond == 0:
			add("peer.listen", "set limits.requests_per_second", "reaches beyond loopback and lacks a rate limit (limits.requests_per_second)")
		}
	}
	if c.Pairing.Listen != HTTPOff {
		if _, err := netip.ParseAddrPort(c.Pairing.Listen); err != nil {
			add("pairing.listen", `write "0.0.0.0:7445", "[::]:7445", an address of this host, or "off"`, "is no numeric address with a port")
		}
	}
	l := c.Listen
	if (l.TLSCert == "") != (l.TLSKey == "") {
		add("listen.tls_cert", "set both or neither", "and listen.tls_key belong together")
	}
	if l.HTTP == HTTPOff {
		return ps
	}
	addr, err := netip.ParseAddrPort(l.HTTP)
	if err != nil {
		add("listen.http", `write "127.0.0.1:7142", "[::1]:7142" or "off"`, "is no numeric address with a port")
		return ps
	}
	if addr.Addr().Unmap().IsLoopback() {
		return ps
	}
	var missing []string
	if l.TLSCert == "" || l.TLSKey == "" {
		missing = append(missing, "TLS (listen.tls_cert, listen.tls_key)")
	}
	if l.HTTPAuth != "token" {
		missing = append(missing, `authentication (listen.http_auth = "token")`)
	}
	if c.Limits.RequestsPerSecond == 0 {
		missing = append(missing, "a rate limit (limits.requests_per_second)")
	}
	if len(missing) > 0 {
		add("listen.http", "listen on 127.0.0.1, or add what is missing", "reaches beyond loopback and lacks %s", strings.Join(missing, ", "))
	}
	return ps
}

// HTTPBeyondLoopback reports whether other hosts can reach the HTTP listener.
func (c *Config) HTTPBeyondLoopback() bool {
	addr, err := netip.ParseAddrPort(c.Listen.HTTP)
	return err == nil && !addr.Addr().Unmap().IsLoopback()
}

// TLS reports whether the HTTP listener speaks TLS.
func (c *Config) TLS() bool { return c.Listen.TLSCert != "" }
