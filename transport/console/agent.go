package console

import (
	"crypto/rand"
	"slices"

	"palyra/hub"
)

// agent is the form that has a model work on a prompt.
func (t *turn) agent() error {
	m, err := ask(t, hub.ListModels, hub.None{})
	if err != nil {
		return err
	}
	m.Items = slices.DeleteFunc(m.Items, func(one hub.Model) bool { return one.Kind == hub.ModelEmbeddings })
	return t.still("agent", "Agent", struct {
		Session, Key string
		Models       []hub.Model
	}{t.r.URL.Query().Get("session"), rand.Text(), m.Items})
}

// askAgent begins a run of an agent, whose page says how it goes on. A form that is sent twice
// begins one.
func (t *turn) askAgent() error {
	f := t.v.Form
	n := hub.NewRun{Session: f.Get("session"), Staged: f.Has("staged"), IdempotencyKey: "console-" + f.Get("key"),
		Agent: &hub.Agent{Prompt: f.Get("prompt"), Model: f.Get("model")}}
	if n.Session == "" {
		s, err := ask(t, hub.CreateSession, hub.NewSession{Title: "agent in the console"})
		if err != nil {
			return err
		}
		n.Session = s.ID
	}
	return t.began(ask(t, hub.StartRun, n))
}
