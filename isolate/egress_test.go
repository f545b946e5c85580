package isolate_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/isolate"
	"palyra/isolate/tier"
)

func TestCheckEgress(t *testing.T) {
	some := func(addresses ...string) *isolate.Egress { return &isolate.Egress{Addresses: addresses, Sockets: 1} }
	many := func(n int) *isolate.Egress {
		var a []string
		for i := range n {
			a = append(a, "192.0.2."+strconv.Itoa(i))
		}
		slices.Sort(a)
		return some(a...)
	}
	for name, c := range map[string]struct {
		tier    tier.Tier
		network string
		egress  *isolate.Egress
		want    string // in the error; "" for none
	}{
		"none":               {tier.C, isolate.NetworkLoopback, nil, ""},
		"names alone":        {tier.C, isolate.NetworkEgress, some(), ""},
		"addresses":          {tier.C, isolate.NetworkEgress, some("10.0.0.1", "192.0.2.7", "2001:db8::1"), ""},
		"most":               {tier.C, isolate.NetworkEgress, many(isolate.MaxEgressAddresses), ""},
		"too many":           {tier.C, isolate.NetworkEgress, many(isolate.MaxEgressAddresses + 1), "65 addresses"},
		"nothing":            {tier.C, isolate.NetworkEgress, nil, "without its sockets"},
		"another network":    {tier.C, isolate.NetworkLoopback, some(), "has no egress"},
		"tier B":             {tier.B, isolate.NetworkEgress, some(), "has no network"},
		"no sockets":         {tier.C, isolate.NetworkEgress, &isolate.Egress{}, "0 sockets"},
		"too many sockets":   {tier.C, isolate.NetworkEgress, &isolate.Egress{Sockets: isolate.MaxEgressSockets + 1}, "257 sockets"},
		"unsorted":           {tier.C, isolate.NetworkEgress, some("192.0.2.7", "10.0.0.1"), "not sorted"},
		"twice":              {tier.C, isolate.NetworkEgress, some("192.0.2.7", "192.0.2.7"), "given twice"},
		"a name":             {tier.C, isolate.NetworkEgress, some("example.org"), "canonical"},
		"another spelling":   {tier.C, isolate.NetworkEgress, some("2001:DB8::1"), "canonical"},
		"mapped":             {tier.C, isolate.NetworkEgress, some("::ffff:192.0.2.7"), "canonical"},
		"zone":               {tier.C, isolate.NetworkEgress, some("fe80::1%lo"), "canonical"},
		"a network":          {tier.C, isolate.NetworkEgress, some("10.0.0.0/8"), "canonical"},
		"loopback":           {tier.C, isolate.NetworkEgress, some("127.0.0.1"), "program's own"},
		"loopback of IPv6":   {tier.C, isolate.NetworkEgress, some("::1"), "program's own"},
		"unspecified":        {tier.C, isolate.NetworkEgress, some("0.0.0.0"), "no single host"},
		"multicast":          {tier.C, isolate.NetworkEgress, some("224.0.0.1"), "no single host"},
		"broadcast":          {tier.C, isolate.NetworkEgress, some("255.255.255.255"), "no single host"},
		"link local":         {tier.C, isolate.NetworkEgress, some("fe80::1"), "without an interface"},
		"stands for names":   {tier.C, isolate.NetworkEgress, some("198.19.0.1"), "stand for names"},
		"stands for names 6": {tier.C, isolate.NetworkEgress, some("fd70:616c:7972::1"), "stand for names"},
	} {
		err := isolate.CheckEgress(c.tier, c.network, c.egress)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if isolate.HasNetwork(tier.B, isolate.NetworkEgress) || !isolate.HasNetwork(tier.C, isolate.NetworkEgress) || !isolate.Connects(isolate.NetworkEgress) {
		t.Error("the network is tier C's, and programs make sockets in it")
	}
}
