package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/internal/fault"
)

func TestParseRule(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"packages.example", "packages.example:443"},
		{"packages.example:443", "packages.example:443"},
		{"Packages.EXAMPLE.:8443", "packages.example:8443"},
		{"*.cdn.example", "*.cdn.example:443"},
		{"*.CDN.example.:80", "*.cdn.example:80"},
		{"xn--bcher-kva.example", "xn--bcher-kva.example:443"},
		{"_acme.a-b.example:1", "_acme.a-b.example:1"},
		{"registry:5000", "registry:5000"},
		{"192.0.2.7", "192.0.2.7:443"},
		{"192.0.2.7:65535", "192.0.2.7:65535"},
		{"192.0.2.7/32:22", "192.0.2.7:22"},
		{"10.1.0.0/16:5432", "10.1.0.0/16:5432"},
		{"10.0.0.0/8", "10.0.0.0/8:443"},
		{"[2001:db8::1]", "[2001:db8::1]:443"},
		{"[2001:DB8:0:0::1]:53", "[2001:db8::1]:53"},
		{"[2001:db8::1/128]:53", "[2001:db8::1]:53"},
		{"[fd00::/8]:443", "[fd00::/8]:443"},
		{"198.16.0.0/13:443", "198.16.0.0/13:443"},
		{"[fc00::/16]", "[fc00::/16]:443"},
	} {
		r, err := ParseRule(c.text)
		if err != nil || r.String() != c.want {
			t.Errorf("ParseRule(%q) = %q, %v, want %q", c.text, r, err, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, c := range []struct{ text, why string }{
		{"", "no name"},
		{".", "no name"},
		{":443", "no name"},
		{"packages.example:", "no port"},
		{"packages.example:0", "1 to 65535"},
		{"packages.example:65536", "1 to 65535"},
		{"packages.example:0443", "1 to 65535"},
		{"packages.example:+443", "1 to 65535"},
		{"packages.example: 443", "1 to 65535"},
		{"packages.example:https", "1 to 65535"},
		{"packages.example:1-65535", "1 to 65535"},
		{"packages.example:*", "1 to 65535"},
		{"https://packages.example", "not a URL"},
		{"packages.example/path", "no network"},
		{"*", "whole labels"},
		{"*:443", "whole labels"},
		{"a.*.example", "whole labels"},
		{"*a.example", "whole labels"},
		{"**.cdn.example", "whole labels"},
		{"*.example", "two labels"},
		{"*.com.:443", "two labels"},
		{"*.", "no name"},
		{"*..example", "empty label"},
		{"*.192.0.2.7", "a number"},
		{".cdn.example", "empty label"},
		{"a..example", "empty label"},
		{"a.example..", "empty label"},
		{"-a.example", "'-'"},
		{"a-.example", "'-'"},
		{long + "a.example", "at most 63"},
		{strings.Repeat(long+".", 4) + "example", "at most 253"},
		{"localhost:8080", "the cell itself"},
		{"a.LOCALHOST.", "the cell itself"},
		{"*.a.localhost", "the cell itself"},
		{"2001:db8::1", "in brackets"},
		{"2001:db8::1:443", "in brackets"},
		{"[2001:db8::1", "no ']'"},
		{"[2001:db8::1]443", "after ']'"},
		{"[2001:db8::1]:", "no port"},
		{"[2001:db8::1]:443:443", "after ']'"},
		{"[packages.example]:443", "no IPv6 address"},
		{"[192.0.2.7]:443", "no IPv6 address"},
		{"[::ffff:192.0.2.7]:443", "as IPv4: 192.0.2.7"},
		{"[::ffff:c000:207]:443", "as IPv4: 192.0.2.7"},
		{"[fe80::1%eth0]:443", "no zone"},
		{"[fe80::1%25eth0]:443", "no zone"},
		{"10.1.2.3/16", "write 10.1.0.0/16"},
		{"10.1/16", "no network"},
		{"010.0.0.0/8", "no network"},
		{"10.0.0.0/08", "no network"},
		{"10.0.0.0/33", "no network"},
		{"0.0.0.0/0", "at least 8"},
		{"[::/0]", "at least 8"},
		{"[10.0.0.0/8]", "stands in brackets"},
		{"10.0.0.0/8]", "no network"},
		{"[::ffff:10.0.0.0/104]:443", "stands as IPv4"},
		{"[fe80::%eth0/64]", "no network"},
		{"198.18.0.1:53", "addresses in a cell"},
		{"198.18.0.0/15:443", "addresses in a cell"},
		{"[fd70:616c:7972::1]:443", "addresses in a cell"},
		{"[fd70:616c:7972::/64]:443", "addresses in a cell"},
		// Entries that anthropic-experimental/sandbox-runtime leaves whole (test/sandbox/domain-pattern.test.ts).
		{"packages.example:443.allowed.example", "1 to 65535"},
		{"packages.example:99999999", "1 to 65535"},
		{"packages.example:80:443", "in brackets"},
		{"*:22", "whole labels"},
		{"[::1]junk", "after ']'"},
		{"fd00:ec2::254", "in brackets"},
		{"user@packages.example", "a user"},
		{"user:pass@packages.example:443", "in brackets"},
		{"packages.example\r\nHost: a", "1 to 65535"},
		{"packages.example\r\n", `'\r'`},
		{" packages.example", `' '`},
		{"packages.example\x00", "NUL"},
		{"bücher.example", "xn--"},
		{"packages。example", "xn--"},
	} {
		r, err := ParseRule(c.text)
		if err == nil || !strings.Contains(errors.Unwrap(err).Error(), c.why) || r != (Rule{}) {
			t.Errorf("ParseRule(%q) = %q, %v, want %q", c.text, r, err, c.why)
		}
		if err != nil && (fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "invalid_input" || fault.HintOf(err) == "") {
			t.Errorf("ParseRule(%q): %v has kind %v, reason %q, hint %q", c.text, err, fault.KindOf(err), fault.ReasonOf(err), fault.HintOf(err))
		}
	}
}

// TestName has the spellings in which a name that isn't allowed can look allowed to one of two
// parsers (ATTACKS 91). Sources: the SOCKS5 host with NUL of anthropic-experimental/sandbox-runtime
// (fixed in 2.1.89); hosts of curl's tests/libtest/lib1560.c; the URL standard's host parsing; inet_aton(3).
func TestName(t *testing.T) {
	for _, c := range []struct{ text, want, why string }{
		{"packages.example", "packages.example", ""},
		{"PACKAGES.example", "packages.example", ""},
		{"packages.example.", "packages.example", ""},
		{"0x7f.example", "0x7f.example", ""},
		{"1.2.3.4.example", "1.2.3.4.example", ""},
		{"0xg", "0xg", ""},
		{"localhost", "localhost", ""},
		{"evil.example\x00.packages.example", "", "NUL"},
		{"\x00", "", "NUL"},
		{"packages.example..", "", "empty label"},
		{"evil.example@packages.example", "", "a user"},
		{"packages.example:443", "", "in brackets"},
		{"packages.example#.evil.example", "", `'#'`},
		{"packages.example\\.evil.example", "", `'\\'`},
		{"packages.example/", "", `'/'`},
		{"packages.example?x", "", `'?'`},
		{"packages.example\t", "", `'\t'`},
		{"packages.example\n", "", `'\n'`},
		{"packages%2eexample", "", "nothing is decoded"},
		{"fe80::1%eth0", "", "in brackets"},
		{"%66%6fo.example", "", "nothing is decoded"},
		{"ⓟackages.example", "", "xn--"},
		{"packages.example\xff", "", "xn--"},
		{"faß.example", "", "xn--"},
		{"192.0.2.7", "", "a number"},
		{"192.0.2.7.", "", "a number"},
		{"192.0.2.07", "", "a number"},
		{"3221225991", "", "a number"},
		{"0xc0000207", "", "a number"},
		{"0XC0.0.0x2.7", "", "a number"},
		{"0300.0.2.7", "", "a number"},
		{"192.519", "", "a number"},
		{"192.0.519", "", "a number"},
		{"1.2.3.4.5", "", "a number"},
		{"256.0.0.1", "", "a number"},
		{"packages.0x", "", "a number"},
		{"packages.example.1", "", "a number"},
		{"99999999999999999999", "", "a number"},
		{"::1", "", "in brackets"},
		{"[::1]", "", `'['`},
	} {
		n, err := Name(c.text)
		if n != c.want || (err == nil) != (c.why == "") || err != nil && !strings.Contains(errors.Unwrap(err).Error(), c.why) {
			t.Errorf("Name(%q) = %q, %v, want %q, %q", c.text, n, err, c.want, c.why)
		}
	}
}

func TestHost(t *testing.T) {
	for _, c := range []struct{ text, name, addr string }{
		{"Packages.example.", "packages.example", ""},
		{"192.0.2.7", "", "192.0.2.7"},
		{"[2001:db8::1]", "", "2001:db8::1"},
		{"[::]", "", "::"},
	} {
		n, a, err := Host(c.text)
		if err != nil || n != c.name || a.IsValid() != (c.addr != "") || a.IsValid() && a.String() != c.addr {
			t.Errorf("Host(%q) = %q, %v, %v", c.text, n, a, err)
		}
	}
	for _, text := range []string{"", "192.0.2.7.", "192.0.2.007", "0xc0000207", "2001:db8::1", "[2001:db8::1", "[2001:db8::1]]", "[::1%lo]", "[::ffff:192.0.2.7]", "[v1.x]", "[]"} {
		if n, a, err := Host(text); err == nil || n != "" || a.IsValid() {
			t.Errorf("Host(%q) = %q, %v, %v, want an error", text, n, a, err)
		}
	}
}

func TestRules(t *testing.T) {
	texts := []string{"packages.example", "Packages.example:443", "packages.example:80", "*.cdn.example:8443",
		"192.0.2.7:22", "10.1.0.0/16:5432", "[2001:db8::1]:443", "[2001:db8::1]:80", "[fd00::/8]:5432"}
	rs, err := ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"*.cdn.example:8443", "10.1.0.0/16:5432", "192.0.2.7:22", "[2001:db8::1]:443", "[2001:db8::1]:80",
		"[fd00::/8]:5432", "packages.example:443", "packages.example:80"}
	if got := rs.Strings(); !slices.Equal(got, want) {
		t.Errorf("Strings() = %q, want %q", got, want)
	}
	if again, err := ParseCanonical(want); err != nil || !slices.Equal(again.Strings(), want) {
		t.Errorf("ParseCanonical(Strings()) = %q, %v", again.Strings(), err)
	}
	for _, c := range []struct {
		name string
		port uint16
		want bool
	}{
		{"packages.example", 443, true},
		{"packages.example", 80, true},
		{"packages.example", 8443, false},
		{"Packages.example", 443, false}, // not canonical
		{"packages.example.", 443, false},
		{"a.packages.example", 443, false},
		{"xpackages.example", 443, false},
		{"a.cdn.example", 8443, true},
		{"a.b.cdn.example", 8443, true},
		{"cdn.example", 8443, false},
		{"acdn.example", 8443, false}, // no label boundary
		{".cdn.example", 8443, false},
		{"a.cdn.example.evil.example", 8443, false},
		{"192.0.2.7", 22, false}, // an address is no name
		{"", 443, false},
		{"", 0, false},
	} {
		if got := rs.Allows(c.name, c.port); got != c.want {
			t.Errorf("Allows(%q, %d) = %v, want %v", c.name, c.port, got, c.want)
		}
	}
	if got := rs.Ports("packages.example"); !slices.Equal(got, []uint16{80, 443}) {
		t.Errorf("Ports = %v", got)
	}
	if got := rs.Ports("evil.example"); len(got) != 0 {
		t.Errorf("Ports of a name without rule = %v", got)
	}
	for _, c := range []struct {
		addr string
		port uint16
		want bool
	}{
		{"192.0.2.7", 22, true},
		{"::ffff:192.0.2.7", 22, true},
		{"192.0.2.7", 443, false},
		{"192.0.2.8", 22, false},
		{"10.1.255.255", 5432, true},
		{"10.1.255.255", 443, false},
		{"10.2.0.0", 5432, false},
		{"2001:db8::1", 80, true},
		{"2001:db8::1", 81, false},
		{"fd00::7", 5432, true},
		{"fd00::7%eth0", 5432, false},
		{"fd70:616c:7972::7", 5432, false}, // a cell's own
	} {
		if got := rs.Network(netip.MustParseAddr(c.addr), c.port); got != c.want {
			t.Errorf("Network(%s, %d) = %v, want %v", c.addr, c.port, got, c.want)
		}
	}
	if rs.Network(netip.Addr{}, 443) {
		t.Error("the zero address is in a network")
	}
	if got := fmt.Sprint(rs.Addresses()); got != "[192.0.2.7 2001:db8::1]" {
		t.Errorf("Addresses() = %s", got)
	}
}

// TestZero: rules that name nothing allow nothing.
func TestZero(t *testing.T) {
	var zero Rules
	if !zero.Empty() || zero.Strings() == nil || len(zero.Strings()) != 0 || zero.Allows("", 0) || zero.Allows("packages.example", 443) ||
		zero.Network(netip.MustParseAddr("192.0.2.7"), 443) || zero.Ports("") != nil || (Rule{}).String() != "" {
		t.Error("the zero Rules allow something")
	}
	if rs, err := ParseCanonical([]string{}); err != nil || !rs.Empty() {
		t.Errorf("ParseCanonical of none = %v, %v", rs.Strings(), err)
	}
	if zr := (Rules{all: []Rule{{}}}); zr.Allows("", 0) || zr.Network(netip.Addr{}, 0) {
		t.Error("the zero Rule allows something")
	}
}

func TestBounds(t *testing.T) {
	texts := make([]string, MaxRules)
	for i := range texts {
		texts[i] = fmt.Sprintf("h%d.example:443", i)
	}
	if _, err := ParseRules(texts); err != nil {
		t.Error(err)
	}
	if _, err := ParseRules(append(texts, "more.example")); fault.KindOf(err) != fault.Usage {
		t.Errorf("%d rules: %v", MaxRules+1, err)
	}
	for _, texts := range [][]string{{"b.example:443", "a.example:443"}, {"a.example:443", "a.example:443"}, {"a.example"}, {"A.example:443"}} {
		if _, err := ParseCanonical(texts); err == nil {
			t.Errorf("ParseCanonical(%q) takes it", texts)
		}
	}
}

// aton reads what inet_aton(3) reads: one to four parts, each decimal, octal or hexadecimal.
func aton(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var n uint64
	for i, p := range parts {
		base := 10
		switch {
		case strings.HasPrefix(strings.ToLower(p), "0x"):
			p, base = p[2:], 16
		case len(p) > 1 && p[0] == '0':
			base = 8
		}
		v, err := strconv.ParseUint(p, base, 32)
		most := uint64(255)
		if i == len(parts)-1 {
			most = 1<<(8*(5-len(parts))) - 1
		}
		if err != nil || v > most || strings.ContainsAny(p, "+-_") {
			return netip.Addr{}, false
		}
		if i == len(parts)-1 {
			n = n<<(8*(5-len(parts))) | v
		} else {
			n = n<<8 | v
		}
	}
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), true
}

// sameAsNetip holds Host to two readers of addresses that aren't ours: what net/netip reads is
// that address or refused, and what inet_aton reads is never a name.
func sameAsNetip(t *testing.T, text string) {
	t.Helper()
	n, a, err := Host(text)
	if err != nil {
		return
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	theirs, theirErr := netip.ParseAddr(inner)
	if a.IsValid() && (theirErr != nil || theirs != a) {
		t.Errorf("Host(%q) = %v, net/netip says %v, %v", text, a, theirs, theirErr)
	}
	old, ok := aton(strings.TrimSuffix(text, "."))
	if n != "" && (theirErr == nil || ok) {
		t.Errorf("Host(%q) is the name %q; net/netip reads %v, inet_aton %v", text, n, theirs, old)
	}
	if a.Is4() && (!ok || old != a) {
		t.Errorf("Host(%q) = %v; inet_aton reads %v", text, a, old)
	}
}

// TestAddresses compares spellings of IPv4 addresses made of every form of each part.
func TestAddresses(t *testing.T) {
	forms := []string{"%d", "0%o", "%#x", "%#X", "%03d", "0x%02x"}
	var texts []string
	for _, a := range []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")} {
		b := a.As4()
		whole := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		for _, f := range forms {
			texts = append(texts, fmt.Sprintf(f, whole), fmt.Sprintf(f+"."+f, b[0], whole&0xffffff), fmt.Sprintf(f+"."+f+"."+f, b[0], b[1], whole&0xffff))
			for _, g := range forms {
				texts = append(texts, fmt.Sprintf(f+"."+g+"."+f+"."+g, b[0], b[1], b[2], b[3]))
			}
		}
	}
	read := 0
	for _, text := range texts {
		sameAsNetip(t, text)
		sameAsNetip(t, text+".")
		if _, ok := aton(text); ok {
			read++
		}
	}
	if read < len(texts)/2 {
		t.Errorf("inet_aton reads %d of %d spellings; the comparison compares little", read, len(texts))
	}
}

func FuzzRule(f *testing.F) {
	for _, s := range []string{"packages.example", "*.cdn.example:8443", "192.0.2.7:22", "[2001:db8::1]:443", "10.1.0.0/16:5432",
		"[fd00::/16]:443", "a.example rate:10/s", "a.example time:90s sent:1KiB open:1 connections:2 received:7", "a.example:443 rate:0/s", "0x7f.1", "[::ffff:192.0.2.7]:1", "a@b", "\x00", "x:0", "[", "]:", "*."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sameAsNetip(t, text)
		if n, err := Name(text); err == nil {
			if again, err := Name(n); err != nil || again != n {
				t.Errorf("Name(%q) = %q, which is %q, %v", text, n, again, err)
			}
			if strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || len(n) > maxName {
				t.Errorf("Name(%q) = %q", text, n)
			}
		}
		r, err := ParseRule(text)
		if err != nil {
			if r != (Rule{}) {
				t.Errorf("ParseRule(%q) = %v with %v", text, r, err)
			}
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again != r {
			t.Fatalf("ParseRule(%q) = %q, which is %q, %v", text, r, again, err)
		}
		rs, err := ParseCanonical([]string{r.String()})
		if err != nil {
			t.Fatal(err)
		}
		name, below := r.Name()
		for _, n := range []string{name, "x." + name, "x" + name, name + ".x", name + "."} {
			want := name != "" && (!below && n == name || below && n == "x."+name)
			if got := rs.Allows(n, r.Port()); got != want {
				t.Errorf("%q allows %q: %v, want %v", r, n, got, want)
			}
		}
		if p := r.Prefix(); p.IsValid() != (name == "") || p.IsValid() && (!rs.Network(p.Addr(), r.Port()) && !Inside6.Contains(p.Addr()) && !Inside4.Contains(p.Addr()) || rs.Network(p.Addr(), r.Port()^1)) {
			t.Errorf("%q: prefix %v", r, p)
		}
	})
}
