package world

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Request is an HTTP request that arrived, over TLS or not.
type Request struct {
	Host, Method, Path string
	Query              string
	Authorization      string // the whole header
	Protocol           string // "HTTP/2.0"
	Status             int    // of the answer
	Body               string // its beginning, as far as it was read
}

// maxBody is how much of a request's body is kept.
const maxBody = 1 << 10

// body keeps the beginning of what is read.
type body struct {
	io.ReadCloser
	w  *World
	of *Request // guarded by w.mu
}

// Read keeps what it reads.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.of.Body += string(p[:min(n, maxBody-len(b.of.Body))])
	return n, err
}

// Requests returns those that arrived, in order.
func (w *World) Requests() (out []Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		out = append(out, *r)
	}
	return out
}

// Want sets the token without which nothing below /private is given out: as Bearer, or as a
// password in Basic. Without one nothing is there.
func (w *World) Want(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token = token
}

// Hold has requests for /hold wait until release is called, or their client is gone. held says how
// many wait: a test looks at a program in the midst of its run.
func (w *World) Hold() (held func() int, release func()) {
	c := make(chan struct{})
	w.mu.Lock()
	w.held, w.holding = c, 0
	w.mu.Unlock()
	held = func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.holding
	}
	return held, sync.OnceFunc(func() { close(c) })
}

func (w *World) hold(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	c := w.held
	w.holding++
	w.changedLocked()
	w.mu.Unlock()
	select {
	case <-c: // never, if nothing is held
	case <-r.Context().Done():
	}
}

// noted is a handler whose requests are noted before they are answered.
func (w *World) noted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		n := &Request{Host: r.Host, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Authorization: r.Header.Get("Authorization"), Protocol: r.Proto}
		w.mu.Lock()
		w.requests = append(w.requests, n)
		w.changedLocked()
		w.mu.Unlock()
		r.Body = &body{r.Body, w, n}
		s := &noting{ResponseWriter: out, w: w, of: n}
		h.ServeHTTP(s, r)
		s.note(http.StatusOK)
	})
}

// noting notes the code of an answer.
type noting struct {
	http.ResponseWriter
	w  *World
	of *Request // guarded by w.mu
}

func (n *noting) note(code int) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.of.Status == 0 {
		n.of.Status = code
	}
}

// WriteHeader notes the code.
func (n *noting) WriteHeader(code int) {
	n.note(code)
	n.ResponseWriter.WriteHeader(code)
}

// Write notes that all is well, if nothing else was said.
func (n *noting) Write(b []byte) (int, error) {
	n.note(http.StatusOK)
	return n.ResponseWriter.Write(b)
}

// Flush passes on.
func (n *noting) Flush() { n.ResponseWriter.(http.Flusher).Flush() }

// private serves what wants the token: /private/repo.git, /private/mod, /private/simple, an npm
// registry at /private/npm/, /private/echo, which says what it was sent, /private/echo/trailers,
// which does so behind an empty answer, and a model at /private/v1.
func (w *World) private() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/repo.git/", w.git)
	mux.HandleFunc("/mod/", modules)
	mux.HandleFunc("/simple/", w.simple)
	mux.HandleFunc("/npm/", registry)
	mux.HandleFunc("/mcp/{kind}", w.mcp)
	mux.HandleFunc("/echo", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(out, "%s\n", r.Header.Get("Authorization"))
		io.Copy(out, r.Body)
	})
	mux.HandleFunc("/echo/trailers", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Trailer", "X-Echo")
		out.Header().Set("Content-Length", "0") // over HTTP/2 trailers can come all the same
		out.WriteHeader(http.StatusOK)
		out.(http.Flusher).Flush()
		out.Header().Set("X-Echo", r.Header.Get("Authorization"))
	})
	mux.HandleFunc("POST /v1/chat/completions", complete)
	return http.StripPrefix("/private", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		token := w.token
		w.mu.Unlock()
		_, password, _ := r.BasicAuth()
		if token == "" || r.Header.Get("Authorization") != "Bearer "+token && password != token {
			out.Header().Set("WWW-Authenticate", `Basic realm="world"`)
			http.Error(out, "the world wants a token", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(out, r)
	}))
}

// NPM is the name of the package that the npm registry has, at 1.0.0: a module that says where it's
// from.
const NPM = "fromworld"

// registry serves it (npm install --registry https://NAME/private/npm/).
func registry(out http.ResponseWriter, r *http.Request) {
	const file = "fromworld-1.0.0.tgz"
	b := tarred([][2]string{
		{"package/package.json", `{"name":"fromworld","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", "module.exports = 'from the world'\n"}})
	switch r.URL.Path {
	case "/npm/" + NPM:
		sum := sha512.Sum512(b)
		out.Header().Set("Content-Type", "application/json")
		json.NewEncoder(out).Encode(map[string]any{"name": NPM, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": map[string]any{
			"name": NPM, "version": "1.0.0", "main": "index.js", "dist": map[string]string{
				"tarball":   "https://" + r.Host + "/private/npm/" + NPM + "/-/" + file,
				"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}}}})
	case "/npm/" + NPM + "/-/" + file:
		out.Header().Set("Content-Type", "application/octet-stream")
		out.Write(b)
	default:
		http.NotFound(out, r)
	}
}

// complete is a model's answer to a chat, in pieces if that was asked for, as OpenAI's interface
// has it.
func complete(out http.ResponseWriter, r *http.Request) {
	var q struct {
		Stream   bool
		Messages []struct{ Content string }
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&q); err != nil || len(q.Messages) == 0 {
		http.Error(out, `{"error":{"message":"no messages"}}`, http.StatusBadRequest)
		return
	}
	words := strings.Fields("you said: " + q.Messages[len(q.Messages)-1].Content)
	if !q.Stream {
		out.Header().Set("Content-Type", "application/json")
		json.NewEncoder(out).Encode(map[string]any{"object": "chat.completion", "choices": []any{map[string]any{"index": 0, "finish_reason": "stop",
			"message": map[string]string{"role": "assistant", "content": strings.Join(words, " ")}}}})
		return
	}
	out.Header().Set("Content-Type", "text/event-stream")
	for _, word := range words {
		b, err := json.Marshal(map[string]any{"object": "chat.completion.chunk", "choices": []any{map[string]any{"index": 0, "delta": map[string]string{"content": word + " "}}}})
		if err != nil {
			return
		}
		fmt.Fprintf(out, "data: %s\n\n", b)
		out.(http.Flusher).Flush()
	}
	io.WriteString(out, "data: [DONE]\n\n")
}

func tarred(files [][2]string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	var err error
	for _, f := range files {
		e := t.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))})
		if e == nil {
			_, e = io.WriteString(t, f[1])
		}
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, t.Close(), z.Close()); err != nil {
		panic("world: internal error: " + err.Error()) // memory doesn't fail
	}
	return b.Bytes()
}
