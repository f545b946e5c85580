package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/transport/client"
)

// Agents whose models are palyrad's, too: it answers at /v1/, and the scripted provider plays the
// script. palyrad's runs have the results that their models heard.

// home is the name of the folder of agent number i.
func home(i int) string { return fmt.Sprint("home", i) }

// fileOf is the name of the file that an agent with that home writes.
func fileOf(home string) string { return home + ".txt" }

// scripted writes the scripts of those models to dir, and returns their part of the configuration.
func scripted(dir string) (config string, err error) {
	for i, a := range agents {
		if a.model == "" {
			continue
		}
		var turns []object
		for _, s := range a.steps(fileOf(home(i))) {
			turns = append(turns, object{"calls": []object{{"name": s.name(), "input": s.args}}})
		}
		b, err := json.Marshal(object{"turns": append(turns, object{"text": "all done"})})
		if err != nil {
			return "", err
		}
		script := filepath.Join(dir, a.model+".json")
		if err := os.WriteFile(script, b, 0o600); err != nil {
			return "", err
		}
		config += fmt.Sprintf("[models.%s]\nprovider = \"scripted\"\nscript = %q\n", a.model, script)
	}
	return config, nil
}

// tokenOf makes a token for palyrad's /v1/.
func tokenOf(ctx context.Context, socket string) (string, error) {
	h, err := client.New(client.Config{Socket: socket})
	if err != nil {
		return "", err
	}
	defer h.Close()
	t, err := hub.CreateToken.Do(ctx, h, hub.Caller{}, hub.NewToken{Name: "agents", TTL: time.Hour,
		Scopes: []string{"run.start", "session.read", "session.write", "artifact.read", "run.cancel"}})
	return t.Secret, err
}

// heard is what a model at palyrad was told of its calls: the results in the longest of the
// questions that it was asked, as JSON.
func heard(ctx context.Context, socket, model string) (all []string, err error) {
	h, err := client.New(client.Config{Socket: socket})
	if err != nil {
		return nil, err
	}
	defer h.Close()
	runs, err := hub.ListRuns.Do(ctx, h, hub.Caller{}, hub.RunQuery{PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		return nil, err
	}
	for _, r := range runs.Items {
		run, err := hub.GetRun.Do(ctx, h, hub.Caller{}, r.ID)
		if err != nil {
			return nil, err
		}
		var in struct {
			Model   string       `json:"model"`
			Request turn.Request `json:"request"`
		}
		if len(run.Steps) != 1 || run.Steps[0].Tool != turn.Tool || json.Unmarshal(run.Steps[0].Input, &in) != nil || in.Model != model {
			continue
		}
		var results []string
		for _, m := range in.Request.Messages {
			for _, p := range m.Parts {
				if p.Result == nil {
					continue
				}
				b, err := json.Marshal(p.Result.Text)
				if err != nil {
					return nil, err
				}
				results = append(results, string(b))
			}
		}
		if len(results) > len(all) {
			all = slices.Clone(results)
		}
	}
	return all, nil
}
