package main

import (
	"runtime/debug"
	"testing"
)

func TestLimitHeap(t *testing.T) {
	was := debug.SetMemoryLimit(8 << 30)
	defer debug.SetMemoryLimit(was)
	for _, c := range []struct {
		memory     int64
		limited    bool
		want, mark int64
	}{
		{4 << 30, false, 8 << 30, 1 << 30},
		{64 << 30, true, 8 << 30, 8 << 30 / 6 * 5}, // GOMEMLIMIT
		{1 << 30, true, 384 << 20, 320 << 20},
		{4 << 30, true, 384 << 20, 320 << 20},
	} {
		mark := limitHeap(c.memory, c.limited)
		if got := debug.SetMemoryLimit(-1); got != c.want || mark != c.mark {
			t.Errorf("%+v: the limit is %d, the mark %d", c, got, mark)
		}
	}
}
