package main

import "runtime/debug"

// limitHeap bounds the heap where a cgroup bounds palyrad: the collector runs more often
// once the heap takes three eighths of that memory, or GOMEMLIMIT if it is less. As much is
// for sealed copies, and a quarter for the kernel's side of connections and files. limitHeap
// returns the mark for [budget.NewMark], five sixths of the limit, and at most a quarter of
// the host's memory where no cgroup bounds palyrad.
func limitHeap(memory int64, limited bool) (mark int64) {
	limit := debug.SetMemoryLimit(-1)
	if most := memory / 8 * 3; limited && limit > most {
		limit = most
		debug.SetMemoryLimit(limit)
	}
	mark = limit / 6 * 5
	if !limited {
		mark = min(mark, memory/4)
	}
	return mark
}
