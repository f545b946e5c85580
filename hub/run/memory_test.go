package run

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/canon"
)

// TestPlansInMemory: a restart reads one plan at a time, and a plan is stored in the
// bytes that are counted, also where encoding/json would spell each with six.
func TestPlansInMemory(t *testing.T) {
	const waiting, size = 16, 256 << 10
	one := func(c *Config) { c.Bounds = session.Bounds{Active: 1} }
	h := open(t, one)
	input := fmt.Sprintf(`{"text":%q}`, strings.Repeat("<", size))
	h.start(Request{Steps: steps("hold")})
	<-h.g.in
	var ids []string
	for range waiting {
		ids = append(ids, h.start(Request{Steps: steps("ok " + input)}))
	}
	for _, id := range ids {
		r, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Run, error) { return tx.Run(id) })
		if err != nil {
			t.Fatal(err)
		}
		p, err := planOf(r)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(len(r.Plan)); n > p.keeps() || n > size+1<<10 {
			t.Fatalf("a plan of %d bytes is stored in %d, counted as %d", size, n, p.keeps())
		}
	}
	h.stop()

	live := func() int64 {
		runtime.GC()
		runtime.GC() // and what pools keep over one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	var most int64
	recovered := 0
	h.reopen(func(c *Config) {
		c.Park = true // none is kept
		c.TestOnlyStep = func(name string) {
			if name == "run:recover" {
				recovered++
				most = max(most, live()-before)
			}
		}
	})
	if recovered != waiting {
		t.Errorf("%d runs of %d were recovered", recovered, waiting)
	}
	if most > 4*size {
		t.Errorf("%d KiB live while runs of %d KiB each are read, one after the other", most>>10, size>>10)
	}
}

// TestOlderSpelling: a plan that an earlier version stored with escapes is read without them, and
// is the same request.
func TestOlderSpelling(t *testing.T) {
	q := Request{User: alice, Steps: steps(`ok {"text":"<&>\u2028 \\u003c \\\u003c \" \u00e9"}`)}
	p, err := q.check()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `"\u003c\u0026\u003e\u2028 \\u003c`) {
		t.Fatalf("it has no escapes: %s", b)
	}
	was, err := planOf(&store.Run{Plan: b})
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"text\":\"<&>\u2028 \\\\u003c \\\\< \\\" \\u00e9\"}"
	if got := string(was.Steps[0].Input); was.Digest != p.Digest || got != want {
		t.Errorf("read %s, want %s", got, want)
	}
}

// TestPlanDigest: it is that of what json.Marshal writes, as idempotency keys of earlier versions
// have it, without a copy of that.
func TestPlanDigest(t *testing.T) {
	edge := strings.Repeat("<", digestPiece-len(`{"a":"`)-1)
	for _, inputs := range [][]string{{`{}`}, {`{"a":"<>&\u2028\u2029é"}`, `{"b":1}`}, {`{"a":"` + edge + "\u2028" + edge + `"}`}, {`{"a":"` + edge + "é\u2029\xff\xff\"}"}} {
		q := Request{Session: "ses_<1>", User: alice, Budget: hub.Budget{Calls: 3}, KeepGoing: true}
		for _, in := range inputs {
			q.Steps = append(q.Steps, hub.Step{Tool: "a<b", Input: json.RawMessage(in)})
		}
		p, err := q.check()
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(struct {
			Session   string
			Steps     []hub.Step
			Budget    hub.Budget
			KeepGoing bool
		}{q.Session, p.Steps, q.Budget, q.KeepGoing})
		if err != nil {
			t.Fatal(err)
		}
		if p.Digest != canon.Sum(b) {
			t.Errorf("%.60s: another digest than of %.200s", inputs[0], b)
		}
	}
	q := Request{User: alice, Steps: []hub.Step{{Tool: "ok", Input: json.RawMessage(`{"a":"` + strings.Repeat("<", MaxInput-16) + `"}`)}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := q.digest(q.Steps); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if most := uint64(MaxInput); after.TotalAlloc-before.TotalAlloc > most {
		t.Errorf("%d KiB are allocated, want at most %d", (after.TotalAlloc-before.TotalAlloc)>>10, most>>10)
	}
}
