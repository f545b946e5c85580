package local

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/kernel"
)

// BenchmarkAgents is two hundred agents at work at once, each with two calls: the most memory that
// this process, which is palyrad here, ever had resident, in MiB.
func BenchmarkAgents(b *testing.B) {
	const agents = 200
	script := withScript(b, calls("I look.", `palyra_echo {"text":"one"}`), calls("", `palyra_echo {"text":"{{last}}"}`), says("Done."))
	h := newHouse(b, func(lc *Config, kc *kernel.Config) {
		script(lc, kc)
		lc.Bounds = session.Bounds{Active: agents, Share: agents, Queue: agents, Each: agents}
		lc.Sessions = 1 << 16
	})
	for b.Loop() {
		ids := make([]string, agents)
		for i := range ids {
			r, err := hub.StartRun.Do(b.Context(), h, h.owner, hub.NewRun{Session: h.session(h.owner), Agent: &hub.Agent{Prompt: "look"}})
			if err != nil {
				b.Fatal(err)
			}
			ids[i] = r.ID
		}
		for _, id := range ids {
			if r := h.ended(h.owner, id); r.State != hub.RunDone {
				b.Fatalf("%s %s", r.State, r.Reason)
			}
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+([0-9]+) kB`).FindSubmatch(status)
	if m == nil {
		b.Fatal("no VmHWM")
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(kib)/1024, "MiB-resident")
}
