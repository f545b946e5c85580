package console

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"

	"palyra/hub"
	"palyra/internal/fault"
)

// tail bounds what a page shows of a running step's stream, in bytes. A file has all.
const tail = 16 << 10

// stream is what a page shows of what a step wrote.
type stream struct {
	Name, Title string
	Text        string
	Size        int64 // of all there is
	End         bool  // Text is the end, else the beginning
	Lost        string
	File        string // where all is
}

// Cut reports whether there's more than Text.
func (s stream) Cut() bool { return s.Size > int64(len(s.Text)) }

// streams returns the two of a step.
func streams(run string, step int) [2]stream {
	at := fmt.Sprintf("%sruns/%s/output/%d", root, run, step)
	return [2]stream{{Name: "stdout", Title: "Output", File: at + "/stdout"}, {Name: "stderr", Title: "Error output", File: at + "/stderr"}}
}

// recorded returns what a result has of what its step wrote.
func recorded(run string, s *hub.StepResult) [2]stream {
	out := streams(run, s.Index)
	for i, o := range []*hub.Output{&s.Stdout, &s.Stderr} {
		out[i].Text, out[i].Size, out[i].Lost = o.Text, o.Size, o.LostWhy
		if o.Base64 != nil {
			out[i].Text = string(o.Base64)
		}
	}
	return out
}

// newest returns the end of what a step has written. Nil: the visitor may not read it, or too many
// read at once.
func (t *turn) newest(run string, step int) (*[2]stream, error) {
	all, err := ask(t, hub.ReadOutput, hub.OutputQuery{Run: run, Step: step, Tail: tail, Until: hub.UntilNow})
	if k := fault.KindOf(err); k == fault.Denied || k == fault.Busy {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer all.Close()
	out := streams(run, step)
	for range 8 { // a program may write as fast as this reads
		p, err := all.Next(t.ctx)
		if errors.Is(err, io.EOF) || err == nil && p.Step != step {
			break
		} else if err != nil {
			return nil, err
		}
		s := &out[0]
		if p.Stream != s.Name {
			s = &out[1]
		}
		b := p.Bytes()
		s.Text = end(s.Text+string(b), tail)
		s.End, s.Size, s.Lost = true, p.From+int64(len(b)), p.Lost
	}
	return &out, nil
}

// end returns at most n bytes of the end of s, in whole characters.
func end(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for i := 0; i < utf8.UTFMax && i < len(s); i++ {
		if utf8.RuneStart(s[i]) {
			return s[i:]
		}
	}
	return s
}

// step is one of a run on a page.
type step struct {
	hub.StepResult
	Run     string
	Runs    bool       // its program runs
	Streams *[2]stream // nil: not to be had
	Said    *hub.Said  // by a model in a step that is over; nil: it's no turn of one
}

// Model reports whether the step is a turn of a model.
func (s *step) Model() bool { return s.Tool == hub.ToolModel }

// say has the page show a model's words in place of its output.
func (s *step) say() {
	if s.Streams == nil {
		return
	}
	said := hub.SaidIn(s.Streams[0].Text)
	if s.Runs {
		s.Streams[0].Text = said.Text
		return
	}
	s.Said = &said
}

// running reports whether the program of a run's step runs.
func running(r *hub.Run, i int) bool {
	return r.State == hub.RunInProgress && r.Steps[i].State == hub.StepRunning
}

// output shows the end of what a step wrote, while it runs and afterwards. A script asks for that
// alone, often: to read a run with all its steps takes a while.
func (t *turn) output() error {
	n, err := strconv.Atoi(t.words[3])
	if err != nil || n < 0 {
		return fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	s := &step{StepResult: hub.StepResult{Index: n}, Run: t.words[1]}
	if t.r.URL.Query().Has("said") {
		s.Tool, s.Runs = hub.ToolModel, true
	}
	if !t.r.URL.Query().Has("part") {
		r, err := ask(t, hub.GetRun, s.Run)
		if err != nil {
			return err
		}
		if n >= len(r.Steps) {
			return fault.New(fault.NotFound, "not_found", "find page", nil)
		}
		s.StepResult, s.Runs = r.Steps[n], running(&r, n)
	}
	if s.Streams, err = t.newest(s.Run, n); err != nil {
		return err
	}
	if s.Model() && s.Runs {
		s.say()
	}
	return t.show("output", "Output", s)
}

// file is all that a step has written to a stream.
func (t *turn) file() error {
	const all = 1 << 62 // bytes to pass over
	n, err := strconv.Atoi(t.words[3])
	q := hub.OutputQuery{Run: t.words[1], Step: n, Until: hub.UntilNow}
	name := t.words[4]
	switch {
	case err == nil && name == "stdout" && t.v.Stay != nil:
		q.Stderr = all
	case err == nil && name == "stderr" && t.v.Stay != nil:
		q.Stdout = all
	default:
		return fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	ctx, w, leave, err := t.v.Stay()
	if err != nil {
		return err
	}
	defer leave()
	out, err := ask(t, hub.ReadOutput, q)
	if err != nil {
		return err
	}
	defer out.Close()
	p, err := out.Next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	secure(w)
	h := w.Header()
	h.Set("Content-Type", hub.MediaBytes)
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", fmt.Sprintf("palyra-%s-%d.txt", name, n)))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	if t.r.Method == http.MethodHead {
		return nil
	}
	for ; err == nil && p.Step == n; p, err = out.Next(ctx) {
		if _, err = w.Write(p.Bytes()); err != nil {
			break
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler) // it must not look whole
	}
	return nil
}
