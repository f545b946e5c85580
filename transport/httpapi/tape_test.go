package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"palyra/kernel/hub"
	"palyra/transport/api"
	"palyra/transport/api/apitest"
)

// follow opens a tape and returns its connection and response.
func (r *rig) follow(run, accept string, headers ...string) (net.Conn, *http.Response) {
	r.t.Helper()
	c := r.dial("unix")
	if _, err := fmt.Fprintf(c, "GET /api/v1/runs/%s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n%s\r\n", run, accept, strings.Join(append(headers, ""), "\r\n")); err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatalf("follow %s: %v", run, err)
	}
	return c, resp // closing the body would read it to its end; c is closed
}

// event is one event as a client sees it in either format.
type event struct {
	id, kind string
	data     hub.Event
}

// events reads n events from a stream, all there are if n is negative, and
// counts heartbeats.
func events(t *testing.T, body io.Reader, sse bool, n int) (evs []event, beats int, err error) {
	t.Helper()
	br := bufio.NewReader(body)
	var ev event
	for n < 0 || len(evs) < n {
		line, err := br.ReadString('\n')
		if err != nil {
			return evs, beats, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case !sse && line == "", line == ":":
			beats++
		case !sse:
			decode(t, line, &ev.data)
			evs = append(evs, event{fmt.Sprint(ev.data.Seq), ev.data.Kind, ev.data})
			ev = event{}
		case line == "" && ev.id != "":
			evs = append(evs, ev)
			ev = event{}
		case strings.HasPrefix(line, "id: "):
			ev.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			ev.kind = line[7:]
		case strings.HasPrefix(line, "data: "):
			decode(t, line[6:], &ev.data)
		case line != "":
			t.Errorf("line %q", line)
		}
	}
	return evs, beats, nil
}

func decode(t *testing.T, s string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), v); err != nil {
		t.Errorf("data %.200q: %v", s, err)
	}
}

var formats = map[string]bool{api.MediaSSE: true, api.MediaNDJSON: false}

// TestTape: the same events in both formats, those that are there and those that
// come, in order, without gaps, to the end.
func TestTape(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	done := make(chan map[string][]event)
	got := map[string][]event{}
	for media, sse := range formats {
		_, resp := r.follow(run+"/tape", media)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != media || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %d %v", media, resp.StatusCode, resp.Header)
		}
		go func() {
			evs, _, err := events(t, resp.Body, sse, -1)
			if err != io.EOF {
				t.Errorf("%s ends with %v, want a clean end", media, err)
			}
			done <- map[string][]event{media: evs}
		}()
	}
	for i := range 1000 {
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: i, Tool: "line\nbreak"})
	}
	r.hub.Finish(run)
	for range formats {
		for m, evs := range <-done {
			got[m] = evs
		}
	}
	for media, evs := range got {
		if len(evs) != 1002 {
			t.Fatalf("%s: %d events, want 1002", media, len(evs))
		}
		for i, e := range evs {
			if e.data.Seq != uint64(i+1) || e.id != fmt.Sprint(i+1) || e.kind != e.data.Kind {
				t.Fatalf("%s: event %d is %+v", media, i, e)
			}
		}
		if last := evs[1001].kind; last != hub.EventRunDone {
			t.Errorf("%s: last event %s", media, last)
		}
	}
	a, b := got[api.MediaSSE], got[api.MediaNDJSON]
	for i := range a {
		if string(a[i].data.Data) != string(b[i].data.Data) || !a[i].data.Time.Equal(b[i].data.Time) {
			t.Fatalf("event %d differs: %v, %v", i, a[i], b[i])
		}
	}
}

// TestTapeResumes from any event, by header or query, and the header counts more.
func TestTapeResumes(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	for i := range 2 * maxFrames {
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: i})
	}
	const last = 2*maxFrames + 1 // with run.in_progress
	for _, tt := range []struct {
		query, header string
		from          uint64
	}{
		{"", "", 1}, {"?after=0", "", 1}, {"?after=5", "", 6}, {"", "7", 8}, {"?after=5", "9", 10}, {"", fmt.Sprint(last - 1), last},
	} {
		var headers []string
		if tt.header != "" {
			headers = []string{"Last-Event-ID: " + tt.header}
		}
		c, resp := r.follow(run+"/tape"+tt.query, api.MediaSSE, headers...)
		evs, _, err := events(t, resp.Body, true, last-int(tt.from)+1)
		if err != nil || evs[0].data.Seq != tt.from || evs[len(evs)-1].data.Seq != last {
			t.Errorf("%+v: %d events, %v", tt, len(evs), err)
		}
		c.Close()
	}
	for _, bad := range []string{"-1", "01", "x", "1 2", "1e3", "99999999999999999999", fmt.Sprint(last + 1)} {
		_, resp := r.follow(run+"/tape", api.MediaSSE, "Last-Event-ID: "+bad)
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(b), "bad_event_id") {
			t.Errorf("Last-Event-ID %q: %d %s", bad, resp.StatusCode, b)
		}
	}
	_, resp := r.follow(run+"/tape", api.MediaSSE, "Last-Event-ID: 1", "Last-Event-ID: 2")
	if resp.StatusCode != 400 {
		t.Errorf("two ids: %d", resp.StatusCode)
	}
	_, resp = r.follow(run+"/tape", "text/html")
	if resp.StatusCode != 406 {
		t.Errorf("text/html: %d", resp.StatusCode)
	}
	r.hub.Finish(run)
	_, resp = r.follow(run+"/tape", api.MediaSSE, fmt.Sprint("Last-Event-ID: ", last+1))
	if resp.StatusCode != 204 {
		t.Errorf("everything seen of a run that has ended: %d, want 204", resp.StatusCode)
	}
}

// TestTapeHeartbeat: signs of life while nothing happens, in both formats.
func TestTapeHeartbeat(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Heartbeat = 40 * time.Millisecond })
	run := r.run(apitest.ToolWait)
	for media, sse := range formats {
		c, resp := r.follow(run+"/tape", media)
		br := bufio.NewReader(resp.Body)
		want := "\n"
		if sse {
			want = ":\n\n"
		}
		if evs, _, err := events(t, io.MultiReader(firstEvent(t, br, sse)), sse, 1); err != nil || len(evs) != 1 {
			t.Fatalf("%s: %v %v", media, evs, err)
		}
		for range 3 {
			b := make([]byte, len(want))
			if _, err := io.ReadFull(br, b); err != nil || string(b) != want {
				t.Fatalf("%s: heartbeat %q, %v", media, b, err)
			}
		}
		c.Close()
	}
	start := time.Now()
	for r.streams.count() > 0 { // readers that went are noticed by the heartbeat
		if time.Since(start) > 10*time.Second {
			t.Fatal("readers that went are still counted")
		}
	}
}

// firstEvent takes exactly one event from br.
func firstEvent(t *testing.T, br *bufio.Reader, sse bool) io.Reader {
	t.Helper()
	var b strings.Builder
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(line)
		if !sse || line == "\n" {
			return strings.NewReader(b.String())
		}
	}
}

// TestSlowReader: who does not read is cut off, and nobody waits for them.
func TestSlowReader(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Write = 2 * time.Second })
	run := r.run(apitest.ToolWait)
	_, slow := r.follow(run+"/tape", api.MediaSSE) // reads nothing more
	_, quick := r.follow(run+"/tape", api.MediaNDJSON)
	done := make(chan int)
	go func() {
		evs, _, err := events(t, quick.Body, false, -1)
		if err != io.EOF {
			t.Errorf("quick reader: %v", err)
		}
		done <- len(evs)
	}()
	const n = 400
	pad := strings.Repeat("x", 8000) // together more than any socket buffer
	for i := range n {
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: i, Tool: pad})
	}
	r.hub.Finish(run)
	if got := <-done; got != n+2 {
		t.Errorf("quick reader got %d events, want %d", got, n+2)
	}
	// What was under way arrives; then the connection ends before the tape does.
	for start := time.Now(); r.streams.slow.Load() == 0; {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the slow reader is not cut off")
		}
	}
	evs, _, err := events(t, slow.Body, true, -1)
	if err == io.EOF || len(evs) == 0 || len(evs) > n {
		t.Errorf("slow reader: %d events, %v; want some and an unclean end", len(evs), err)
	}
	// It goes on where it stopped, and gets the rest.
	_, resp := r.follow(run+"/tape", api.MediaSSE, "Last-Event-ID: "+evs[len(evs)-1].id)
	rest, _, err := events(t, resp.Body, true, -1)
	if err != io.EOF || len(evs)+len(rest) != n+2 {
		t.Errorf("%d and %d events, %v; want %d together", len(evs), len(rest), err, n+2)
	}
}

// TestManyReaders of one run: each gets everything; a goroutine for none while
// nothing happens.
func TestManyReaders(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	const n = 100
	done := make(chan error, n)
	for range n {
		_, resp := r.follow(run+"/tape", api.MediaSSE)
		go func() {
			evs, _, err := events(t, resp.Body, true, -1)
			if err != io.EOF || len(evs) != 52 {
				done <- fmt.Errorf("%d events, %v", len(evs), err)
				return
			}
			done <- nil
		}()
	}
	if got := r.streams.count(); got != n {
		t.Errorf("%d readers, want %d", got, n)
	}
	for i := range 50 {
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: i})
	}
	r.hub.Finish(run)
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for start := time.Now(); r.streams.count() > 0; {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%d readers left", r.streams.count())
		}
	}
	r.streams.mu.Lock()
	defer r.streams.mu.Unlock()
	if len(r.streams.reels) != 0 {
		t.Errorf("%d reels left", len(r.streams.reels))
	}
}

// TestStreamLimits: places, over all and of one credential.
func TestStreamLimits(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Streams, c.Limits.StreamsPerCaller = 3, 2 })
	run := r.run(apitest.ToolWait)
	other := "Authorization: Bearer " + apitest.OwnerToken
	c, _ := r.follow(run+"/tape", api.MediaSSE)
	r.follow(run+"/tape", api.MediaSSE)
	_, resp := r.follow(run+"/tape", api.MediaSSE)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("third reader of a credential: %d", resp.StatusCode)
	}
	if _, resp = r.follow(run+"/tape", api.MediaSSE, other); resp.StatusCode != 200 {
		t.Errorf("reader of another credential: %d", resp.StatusCode)
	}
	if _, resp = r.follow(run+"/tape", api.MediaSSE, other); resp.StatusCode != 429 {
		t.Errorf("fourth reader: %d", resp.StatusCode)
	}
	c.Close()
	for start := time.Now(); ; { // the next event finds that it went
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{})
		if _, resp = r.follow(run+"/tape", api.MediaSSE); resp.StatusCode == 200 {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatal("no place although a reader went")
		}
	}
}

// TestRightsEnd: a reader whose principal lost a right comes back and says who it is.
func TestRightsEnd(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	_, bob := r.follow(run+"/tape", api.MediaSSE, "Authorization: Bearer "+apitest.WeakToken)
	_, root := r.follow(run+"/tape", api.MediaSSE)
	r.want(r.send(http.MethodDelete, "/api/v1/members/bob", "", "If-Match: *"), 204)
	if evs, _, err := events(t, bob.Body, true, -1); err == nil || err == io.EOF {
		t.Errorf("reader of a principal without a role: %d events, %v", len(evs), err)
	}
	r.hub.Finish(run)
	if evs, _, err := events(t, root.Body, true, -1); err != io.EOF || len(evs) != 2 {
		t.Errorf("other reader: %d events, %v", len(evs), err)
	}
}

// TestStreamAge: nobody reads for ever on one look at the credential.
func TestStreamAge(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.StreamAge, c.Limits.Heartbeat = 50*time.Millisecond, 40*time.Millisecond })
	_, resp := r.follow(r.run(apitest.ToolWait)+"/tape", api.MediaSSE)
	if _, _, err := events(t, resp.Body, true, -1); err != io.ErrUnexpectedEOF {
		t.Errorf("old reader ends with %v", err)
	}
}

// TestDrain: Serve lets a call finish, cuts off tapes, and ends.
func TestDrain(t *testing.T) {
	r := newRig(t)
	_, resp := r.follow(r.run(apitest.ToolWait)+"/tape", api.MediaSSE)
	done := make(chan answer, 1)
	go func() { done <- r.send(post, "/api/v1/calls", `{"tool":"test.wait"}`, r.key()) }()
	var call string
	for call == "" {
		if run := r.firstRun(); len(run.Session) == 0 {
			call = run.ID
		}
	}
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }()
	if _, _, err := events(t, resp.Body, true, -1); err != io.ErrUnexpectedEOF {
		t.Errorf("tape ends with %v", err)
	}
	for start := time.Now(); ; { // no new connections
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			break
		}
		c.Close()
		if time.Since(start) > 10*time.Second {
			t.Fatal("still accepts")
		}
	}
	r.hub.Finish(call)
	r.want(<-done, 200)
	<-stopped
}

// TestDrainEnds although a call does not.
func TestDrainEnds(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Drain = 100 * time.Millisecond })
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, _ := http.NewRequest(post, "http://x/api/v1/calls", strings.NewReader(`{"tool":"test.wait"}`))
		req.Header.Set("Content-Type", "application/json")
		if resp, err := r.unix.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	run := r.firstRun()
	r.stop()
	<-done
	if got, _ := r.hub.Run(t.Context(), hub.Caller{}, run.ID); got.State != hub.RunCancelled {
		t.Errorf("state %q of a call that the drain ended", got.State)
	}
}
