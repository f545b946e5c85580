package console

import "palyra/hub"

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
	over := r.Ended != nil
	return t.show("run", "Run", struct {
		hub.Run
		Over  bool
		Asked *hub.Page[hub.Approval]
	}{r, over, asked})
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
