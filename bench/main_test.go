package main

import (
	"testing"
	"time"
)

func TestRecords(t *testing.T) {
	us := func(v ...int) (out []time.Duration) {
		for _, n := range v {
			out = append(out, time.Duration(n)*time.Microsecond)
		}
		return out
	}
	rs := records([]*variant{
		{name: "bare", took: us(300, 100, 200)},
		{name: "bwrap", took: us(4000, 3000, 5000)},
		{name: "palyra exec, tier c", took: us(1000, 800, 900)},
	}, "/bin/true", 8*time.Millisecond, 3)
	for i, want := range []record{
		{P50: 200, P99: 300, Ratio: 1, Bwrap: 20},
		{P50: 4000, P99: 5000, Ratio: 20, Bwrap: 1},
		{P50: 900, P99: 1000, Ratio: 4.5, Bwrap: 4000.0 / 900},
	} {
		got := rs[i]
		if got.P50 != want.P50 || got.P99 != want.P99 || got.Ratio != want.Ratio || got.Bwrap != want.Bwrap {
			t.Errorf("record %d = %+v, want %+v", i, got, want)
		}
		if got.Pattern != "8ms gap" || got.N != 3 {
			t.Errorf("record %d: pattern %q, n %d", i, got.Pattern, got.N)
		}
	}
}
