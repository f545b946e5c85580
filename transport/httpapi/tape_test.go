package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
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
		case line == "" && ev.kind != "":
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

var formats = map[string]bool{hub.MediaSSE: true, hub.MediaNDJSON: false}

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
	a, b := got[hub.MediaSSE], got[hub.MediaNDJSON]
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
		c, resp := r.follow(run+"/tape"+tt.query, hub.MediaSSE, headers...)
		evs, _, err := events(t, resp.Body, true, last-int(tt.from)+1)
		if err != nil || evs[0].data.Seq != tt.from || evs[len(evs)-1].data.Seq != last {
			t.Errorf("%+v: %d events, %v", tt, len(evs), err)
		}
		c.Close()
	}
	for _, bad := range []string{"-1", "01", "x", "1 2", "1e3", "99999999999999999999", fmt.Sprint(last + 1)} {
		_, resp := r.follow(run+"/tape", hub.MediaSSE, "Last-Event-ID: "+bad)
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(b), "invalid_input") {
			t.Errorf("Last-Event-ID %q: %d %s", bad, resp.StatusCode, b)
		}
	}
	_, resp := r.follow(run+"/tape", hub.MediaSSE, "Last-Event-ID: 1", "Last-Event-ID: 2")
	if resp.StatusCode != 400 {
		t.Errorf("two ids: %d", resp.StatusCode)
	}
	_, resp = r.follow(run+"/tape", "text/html")
	if resp.StatusCode != 406 {
		t.Errorf("text/html: %d", resp.StatusCode)
	}
	r.hub.Finish(run)
	_, resp = r.follow(run+"/tape", hub.MediaSSE, fmt.Sprint("Last-Event-ID: ", last+1))
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
		if time.Since(start) > time.Minute {
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

// TestSlowReader: a reader that doesn't read is cut off, and nothing waits for it.
func TestSlowReader(t *testing.T) {
	t.Parallel()                                                         // it waits for a deadline
	r := newRig(t, func(c *Config) { c.Limits.Write = 6 * time.Second }) // longer than a machine stalls
	run := r.run(apitest.ToolWait)
	_, slow := r.follow(run+"/tape", hub.MediaSSE) // reads nothing more
	_, quick := r.follow(run+"/tape", hub.MediaNDJSON)
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
	// Events under way arrive; then the connection ends before the tape does.
	eventually(t, "the slow reader is cut off", func() bool { return r.streams.slow.Load() > 0 })
	evs, _, err := events(t, slow.Body, true, -1)
	if err == io.EOF || len(evs) == 0 || len(evs) > n {
		t.Errorf("slow reader: %d events, %v; want some and an unclean end", len(evs), err)
	}
	// It goes on where it stopped, and gets the rest.
	_, resp := r.follow(run+"/tape", hub.MediaSSE, "Last-Event-ID: "+evs[len(evs)-1].id)
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
		_, resp := r.follow(run+"/tape", hub.MediaSSE)
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
	eventually(t, "no reader is left", func() bool { return r.streams.count() == 0 })
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
	c, _ := r.follow(run+"/tape", hub.MediaSSE)
	r.follow(run+"/tape", hub.MediaSSE)
	_, resp := r.follow(run+"/tape", hub.MediaSSE)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("third reader of a credential: %d", resp.StatusCode)
	}
	if _, resp = r.follow(run+"/tape", hub.MediaSSE, other); resp.StatusCode != 200 {
		t.Errorf("reader of another credential: %d", resp.StatusCode)
	}
	if _, resp = r.follow(run+"/tape", hub.MediaSSE, other); resp.StatusCode != 429 {
		t.Errorf("fourth reader: %d", resp.StatusCode)
	}
	c.Close()
	for start := time.Now(); ; { // the next event finds that it went
		r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{})
		if _, resp = r.follow(run+"/tape", hub.MediaSSE); resp.StatusCode == 200 {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("no place although a reader went")
		}
	}
}

// TestViewIsCounted: a reader of the view keeps what the steps were given, and has the
// places for it. The last places are for owners at the socket.
func TestViewIsCounted(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Streams, c.Limits.StreamsPerCaller = 16, 16 })
	id, _ := r.session()
	var run hub.Run
	r.want(r.send(post, "/api/v1/runs", fmt.Sprintf(`{"session":%q,"steps":[{"tool":%q,"input":{"text":%q}}]}`,
		id, apitest.ToolWait, strings.Repeat("x", 100<<10)), r.key()), 201).into(t, &run)
	token := "Authorization: Bearer " + apitest.OwnerToken
	for i, c := range []struct {
		view string
		who  string
		want int
	}{
		{"?view=tools", token, 200}, {"?view=tools", token, 200}, // 7 places each
		{"?view=tools", token, 429}, {"", token, 429},
		{"?view=tools", "X-Socket: owner", 429}, {"", "X-Socket: owner", 200},
	} {
		if _, resp := r.follow(run.ID+"/tape"+c.view, hub.MediaSSE, c.who); resp.StatusCode != c.want {
			t.Errorf("%d: %d, want %d", i, resp.StatusCode, c.want)
		}
	}
}

// TestLargeWrites: clients that don't read keep few large events at a time, and those
// of another principal have places of their own.
func TestLargeWrites(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Write = time.Minute })
	run := r.run(apitest.ToolWait)
	r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Tool: strings.Repeat("x", 4<<20)})
	var conns []net.Conn
	for range 10 {
		c, _ := r.follow(run+"/tape", hub.MediaSSE)
		conns = append(conns, c)
	}
	each := r.streams.large.Limits().Each
	eventually(t, "as many large writes as there may be", func() bool { return r.streams.large.Held() == each })
	c, resp := r.follow(run+"/tape", hub.MediaSSE, "Authorization: Bearer "+apitest.OwnerToken)
	if evs, _, err := events(t, resp.Body, true, 1); err != nil || len(evs) != 1 {
		t.Errorf("another principal's reader: %d events, %v", len(evs), err)
	}
	for _, c := range append(conns, c) {
		c.Close()
	}
	eventually(t, "no large write after the last reader", func() bool { return r.streams.large.Held() == 0 })
}

// TestReelIsBounded: what readers have seen stays in memory while it is small. A large
// event, which waits with its run for a person, does not.
func TestReelIsBounded(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	c, resp := r.follow(run+"/tape", hub.MediaSSE)
	defer c.Close()
	body := bufio.NewReader(resp.Body)
	for i, size := range []int{0, 1, 4 * maxFrameBytes, 1} {
		if i > 0 {
			r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Tool: strings.Repeat("x", size)})
		}
		if evs, _, err := events(t, body, true, 1); err != nil || len(evs) != 1 || evs[0].data.Seq != uint64(i+1) {
			t.Fatalf("event %d: %d events, %v", i, len(evs), err)
		}
		r.streams.mu.Lock()
		l := r.streams.reels[run]
		l.mu.Lock()
		if l.bytes > maxFrameBytes || l.hi != uint64(i+1) {
			t.Errorf("after event %d the reel has %d bytes, up to event %d", i, l.bytes, l.hi)
		}
		l.mu.Unlock()
		r.streams.mu.Unlock()
	}
}

// TestRightsEnd: a reader whose principal lost a right comes back and says who it is.
func TestRightsEnd(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	_, bob := r.follow(run+"/tape", hub.MediaSSE, "Authorization: Bearer "+apitest.WeakToken)
	_, root := r.follow(run+"/tape", hub.MediaSSE)
	r.want(r.send(http.MethodDelete, "/api/v1/members/bob", "", "If-Match: *"), 204)
	if evs, _, err := events(t, bob.Body, true, -1); err == nil || err == io.EOF {
		t.Errorf("reader of a principal without a role: %d events, %v", len(evs), err)
	}
	r.hub.Finish(run)
	if evs, _, err := events(t, root.Body, true, -1); err != io.EOF || len(evs) != 2 {
		t.Errorf("other reader: %d events, %v", len(evs), err)
	}
}

// TestStreamAge: no reader goes on for ever on one look at its credential.
func TestStreamAge(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.StreamAge, c.Limits.Heartbeat = 50*time.Millisecond, 40*time.Millisecond })
	_, resp := r.follow(r.run(apitest.ToolWait)+"/tape", hub.MediaSSE)
	if _, _, err := events(t, resp.Body, true, -1); err != io.ErrUnexpectedEOF {
		t.Errorf("old reader ends with %v", err)
	}
}

// TestDrain: Serve lets a call finish, cuts off tapes, and ends.
func TestDrain(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Drain = time.Minute })
	_, resp := r.follow(r.run(apitest.ToolWait)+"/tape", hub.MediaSSE)
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
		if time.Since(start) > time.Minute {
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
	if got, _ := hub.GetRun.Do(t.Context(), r.hub, hub.Caller{}, run.ID); got.State != hub.RunCancelled {
		t.Errorf("state %q of a call that the drain ended", got.State)
	}
}

// TestTapeView: the view of the tools has the same events in both formats, whether a
// reader follows, comes late or comes back; one that comes back after any of them,
// as an EventSource does, misses none.
func TestTapeView(t *testing.T) {
	r := newRig(t)
	run := r.run(apitest.ToolWait)
	index := uint64(7)
	r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: 0, Tool: "palyra.echo"})
	r.hub.Emit(run, hub.EventStepDecided, hub.StepDecided{Step: 0, Effect: "needs_approval", Reason: "secret"})
	r.hub.Emit(run, hub.EventStepEnded, hub.StepResult{CallID: "call_1", Outcome: "executed", LogIndex: &index, Approval: "apr_1", Stdout: hub.Output{Size: 2, Text: "hi"}})
	r.hub.Emit(run, hub.EventStepStarted, hub.StepStarted{Step: 1, Tool: "palyra.echo"})
	r.hub.Emit(run, hub.EventStepDecided, hub.StepDecided{Step: 1, Effect: "deny", Reason: "not_permitted", Policies: []string{"p"}})
	following := map[string]io.Reader{}
	for media := range formats {
		_, resp := r.follow(run+"/tape?view=tools", media)
		following[media] = resp.Body
	}
	r.hub.Finish(run)
	want := []string{"1 run.in_progress", "2 tool_proposal", "4 tool_decision", "4 tool_result", "4 tool_attestation", "5 tool_proposal", "6 tool_decision", "7 run.done"}
	names := func(evs []event) (s []string) {
		for _, e := range evs {
			s = append(s, fmt.Sprintf("%d %s", e.data.Seq, e.data.Kind))
		}
		return s
	}
	for media, sse := range formats {
		got, _, err := events(t, following[media], sse, -1)
		if err != io.EOF || !slices.Equal(names(got), want) {
			t.Errorf("%s: %q, %v", media, names(got), err)
		}
		if !strings.Contains(string(got[6].data.Data), `"reason":"DenyByDefault"`) {
			t.Errorf("%s", got[6].data.Data)
		}
		_, resp := r.follow(run+"/tape?view=tools", media)
		late, _, _ := events(t, resp.Body, sse, -1)
		if !slices.Equal(names(late), want) {
			t.Errorf("%s, late: %q", media, names(late))
		}
		if !sse {
			continue
		}
		last := "0"
		for i, e := range got { // the connection breaks after event i
			if e.id != "" {
				last = e.id
			}
			_, resp := r.follow(run+"/tape?view=tools", media, "Last-Event-ID: "+last)
			rest, _, _ := events(t, resp.Body, sse, -1)
			if have := names(append(got[:i+1:i+1], rest...)); !slices.Equal(slices.Compact(slices.Sorted(slices.Values(have))), slices.Sorted(slices.Values(want))) {
				t.Errorf("back after %d: %q", i, have)
			}
		}
	}
	if res := r.send(get, "/api/v1/runs/"+run+"/tape?view=other", ""); res.status != 400 {
		t.Errorf("unknown view: %d", res.status)
	}
}
