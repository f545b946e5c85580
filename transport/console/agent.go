package console

import (
	"crypto/rand"
	"slices"

	"palyra/hub"
)

// agent is the form that has a model work on a prompt, what turns took today, and the project
// instructions that the visitor has accepted.
func (t *turn) agent() error {
	m, err := ask(t, hub.ListModels, hub.None{})
	if err != nil {
		return err
	}
	m.Items = slices.DeleteFunc(m.Items, func(one hub.Model) bool { return one.Kind == hub.ModelEmbeddings })
	u, err := ask(t, hub.GetUsage, hub.UsageQuery{Days: 1})
	if err != nil {
		return err
	}
	i, err := ask(t, hub.ListInstructions, hub.None{})
	if err != nil {
		return err
	}
	return t.showStill("agent", "Agent", struct {
		Session, Key string
		Models       []hub.Model
		Usage        hub.Usage
		Accepted     []hub.Instructions
	}{t.r.URL.Query().Get("session"), rand.Text(), m.Items, u, i.Items})
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
