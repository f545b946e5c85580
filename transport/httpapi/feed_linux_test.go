package httpapi

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"palyra/hub"
)

// feed opens the console's feed and returns its answer.
func (r *rig) feed(ctx context.Context, cookie string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, get, "http://"+r.tcp+"/console/feed", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	name, value, _ := strings.Cut(cookie, ": ")
	req.Header.Set(name, value)
	resp, err := r.web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// looks reads a feed up to its end. The channel has the topics of each notice.
func looks(resp *http.Response) <-chan string {
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			if topics, ok := strings.CutPrefix(s.Text(), "data: "); ok && topics != "." { // which is a sign of life
				out <- topics
			}
		}
	}()
	return out
}

// TestConsoleFeed: a feed tells what to look at again, by topic and without a word of what is
// and ends with its token.
func TestConsoleFeed(t *testing.T) {
	r, h := lobby(t)
	cookie := r.letIn(h)
	owner := callerOf(t, h, uint32(os.Geteuid()))
	resp := r.feed(t.Context(), cookie)
	if head := resp.Header; resp.StatusCode != 200 || head.Get("Content-Type") != hub.MediaSSE || head.Get("Cache-Control") != "no-store" ||
		!strings.Contains(head.Get("Content-Security-Policy"), "frame-ancestors 'none'") || head.Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	all := looks(resp)
	if first := <-all; first != hub.EveryTopic.String() {
		t.Errorf("first: %q", first)
	}
	s, err := hub.CreateSession.Do(t.Context(), h, owner, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-all; !strings.Contains(got, "runs") || strings.Contains(got, s.ID) {
		t.Errorf("a session: %q", got)
	}
	tokens, err := hub.ListTokens.Do(t.Context(), h, owner, hub.TokenQuery{})
	if err != nil || len(tokens.Items) != 1 {
		t.Fatalf("%+v, %v", tokens, err)
	}
	if _, err := hub.RevokeToken.Do(t.Context(), h, owner, hub.TokenChange{ID: tokens.Items[0].ID}); err != nil {
		t.Fatal(err)
	}
	for range all { // until it ends
	}
	if resp := r.feed(t.Context(), cookie); resp.StatusCode != 401 {
		t.Errorf("after its token: %s", resp.Status)
	}
	if status, _, _ := r.visit(post, "/console/feed", "x=1", r.letIn(h)); status != 404 {
		t.Errorf("a form for the feed: %d", status)
	}
	if status, body, _ := r.visit(http.MethodHead, "/console/feed", "", r.letIn(h)); status != 200 || body != "" {
		t.Errorf("its header: %d %q", status, body)
	}
}

// TestConsoleFeedBounds: a browser has few feeds, and one that it closes makes room.
func TestConsoleFeedBounds(t *testing.T) {
	r, h := lobby(t)
	cookie := r.letIn(h)
	ctx, leave := context.WithCancel(t.Context())
	open := 0
	for ; ; open++ {
		resp := r.feed(ctx, cookie)
		if resp.StatusCode == 429 {
			break
		}
		if resp.StatusCode != 200 || open > 100 {
			t.Fatalf("%d: %s", open, resp.Status)
		}
	}
	if open == 0 {
		t.Error("none is let in")
	}
	other := r.letIn(h)
	if resp := r.feed(t.Context(), other); resp.StatusCode != 200 {
		t.Errorf("another browser: %s", resp.Status)
	}
	leave()
	for end := time.Now().Add(20 * time.Second); ; {
		resp := r.feed(t.Context(), cookie)
		if resp.StatusCode == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the others have left: %s", resp.Status)
		}
	}
}

// TestConsoleFeedStops: the end of the server ends feeds at once, and doesn't wait for their readers.
func TestConsoleFeedStops(t *testing.T) {
	r, h := lobby(t)
	resp := r.feed(t.Context(), r.letIn(h))
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	begun := time.Now()
	r.stop()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the end: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the server took %v to end", took)
	}
}
