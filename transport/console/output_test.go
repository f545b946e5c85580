package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// wrote are Outputs that are there already.
type wrote struct {
	parts []hub.OutputPart
	open  *int
}

func (w *wrote) Next(context.Context) (p hub.OutputPart, err error) {
	if len(w.parts) == 0 {
		return p, io.EOF
	}
	p, w.parts = w.parts[0], w.parts[1:]
	return p, nil
}

func (w *wrote) Close() error {
	*w.open--
	return nil
}

// TestRunPage: a run's page has the steps around the one under way, with the end of what that has
// written, which stays text; the others are a click away.
func TestRunPage(t *testing.T) {
	r := hub.Run{ID: "run_1", State: hub.RunInProgress}
	for i := range 70 {
		s := hub.StepResult{Index: i, Tool: fmt.Sprintf("tool-%d.", i), State: hub.StepPending}
		switch {
		case i < 40:
			s.State, s.Outcome = hub.StepDone, "executed"
			s.Stdout = hub.Output{Size: 9000, Text: "begins"}
			s.Stderr = hub.Output{Size: 2, Base64: []byte("\xff\x00")}
		case i == 40:
			s.State = hub.StepRunning
		}
		r.Steps = append(r.Steps, s)
	}
	open := 0
	var asked []hub.OutputQuery
	answers := func(parts ...hub.OutputPart) hub.Entry {
		return hub.ReadOutput.By(func(_ context.Context, _ hub.Caller, q hub.OutputQuery) (hub.Outputs, error) {
			asked = append(asked, q)
			open++
			return &wrote{parts, &open}, nil
		})
	}
	end := strings.Repeat("é\n", tail/3)
	h := hub.NewTable(hub.GetRun.By(func(context.Context, hub.Caller, string) (hub.Run, error) { return r, nil }),
		answer(hub.ListApprovals, hub.Page[hub.Approval]{}, nil),
		answers(hub.OutputPart{Step: 40, Stream: "stdout", From: 1 << 20, Text: "<b>\u202e" + end}, hub.OutputPart{Step: 40, Stream: "stdout", From: 1<<20 + int64(len(end)) + 6, Text: "newest"},
			hub.OutputPart{Step: 40, Stream: "stderr", Text: "</pre><h1>pwned"}, hub.OutputPart{Step: 41, Stream: "stdout", Text: "of the next"}))
	get := func(at string, texts ...string) string {
		t.Helper()
		w, err := visit(t, h, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if open != 0 {
			t.Errorf("%s: %d readers are left", at, open)
		}
		has(t, w.Body.String(), texts...)
		return w.Body.String()
	}
	page := get("runs/run_1", "tool-32.", "tool-63.", "-tool-31.", "-tool-64.", "Steps 0 to 31", "Steps 64 to 69", `data-at="/console/runs/run_1/output/40?part"`, "newest</pre>",
		"Output, the end of 1.0 MiB", "&lt;/pre&gt;&lt;h1&gt;pwned", "-of the next", "the beginning of 8.8 KiB", `href="/console/runs/run_1/output/39/stdout"`, "⟦ff⟧")
	if n := strings.Count(page, "é"); n > tail/3 || n < tail/3-3 {
		t.Errorf("%d of %d characters of the end", n, tail/3)
	}
	if want := (hub.OutputQuery{Run: "run_1", Step: 40, Tail: tail, Until: hub.UntilNow}); len(asked) != 1 || asked[0] != want {
		t.Errorf("asked %+v, want %+v", asked, want)
	}
	get("runs/run_1?from=5", "tool-0.", "tool-31.", "-tool-32.", "Steps 32 to 63", "-data-at")
	get("runs/run_1?from=69", "tool-69.", "-tool-63.")
	get("runs/run_1?from=70", "tool-40.")
	get("runs/run_1/output/40", `data-at="/console/runs/run_1/output/40?part"`, "newest</pre>", `href="/console/runs/run_1/output/40/stderr"`)
	get("runs/run_1/output/39", "-data-at", "executed")
	get("runs/run_1/output/40?part", "newest</pre>", "-tool-40.")
	for _, at := range []string{"runs/run_1/output/70", "runs/run_1/output/-1", "runs/run_1/output/x", "runs/run_1/output/1/stdin", "runs/run_1/output/x/stdout"} {
		if _, err := visit(t, h, at, nil); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", at, err)
		}
	}
	r.State = hub.RunWaitingApproval
	get("runs/run_1", "-data-at")
	r.State = hub.RunInProgress
	h[hub.ReadOutput.Operation] = answer(hub.ReadOutput, hub.Outputs(nil), fault.New(fault.Busy, "too_many", "x", nil))
	get("runs/run_1", "tool-40.", "can’t be read now")
}

// TestOutputFile: a stream as a file has that stream of that step alone; what breaks off doesn't look
// whole.
func TestOutputFile(t *testing.T) {
	c, err := New(Config{Door: struct{ hub.Door }{}})
	if err != nil {
		t.Fatal(err)
	}
	open, held := 0, 0
	var q hub.OutputQuery
	parts := []hub.OutputPart{{Step: 2, Stream: "stderr", Text: "one "}, {Step: 2, Stream: "stderr", From: 4, Base64: []byte("\xff")}, {Step: 3, Stream: "stderr", Text: "next"}}
	h := hub.NewTable(hub.ReadOutput.By(func(_ context.Context, _ hub.Caller, in hub.OutputQuery) (hub.Outputs, error) {
		q = in
		open++
		return &wrote{parts, &open}, nil
	}))
	get := func(ctx context.Context) *httptest.ResponseRecorder {
		t.Helper()
		w := httptest.NewRecorder()
		v := &behind.Visitor{Hub: h, Stay: func() (context.Context, http.ResponseWriter, func(), error) {
			held++
			return ctx, w, func() { held-- }, nil
		}}
		if err := c.Page(w, httptest.NewRequest(http.MethodGet, root+"runs/run_1/output/2/stderr", nil), v); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := get(t.Context())
	if got := w.Body.String(); got != "one \xff" || !strings.HasPrefix(w.Header().Get("Content-Disposition"), "attachment;") || q.Stdout == 0 || q.Stderr != 0 || q.Step != 2 {
		t.Errorf("%q, %v, asked %+v", got, w.Header(), q)
	}
	h[hub.ReadOutput.Operation] = hub.ReadOutput.By(func(context.Context, hub.Caller, hub.OutputQuery) (hub.Outputs, error) {
		open++
		return &broken{wrote{parts[:1], &open}}, nil
	})
	func() {
		defer func() {
			if e := recover(); e != http.ErrAbortHandler {
				t.Errorf("it ended with %v", e)
			}
		}()
		get(t.Context())
	}()
	if open != 0 || held != 0 {
		t.Errorf("%d readers and %d places are left", open, held)
	}
}

// broken are Outputs that break off.
type broken struct{ wrote }

func (b *broken) Next(ctx context.Context) (hub.OutputPart, error) {
	if len(b.parts) == 0 {
		return hub.OutputPart{}, fault.New(fault.Unavailable, "io_error", "read output", nil)
	}
	return b.wrote.Next(ctx)
}
