package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"palyra/conformance/world"
)

// newValue is a secret that attack/spend_linux.go knows how to look for.
func newValue() string { return "battery-" + rand.Text() }

// vaulted has the state directory of the stage's user hold the battery's secret in a vault.
func (s *stage) vaulted() error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.vaults[s.user.state] {
		return nil
	}
	file, err := s.file("value", s.b.value, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	key := s.user.state + ".key"
	for _, args := range [][]string{{"vault", "init", "--state", s.user.state, "--key", key},
		{"vault", "set", "--no-daemon", "--state", s.user.state, "--policy", s.user.policy, "--file", file, "vault://global/battery"}} {
		c := exec.Command(s.b.palyra, args...)
		c.Dir, c.Env = s.dir, []string{"PATH=/usr/bin:/bin", "HOME=" + s.user.home}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential()}
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("palyra %s: %w: %s", strings.Join(args[:2], " "), err, out)
		}
	}
	if s.b.vaults == nil {
		s.b.vaults = make(map[string]bool)
	}
	s.b.vaults[s.user.state] = true
	return nil
}

// own is the host that the secret is for, other another. The world's certificate is good for both.
func (h *hosts) own() string   { return h.suffix }
func (h *hosts) other() string { return h.s.nonce + "-else.cdn.example" }

// secretly is a scene whose program has the secret outside, and a placeholder inside. use is the
// rest of a use behind the reference.
func (h *hosts) secretly(probe, use string, words ...string) (scene, error) {
	attack, err := h.s.b.spender()
	if err != nil {
		return scene{}, err
	}
	h.w.Want(h.s.b.value)
	h.w.Set(h.own(), world.Addrs(world.Web))
	h.w.Set(h.other(), world.Addrs(evil))
	args := append([]string{"host=" + hexed(h.own()), "other=" + hexed(h.other())}, words...)
	o := options{attack: attack, uses: []string{"TOKEN=vault://global/battery header:authorization " + use}, egress: []string{h.own() + ":443"}}
	if h.s.inside {
		args = append(args, "inside=1")
		if err = h.s.vaulted(); err != nil {
			return scene{}, err
		}
	} else {
		o.hostEnv = []string{"TOKEN=" + h.s.b.value}
	}
	return scene{probe: probe, args: args, opt: o}, nil
}

// strayed is the canary of the secret: it came out, or the world got it where it doesn't belong.
// The request that the use names doesn't count.
func (h *hosts) strayed(belongs func(q world.Request) bool) func(*outcome) (bool, string) {
	value := h.s.b.value
	forms := []string{value, base64.StdEncoding.EncodeToString([]byte(value)), hex.EncodeToString([]byte(value))}
	return func(o *outcome) (bool, string) {
		if slices.ContainsFunc(forms, o.contains) {
			return true, "the secret came out"
		}
		var at string
		stray := h.s.seen(func() bool {
			for _, q := range h.w.Requests() {
				if strings.Contains(q.Host, h.s.nonce) && strings.Contains(q.Authorization+q.Path+q.Query+q.Body, value) && !belongs(q) {
					at = q.Method + " " + q.Host + q.Path
					return true
				}
			}
			return slices.ContainsFunc(h.w.Queries(""), func(q world.Query) bool {
				return strings.Contains(q.Name, h.s.nonce) && strings.Contains(strings.ToLower(q.Name), strings.ToLower(value))
			})
		})
		return stray, "the world got it: " + at
	}
}

// valueCases are 130: the secret itself, which the program's requests have and it doesn't.
func valueCases() []attackCase {
	t := reachTable{number: 130, name: "placeholder-value"}
	for _, v := range []struct {
		how, attack string
		says        []string
		words       []string
	}{
		{"echo", "have the host say the secret back, in a header and in a body, and print it", []string{tripped}, nil},
		{"echo-1", "… over HTTP/1.1", []string{tripped}, []string{"h1=1"}},
		{"environ", "look for the secret that requests get in the environment of every process", []string{"NOTFOUND"}, nil},
		{"memory", "… in their memory", []string{"NOTFOUND"}, nil},
		{"memory-1", "… having asked over HTTP/1.1", []string{"NOTFOUND"}, []string{"h1=1"}},
	} {
		how, _, _ := strings.Cut(v.how, "-")
		t.add(v.how, v.attack, "", v.says, func(h *hosts) (scene, error) {
			sc, err := h.secretly("reveal", h.own()+"/private", append([]string{"how=" + how}, v.words...)...)
			sc.canary = leaked(h.s.b.value)
			return sc, err
		})
	}
	return t.out
}

// elsewhereCases are 131: what the program has is brought elsewhere than to the place in requests
// of the one host that it's for.
func elsewhereCases() []attackCase {
	t := reachTable{number: 131, name: "placeholder-elsewhere"}
	for _, v := range []struct {
		how, attack, note string
		says              []string
		use               string // behind the host; "/private" where empty
		methods           string
		inspect, plain    bool // of the other host
		words             []string
	}{
		{how: "host", attack: "bring what stands for a secret to another host, which is inspected", inspect: true, says: []string{tripped}},
		{how: "plain", attack: "… in the clear", plain: true, says: []string{tripped}},
		{how: "header", attack: "… to its host in another header", use: "/echo", says: []string{tripped}},
		{how: "cookie", attack: "… in a cookie", use: "/echo", says: []string{tripped}},
		{how: "agent", attack: "… as the program's name", use: "/echo", says: []string{tripped}},
		{how: "part", attack: "… as a part of a word", says: []string{tripped}},
		{how: "path", attack: "… in a path", says: []string{tripped}},
		{how: "query", attack: "… in a query", says: []string{tripped}},
		{how: "query-1", attack: "… over HTTP/1.1", words: []string{"h1=1"}, says: []string{tripped}},
		{how: "body", attack: "… in a body", says: []string{tripped}},
		{how: "body-1", attack: "… over HTTP/1.1", words: []string{"h1=1"}, says: []string{tripped}},
		{how: "split", attack: "… in two pieces of a body", says: []string{tripped}},
		{how: "split-1", attack: "… over HTTP/1.1", words: []string{"h1=1"}, says: []string{tripped}},
		{how: "method", attack: "… with another method than the use's", methods: "GET ", says: []string{tripped}},
		{how: "else", attack: "… for another path", says: []string{tripped}},
		{how: "dns", attack: "… in a name that is looked up", says: []string{tripped}},
		{how: "output", attack: "… in the output", says: []string{tripped}},
		{how: "errors", attack: "… in the standard error", says: []string{tripped}},
		{how: "base64", attack: "… in base64", says: []string{tripped}},
		{how: "hex", attack: "… in hexadecimal", says: []string{tripped}},
	} {
		how, _, _ := strings.Cut(v.how, "-")
		t.add(v.how, v.attack, v.note, v.says, func(h *hosts) (scene, error) {
			use := v.use
			if use == "" {
				use = "/private"
			}
			sc, err := h.secretly("spend", v.methods+h.own()+use, append([]string{"how=" + how}, v.words...)...)
			switch {
			case v.inspect:
				sc.opt.inspect = []string{h.other()}
			case v.plain:
				sc.opt.egress = append(sc.opt.egress, h.other()+":80")
			}
			sc.canary = h.strayed(func(world.Request) bool { return false })
			return sc, err
		})
	}
	t.add("through", "… to another host over a connection that isn't inspected", "OPEN: the placeholder went there, where it's worth nothing", []string{"OPEN"}, func(h *hosts) (scene, error) {
		sc, err := h.secretly("spend", h.own()+"/private", "how=host")
		sc.opt.egress = append(sc.opt.egress, h.other()+":443")
		sc.canary = h.strayed(func(world.Request) bool { return false })
		return sc, err
	})
	t.add("replay", "use in a call what an earlier one had", "HTTP401: it's no call's any more, and the host gets it as it is", []string{"HTTP401"}, func(h *hosts) (scene, error) {
		sc, err := h.secretly("spend", h.own()+"/private", "how=replay")
		if err != nil {
			return scene{}, err
		}
		ws, err := h.s.workspace()
		if err != nil {
			return scene{}, err
		}
		first := sc
		first.probe, first.opt.workspace = "keep", ws
		if h.s.inside {
			first.opt.uses = []string{first.opt.uses[0] + " keep"}
		}
		o, err := h.s.start(first)
		if err == nil {
			if _, serr := os.Stat(filepath.Join(ws, "kept")); serr != nil {
				err = errors.New("the earlier call kept nothing: " + string(o.stderr.kept))
			}
		}
		sc.canary = h.strayed(func(world.Request) bool { return false })
		return sc, err
	})
	return t.out
}
