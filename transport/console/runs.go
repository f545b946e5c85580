package console

import (
	"strconv"

	"palyra/hub"
)

func (t *turn) runs() error {
	q := hub.RunQuery{PageQuery: t.after(), Session: t.r.URL.Query().Get("session")}
	runs, err := ask(t, hub.ListRuns, q)
	if err != nil {
		return err
	}
	return t.show("runs", "Runs", struct {
		Session string
		hub.Page[hub.Run]
	}{q.Session, runs})
}

func (t *turn) run() error {
	r, err := ask(t, hub.GetRun, t.words[1])
	if err != nil {
		return err
	}
	asked, err := may(t, hub.ListApprovals, hub.ApprovalQuery{Run: r.ID, PageQuery: hub.PageQuery{Limit: listed}})
	if err != nil {
		return err
	}
	data := struct {
		hub.Run
		Over          bool
		Asked         *hub.Page[hub.Approval]
		Shown         []*step
		Before, After *block
	}{Run: r, Over: r.Ended != nil, Asked: asked}
	from, to := t.shown(&r)
	for i := from; i < to; i++ {
		s := &step{StepResult: r.Steps[i], Run: r.ID, Runs: running(&r, i)}
		if s.Runs {
			s.Streams, err = t.newest(r.ID, i)
		} else {
			have := recorded(r.ID, &s.StepResult)
			s.Streams = &have
		}
		if err != nil {
			return err
		}
		if s.Model() {
			s.say()
		}
		data.Shown = append(data.Shown, s)
	}
	if from > 0 {
		data.Before = &block{from - maxShown, from - 1}
	}
	if to < len(r.Steps) {
		data.After = &block{to, min(to+maxShown, len(r.Steps)) - 1}
	}
	return t.show("run", "Run", data)
}

// maxShown bounds the steps on a page.
const maxShown = 32

// block are the steps of a page, by their numbers.
type block struct{ From, To int }

// shown returns which steps of a run the visitor wants to see: those of a block, or else of the one
// that has the newest step.
func (t *turn) shown(r *hub.Run) (from, to int) {
	if n, err := strconv.Atoi(t.r.URL.Query().Get("from")); err == nil && n >= 0 && n < len(r.Steps) {
		from = n
	} else {
		for i := range r.Steps {
			if s := r.Steps[i].State; s != hub.StepPending && s != hub.StepSkipped {
				from = i
			}
		}
	}
	from -= from % maxShown
	return from, min(from+maxShown, len(r.Steps))
}

func (t *turn) cancel() error {
	if _, err := ask(t, hub.CancelRun, t.words[1]); err != nil {
		return err
	}
	return t.see("runs/"+t.words[1], "cancelled")
}

func (t *turn) stop() error {
	if _, err := ask(t, hub.Stop, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		return err
	}
	return t.see("runs", "stopped")
}

func (t *turn) resume() error {
	if _, err := ask(t, hub.Resume, hub.None{}); err != nil {
		return err
	}
	return t.see("runs", "resumed")
}
