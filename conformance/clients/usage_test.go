package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
)

// asks asks the provider's model, and returns the answer with all of its body, or a stream's first
// byte.
func (h *house) asks(ctx context.Context, text string, stream bool) (*http.Response, []byte) {
	h.t.Helper()
	body := fmt.Sprintf(`{"model":"real","messages":[{"role":"user","content":%q}],"stream":%v}`, text, stream)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.token)
	r.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { a.Body.Close() })
	var b []byte
	if stream {
		b = make([]byte, 1)
		_, err = io.ReadFull(a.Body, b)
	} else {
		b, err = io.ReadAll(a.Body)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return a, b
}

// asked returns how often the provider was asked.
func (p *provider) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bodies)
}

// TestUsage: what clients' turns take counts for their principal, also where the client goes before
// the provider has said it, and with as much as a day may take a client is told so by name.
func TestUsage(t *testing.T) {
	h := newHouse(t)
	h.stop()
	text, err := os.ReadFile(h.config)
	if err == nil {
		err = os.WriteFile(h.config, bytes.Replace(text, []byte("[agent]\n"), []byte("[agent]\nday_tokens = 40\n"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	type count struct{ Turns, Sized, Input, Cached, Output int64 }
	took := func() (c count) {
		t.Helper()
		var u struct{ Usage struct{ Total count } }
		if err := json.Unmarshal([]byte(h.palyra("agent", "usage", "--json")), &u); err != nil {
			t.Fatal(err)
		}
		return u.Usage.Total
	}
	if a, b := h.asks(t.Context(), "hello", false); a.StatusCode != 200 {
		t.Fatalf("%s %s", a.Status, b)
	}
	if c := took(); c != (count{Turns: 1, Input: 11, Cached: 3, Output: 4}) {
		t.Errorf("%+v", c)
	}
	ctx, leave := context.WithCancel(t.Context())
	h.asks(ctx, "hang", true)
	leave()
	<-h.server.gone
	if c := took(); c.Turns != 2 || c.Sized != 1 || c.Input <= 11 || c.Input+c.Output >= 40 {
		t.Errorf("with one that its client left: %+v", c)
	}
	if a, b := h.asks(t.Context(), "again", false); a.StatusCode != 200 {
		t.Fatalf("%s %s", a.Status, b)
	}
	before := h.server.asked()
	a, b := h.asks(t.Context(), "once more", false)
	var no struct {
		Error struct {
			Code   string
			Palyra struct{ Reason string }
		}
	}
	if err := json.Unmarshal(b, &no); err != nil || a.StatusCode != 429 || no.Error.Code != "insufficient_quota" || no.Error.Palyra.Reason != "budget_tokens" ||
		a.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%s %s", a.Status, b)
	}
	if n := h.server.asked(); n != before {
		t.Errorf("the provider was asked %d times", n-before)
	}
}
