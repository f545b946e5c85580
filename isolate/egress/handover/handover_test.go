package handover

import (
	"net/netip"
	"testing"

	"palyra/call/egress"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", ready, "ready\n", "refused ", "refused a", "refused resource_exhausted", "refused A", "S\x00\x01\x00\x01\x00\x00", "S\x01\x00\x01\x00\x00\xfa", "S\xff\xff\xff\xff\xff\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		switch err := ParseAnswer(b).(type) {
		case nil:
			if string(b) != ready {
				t.Errorf("%q is ready", b)
			}
		case *Refused:
			if s, rerr := refusal(err.Reason); rerr != nil || s != string(b) || len(b) > MaxAnswer {
				t.Errorf("%q is a refusal, and %q (%v) is what it is written as", b, s, rerr)
			}
		}
		for next := 0; next < 600; next += maxFiles {
			h, err := parseHead(b, nil, next)
			if err != nil {
				continue
			}
			if string(h.append(nil)) != string(b) || h.here() < 1 || h.here() > maxFiles || h.first+h.here() > h.all() || h.all() > 1+2*MaxTCP {
				t.Errorf("%q is %+v, with %d of %d sockets", b, h, h.here(), h.all())
			}
		}
	})
}

// TestAddresses holds the constants to each other.
func TestAddresses(t *testing.T) {
	for _, a := range []string{Resolver, Proxy, Names4, Names6} {
		if p := netip.MustParseAddr(a); !egress.Inside4.Contains(p) && !egress.Inside6.Contains(p) {
			t.Errorf("%s leads nowhere", a)
		}
	}
	if first := netip.MustParseAddr(Names4); !netip.MustParseAddr(Resolver).Less(first) || !netip.MustParseAddr(Proxy).Less(first) {
		t.Error("the resolver or the proxy has an address that may stand for a name")
	}
}
