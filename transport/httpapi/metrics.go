package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// mediaPrometheus is the text exposition format.
const mediaPrometheus = "text/plain; version=0.0.4; charset=utf-8"

// bounds are the upper ends of the buckets of durations, in seconds.
var bounds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}

// metrics has all counters from the beginning: a client can't make it grow.
type metrics struct {
	byRoute map[string]*routeMetrics // immutable after newMetrics

	inflight        atomic.Int64
	unauthenticated atomic.Uint64
	statuses        [600]atomic.Uint64 // of refusals
}

type routeMetrics struct {
	classes [6]atomic.Uint64 // by hundreds of the status
	buckets [len(bounds) + 1]atomic.Uint64
	micros  atomic.Uint64
}

func newMetrics(rs []route) *metrics {
	m := &metrics{byRoute: make(map[string]*routeMetrics, len(rs))}
	for i := range rs {
		m.byRoute[rs[i].ID] = new(routeMetrics)
	}
	return m
}

// begin counts a request in; the function that it returns counts it out.
func (m *metrics) begin(rt *route) func(status int) {
	start := time.Now()
	m.inflight.Add(1)
	return func(status int) {
		d := time.Since(start)
		r := m.byRoute[rt.ID]
		m.inflight.Add(-1)
		r.classes[min(status/100, len(r.classes)-1)].Add(1)
		i := 0
		for i < len(bounds) && d.Seconds() > bounds[i] {
			i++
		}
		r.buckets[i].Add(1)
		r.micros.Add(uint64(d.Microseconds()))
	}
}

func (m *metrics) refused(status int) {
	if status >= 0 && status < len(m.statuses) {
		m.statuses[status].Add(1)
	}
}

func getMetrics(x *exchange) error {
	var b bytes.Buffer
	x.s.writeMetrics(&b)
	if x.known {
		// The route has no operation of the hub behind it that would check its permission.
		s, err := hub.GetStatus.Do(x.r.Context(), x.s.cfg.Hub, x.caller, hub.None{})
		switch {
		case err != nil:
			return err
		case s.StatusDetail == nil:
			return fault.New(fault.Denied, "permission_denied", "read metrics", nil).WithHint("ask an owner for a role")
		}
		writeStatus(&b, s)
	}
	if x.s.cfg.Metrics != nil {
		x.s.cfg.Metrics(&b)
	}
	return x.bytes(x.rt.Status, mediaPrometheus, b.Bytes())
}

func (s *Server) writeMetrics(w io.Writer) {
	m := s.metrics
	head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	head("palyra_http_requests_total", "counter", "Requests answered, by operation and class of status.")
	for i := range s.routes {
		id := s.routes[i].ID
		for c := range m.byRoute[id].classes {
			if n := m.byRoute[id].classes[c].Load(); n > 0 {
				fmt.Fprintf(w, "palyra_http_requests_total{operation=%q,code=\"%dxx\"} %d\n", id, c, n)
			}
		}
	}
	head("palyra_http_request_seconds", "histogram", "Time to answer, by operation. A tape counts until it is handed over.")
	for i := range s.routes {
		id := s.routes[i].ID
		r, sum := m.byRoute[id], uint64(0)
		var n [len(bounds) + 1]uint64
		for j := range n {
			sum += r.buckets[j].Load()
			n[j] = sum
		}
		if sum == 0 {
			continue
		}
		for j, le := range bounds {
			fmt.Fprintf(w, "palyra_http_request_seconds_bucket{operation=%q,le=\"%g\"} %d\n", id, le, n[j])
		}
		fmt.Fprintf(w, "palyra_http_request_seconds_bucket{operation=%q,le=\"+Inf\"} %d\n", id, sum)
		fmt.Fprintf(w, "palyra_http_request_seconds_sum{operation=%q} %g\n", id, float64(r.micros.Load())/1e6)
		fmt.Fprintf(w, "palyra_http_request_seconds_count{operation=%q} %d\n", id, sum)
	}
	head("palyra_http_refused_total", "counter", "Problems answered, by status.")
	for i := range m.statuses {
		if n := m.statuses[i].Load(); n > 0 {
			fmt.Fprintf(w, "palyra_http_refused_total{status=\"%d\"} %d\n", i, n)
		}
	}
	one := func(name, kind, help string, v any) {
		head(name, kind, help)
		fmt.Fprintf(w, "%s %v\n", name, v)
	}
	one("palyra_http_in_flight", "gauge", "Requests that are being answered.", m.inflight.Load())
	one("palyra_http_unauthenticated_total", "counter", "Credentials that were refused.", m.unauthenticated.Load())
	one("palyra_http_connections", "gauge", "Open connections.", s.rooms.count())
	one("palyra_http_connections_evicted_total", "counter", "Connections closed to make room for others.", s.rooms.evicted.Load())
	one("palyra_http_connections_refused_total", "counter", "Connections for which there was no room.", s.rooms.refused.Load())
	one("palyra_tape_readers", "gauge", "Readers of tapes.", s.streams.count())
	one("palyra_tape_readers_cut_total", "counter", "Readers cut off because they did not read.", s.streams.slow.Load())
	one("go_goroutines", "gauge", "Goroutines.", runtime.NumGoroutine())
}

func writeStatus(w io.Writer, s hub.Status) {
	gauges := map[string]any{
		"palyra_sessions_open": s.Counts.SessionsOpen, "palyra_runs_active": s.Counts.RunsActive, "palyra_runs_queued": s.Counts.RunsQueued,
		"palyra_approvals_pending": s.Counts.ApprovalsPending, "palyra_journal_entries": s.Journal.Size, "palyra_journal_open_intents": s.Journal.Open,
		"palyra_uptime_seconds": s.Uptime.Seconds(),
	}
	names := make([]string, 0, len(gauges))
	for n := range gauges {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(w, "# TYPE %s gauge\n%s %v\n", n, n, gauges[n])
	}
	fmt.Fprintf(w, "# TYPE palyra_info gauge\npalyra_info{version=%q,profile=%q,mode=%q} 1\n", s.Version, s.Profile, s.Mode)
}
