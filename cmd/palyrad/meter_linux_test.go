package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
)

// metrics returns /metrics.
func (r *running) metrics() string {
	r.t.Helper()
	resp, err := r.client().Get("http://localhost/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("metrics: %s, %v", resp.Status, err)
	}
	return string(b)
}

// TestBudgetAndMetrics: what a run may use is the configuration's, and what the
// gate did stands in /metrics.
func TestBudgetAndMetrics(t *testing.T) {
	r := newPlace(t, "[budget]\ncalls = 2\nwall = \"5m\"\n[limits]\nrequests_per_second = 0\n").start()
	var s hub.Session
	r.must(201, "POST", "/api/v1/sessions", "{}", &s)
	var run hub.Run
	steps := strings.TrimSuffix(strings.Repeat(echo+",", 3), ",")
	r.must(201, "POST", "/api/v1/runs", fmt.Sprintf(`{"session":%q,"steps":[%s],"budget":{"calls":100}}`, s.ID, steps), &run)
	if run.Budget.Calls != 2 || run.Budget.Wall != 5*time.Minute || run.Budget.Bytes != 256<<20 {
		t.Errorf("budget %+v", run.Budget)
	}
	for limit := time.Now().Add(patience); run.State != hub.RunFailed; {
		if time.Now().After(limit) || run.State == hub.RunDone {
			t.Fatalf("%+v\n%s", run, r.log)
		}
		r.must(200, "GET", "/api/v1/runs/"+run.ID, "", &run)
	}
	if run.Use.Calls != 2 || run.Reason != "budget_calls" {
		t.Errorf("%+v", run)
	}
	var d hub.Doctor
	r.must(200, "GET", "/api/v1/doctor", "", &d)
	for _, name := range []string{"policy", "disk", "clock", "certificate", "confinement"} {
		at := slices.IndexFunc(d.Findings, func(f hub.Finding) bool { return f.Name == name })
		if at < 0 || (d.Findings[at].Answer == "no") != (name == "certificate") || slices.Contains(d.Missing, name) {
			t.Errorf("%s: %+v; missing %q", name, d.Findings, d.Missing)
		}
	}
	// Until keys.plain or palyra keys unseal says that they may lie so.
	if at := slices.IndexFunc(d.Findings, func(f hub.Finding) bool { return f.Name == "keys" }); at < 0 || d.Findings[at].Answer != "no" || d.Findings[at].Fix == "" || !strings.Contains(d.Findings[at].Detail, "since the first use by ") || !slices.Contains(d.Missing, "keys") {
		t.Errorf("plain keys: %+v; missing %q", d.Findings, d.Missing)
	}
	m := r.metrics()
	for _, want := range []string{`palyra_decisions_total{effect="allow"} 2`, `palyra_calls_total{tier="c",outcome="executed"} 2`,
		`palyra_execution_seconds_count{tier="c"} 2`, `palyra_approval_wait_seconds_count 0`} {
		if !strings.Contains(m, want+"\n") {
			t.Errorf("no %s in /metrics", want)
		}
	}
	if strings.Contains(m, "palyra_journal_append_seconds_count 0\n") {
		t.Error("no append was counted")
	}
}

// TestModelMetrics: what turns of a model took stands in /metrics, from the beginning.
func TestModelMetrics(t *testing.T) {
	r := newPlace(t, "[models.first]\nprovider = \"scripted\"\n[limits]\nrequests_per_second = 0\n").start()
	if m := r.metrics(); !strings.Contains(m, "palyra_model_turns_total{model=\"first\"} 0\n") {
		t.Errorf("before the first turn:\n%s", m)
	}
	resp, err := r.client().Post("http://localhost/v1/messages", "application/json", strings.NewReader(`{"model":"first","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s\n%s", resp.Status, r.log)
	}
	var u hub.Usage
	if r.must(200, "GET", "/api/v1/usage", "", &u); u.Total.Turns != 1 || u.Total.Input == 0 || u.Total.Output == 0 {
		t.Errorf("%+v", u)
	}
	m := r.metrics()
	for _, want := range []string{`turns_total{model="first"} 1`, fmt.Sprintf(`input_tokens_total{model="first"} %d`, u.Total.Input), `cached_tokens_total{model="first"} 0`,
		fmt.Sprintf(`output_tokens_total{model="first"} %d`, u.Total.Output), `cost_total{model="first"} 0`} {
		if !strings.Contains(m, "palyra_model_"+want+"\n") {
			t.Errorf("no %s in /metrics: %+v\n%s", want, u.Total, m)
		}
	}
}
