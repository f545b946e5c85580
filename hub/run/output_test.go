package run

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// output opens a reader of a run's output.
func (h *house) output(q hub.OutputQuery) *OutputReader {
	h.t.Helper()
	r, err := h.Output(q, func(ctx context.Context, d canon.Digest) (io.ReadSeekCloser, error) {
		f, _, err := h.st.OpenArtifact(ctx, d)
		return f, err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { r.Close() })
	return r
}

// reads reads parts until want bytes of the streams together, or to the end if want is
// negative, and checks that each follows the one before.
func reads(t *testing.T, r *OutputReader, want int) (out [2]string, steps []int) {
	t.Helper()
	at, step := r.at, r.step
	for want < 0 || len(out[0])+len(out[1]) < want {
		p, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) && want < 0 {
			return out, steps
		}
		if err != nil {
			t.Fatalf("after %d and %d bytes: %v", len(out[0]), len(out[1]), err)
		}
		if len(steps) == 0 || steps[len(steps)-1] != p.Step {
			if p.Step != step {
				at = [2]int64{}
			}
			steps, step = append(steps, p.Step), p.Step
		}
		i := 0
		if p.Stream == "stderr" {
			i = 1
		}
		if p.From != at[i] || len(p.Bytes()) == 0 || len(p.Bytes()) > partSize || p.Lost != "" {
			t.Fatalf("part %+v at %d", p, at[i])
		}
		at[i] += int64(len(p.Bytes()))
		out[i] += string(p.Bytes())
	}
	return out, steps
}

// TestLiveOutput: a reader sees what a program has written while it runs, on from any byte,
// and the same when it has ended.
func TestLiveOutput(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps("feed", "print {\"Bytes\":3}")})
	r := h.output(hub.OutputQuery{Run: id})
	whole := [2]string{}
	feed := func(stdout, stderr string) {
		h.g.feed <- [2]string{stdout, stderr}
		whole[0] += stdout
		whole[1] += stderr
	}
	feed("one\n", "")
	if got, _ := reads(t, r, 4); got[0] != "one\n" {
		t.Fatalf("%q", got)
	}
	if ev := h.until(id, hub.EventStepOutput); string(ev.Data) != `{"step":0}` {
		t.Errorf("%s", ev.Data)
	}
	// A character comes whole.
	feed("gr\xc3", "warn")
	if got, _ := reads(t, r, 6); got != [2]string{"gr", "warn"} {
		t.Errorf("%q", got)
	}
	feed("\xbc\xc3\x9fe\n", "")
	if got, _ := reads(t, r, 6); got[0] != "\u00fc\u00dfe\n" {
		t.Errorf("%q", got)
	}
	tail := func(n uint64, want ...string) {
		t.Helper()
		r := h.output(hub.OutputQuery{Run: id, Tail: n, Until: hub.UntilNow})
		for i, w := range want {
			if p, err := r.Next(t.Context()); err != nil || string(p.Bytes()) != w || p.From != int64(len(whole[i])-len(w)) {
				t.Errorf("the last %d bytes: %+v, %v, want %.20q", n, p, err, w)
			}
		}
	}
	tail(5, "\u00dfe\n", "warn") // not the half of a character
	tail(1<<20, whole[0], whole[1])
	// Much more goes to the artifact, and is read from there.
	for range 40 {
		feed(strings.Repeat("0123456789abcdef", 512), strings.Repeat("e\x00", 1024))
	}
	n := len(whole[0]) + len(whole[1])
	late := h.output(hub.OutputQuery{Run: id})
	if got, _ := reads(t, late, n); got != whole {
		t.Errorf("from the beginning: %d and %d bytes of %d and %d", len(got[0]), len(got[1]), len(whole[0]), len(whole[1]))
	}
	for _, from := range []uint64{1, hub.MaxInline - 1, hub.MaxInline, hub.MaxInline + 1, uint64(len(whole[0])) - 1} {
		part := h.output(hub.OutputQuery{Run: id, Stdout: from, Stderr: uint64(len(whole[1])), Until: hub.UntilNow})
		if got, _ := reads(t, part, -1); got[0] != whole[0][from:] || got[1] != "" {
			t.Errorf("from byte %d: %d bytes of %d, %d", from, len(got[0]), len(whole[0])-int(from), len(got[1]))
		}
	}
	tail(1000, whole[0][len(whole[0])-1000:], whole[1][len(whole[1])-1000:])
	// A reader that waits costs the program nothing, and hears of the end.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := late.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a ctx that is done: %v", err)
	}
	go close(h.g.feed)
	if got, steps := reads(t, late, -1); got != [2]string{"\u00e9x", "done\xff"} || len(steps) != 1 || steps[0] != 1 {
		t.Errorf("the second step: %q of %v", got, steps)
	}
	run := h.ended(id)
	if o := run.Steps[0].Stdout; o.Size != int64(len(whole[0])) || o.Artifact != canon.Sum([]byte(whole[0])) {
		t.Errorf("%+v", o)
	}
	tail(1000, whole[0][len(whole[0])-1000:], whole[1][len(whole[1])-1000:])
	got, all := reads(t, h.output(hub.OutputQuery{Run: id}), -1)
	if want := [2]string{whole[0] + "\u00e9x", whole[1] + "done\xff"}; got != want || len(all) != 2 {
		t.Errorf("afterwards: %d and %d bytes of %d and %d, steps %v", len(got[0]), len(got[1]), len(want[0]), len(want[1]), all)
	}
	if got, _ := reads(t, h.output(hub.OutputQuery{Run: id, Step: 1, Stdout: 2}), -1); got != [2]string{"x", "done\xff"} {
		t.Errorf("from the middle of step 1: %q", got)
	}
	if got, _ := reads(t, h.output(hub.OutputQuery{Run: id, Step: 2}), -1); got != [2]string{} {
		t.Errorf("from behind the end: %q", got)
	}
	// Without its session the artifact is gone, and the reader is told.
	if err := h.st.Update(t.Context(), func(tx *store.Tx) error { return tx.ReleaseArtifacts(id) }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.st.SweepArtifacts(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := h.output(hub.OutputQuery{Run: id, Stdout: hub.MaxInline, Stderr: uint64(len(whole[1]))})
	if p, err := gone.Next(t.Context()); err != nil || p.Lost != "not_found" || len(p.Bytes()) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if got, _ := reads(t, gone, -1); got != [2]string{"\u00e9x", "done\xff"} {
		t.Errorf("after it: %q", got)
	}
}

// TestOutputReaders: readers of output and of tapes share their places, and one that leaves
// leaves nothing behind.
func TestOutputReaders(t *testing.T) {
	h := open(t, func(c *Config) { c.Readers = 2 })
	id := h.start(Request{Steps: steps("feed")})
	tape, err := h.Tape(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := h.output(hub.OutputQuery{Run: id})
	if _, err := h.Output(hub.OutputQuery{Run: id}, nil); fault.ReasonOf(err) != "too_many" {
		t.Errorf("a third reader: %v", err)
	}
	waits := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, err := r.Next(ctx); waits <- err }()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that was cancelled: %v", err)
	}
	r.Close()
	r.Close()
	tape.Close()
	if n := h.Readers(); n != 0 || len(h.tapes.bells) != 0 {
		t.Errorf("%d readers and %d bells are left", n, len(h.tapes.bells))
	}
	close(h.g.feed)
	h.ended(id)
	if _, err := h.Output(hub.OutputQuery{Run: id, Step: -1}, nil); fault.KindOf(err) != fault.Usage {
		t.Errorf("step -1: %v", err)
	}
}

// TestOutputEnds: a reader that waits for a run which goes on hears that the engine closes.
func TestOutputEnds(t *testing.T) {
	h := open(t, nil)
	r := h.output(hub.OutputQuery{Run: h.start(Request{Steps: steps("hold")})})
	ended := make(chan error)
	go func() { _, err := r.Next(t.Context()); ended <- err }()
	h.stop()
	if err := <-ended; fault.ReasonOf(err) != "not_ready" && !errors.Is(err, io.EOF) && !errors.Is(err, store.ErrClosed) { // the run may have ended first, or the store
		t.Errorf("%v", err)
	}
}

// TestOutputGathers: a program that writes byte by byte makes few parts.
func TestOutputGathers(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps("feed")})
	r, began := h.output(hub.OutputQuery{Run: id}), time.Now()
	const bytes = 1000
	go func() {
		for range bytes {
			h.g.feed <- [2]string{"x", ""}
		}
	}()
	parts := 0
	for n := 0; n < bytes; parts++ {
		p, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += len(p.Bytes())
	}
	if took := time.Since(began); took < time.Duration(parts-1)*gather {
		t.Errorf("%d parts in %v", parts, took)
	}
	close(h.g.feed)
	h.ended(id)
}

// TestLiveOutputLost: a reader is told that the rest isn't kept.
func TestLiveOutputLost(t *testing.T) {
	h := open(t, nil)
	away, dir := filepath.Join(h.dir, "away"), filepath.Join(h.dir, "artifacts")
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Rename(away, dir) })
	id := h.start(Request{Steps: steps("feed")})
	r := h.output(hub.OutputQuery{Run: id})
	text := strings.Repeat("x", hub.MaxInline)
	h.g.feed <- [2]string{text, ""}
	if got, _ := reads(t, r, len(text)); got[0] != text {
		t.Errorf("%d bytes", len(got[0]))
	}
	h.g.feed <- [2]string{"more", ""}
	p, err := r.Next(t.Context())
	if err != nil || p.Lost == "" || len(p.Bytes()) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
	close(h.g.feed)
	if _, err := r.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after it: %v", err)
	}
	if err := h.Wait(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	after := h.output(hub.OutputQuery{Run: id, Stdout: hub.MaxInline})
	if q, err := after.Next(t.Context()); err != nil || q.Lost != p.Lost {
		t.Errorf("afterwards %+v, %v; before %q", q, err, p.Lost)
	}
}
