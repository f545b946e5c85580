package console

import "palyra/hub"

// hosts shows what the newest calls may reach, reached and were denied, by session.
func (t *turn) hosts() error {
	q := hub.ReachQuery{Session: t.r.URL.Query().Get("session")}
	r, err := ask(t, hub.GetReach, q)
	if err != nil {
		return err
	}
	return t.still("hosts", "Hosts", struct {
		hub.Reach
		Session string
	}{r, q.Session})
}
