package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/agentloop/turn"
	"palyra/call"
	"palyra/hub/store"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// prose makes texts of words that are as frequent as in prose: the n-th in 1/n of all.
func prose(r *rand.Rand) func(words int) string {
	zipf := rand.NewZipf(r, 1.05, 3, 30000)
	return func(words int) string {
		var b strings.Builder
		for range words {
			fmt.Fprintf(&b, "w%d ", zipf.Uint64())
		}
		return b.String()
	}
}

// BenchmarkSearch is a search among 100,000 items of one principal, from the question to the opened
// rows of the eight best: go test -run '^$' -bench Search -benchtime 200x ./hub/memory
func BenchmarkSearch(b *testing.B) {
	const items = 100000
	h := newHome(b, Config{Index: 1 << 30})
	text := prose(rand.New(rand.NewPCG(1, 2)))
	start := time.Now()
	for part := range slices.Chunk(make([]tool.NewMemory, items), 500) {
		for i := range part {
			part[i].Text = text(30)
		}
		h.keep("uid:1", part...)
	}
	b.Logf("%d items were stored in %v", items, time.Since(start))
	start = time.Now()
	h.search("uid:1", "", "w1")
	b.Logf("the index was made in %v, and takes about %d MiB", time.Since(start), h.books["uid:1"].bytes>>20)
	var took []time.Duration
	used := processor()
	for b.Loop() {
		q := text(8)
		start := time.Now()
		if _, err := h.Search(b.Context(), "uid:1", "", q, &toolproto.MemorySearchInput{Limit: 8}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	b.ReportMetric(float64((processor()-used).Microseconds())/float64(len(took)), "cpu-µs/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// processor is the time that this process has had on processors: beside others a wall clock says
// less.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSearchNear is a search among 10,000 items of one principal that have a provider's
// vectors of 1,536 numbers: go test -run '^$' -bench SearchNear -benchtime 200x ./hub/memory
func BenchmarkSearchNear(b *testing.B) {
	const items = 10000
	h := newHome(b, Config{})
	r := rand.New(rand.NewPCG(1, 2))
	text := prose(r)
	vector := func() turn.Vector {
		of := make([]float32, 1536)
		for i := range of {
			of[i] = r.Float32() - 0.5
		}
		return turn.NewVector(of)
	}
	for part := range slices.Chunk(make([]tool.NewMemory, items), 500) {
		e := &Embedded{Model: "m"}
		for i := range part {
			part[i] = tool.NewMemory{Text: text(30), Source: toolproto.SourcePerson, Scope: store.MemoryOfPrincipal, Origins: []string{call.OriginPerson}, Confidence: 100}
			e.Vectors = append(e.Vectors, vector())
		}
		ctx := WithEmbedded(b.Context(), e)
		d, err := h.Draft(ctx, "uid:1", part)
		if err == nil {
			err = h.Keep(ctx, "uid:1", d)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	h.search("uid:1", "", "w1")
	b.Logf("the index was made in %v, and takes about %d MiB", time.Since(start), h.books["uid:1"].bytes>>20)
	var took []time.Duration
	for b.Loop() {
		ctx := WithEmbedded(b.Context(), &Embedded{Model: "m", Vectors: []turn.Vector{vector()}})
		q := text(8)
		start := time.Now()
		if _, err := h.Search(ctx, "uid:1", "", q, &toolproto.MemorySearchInput{Limit: 8}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
