package clients

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// house is a palyrad of the test's own, whose user may answer their own questions.
type house struct {
	t           *testing.T
	bin, socket string
	config      string
	url         string                       // of /v1
	stop        func()                       // ends palyrad; start begins another
	within      func(argv []string) []string // the command line that runs another where palyrad is; nil: it itself
	token       string
	server      *provider
}

// The scopes that a client takes.
var scopes = []string{"run.start", "session.read", "session.write", "artifact.read", "run.cancel"}

// turns of the scripted models.
var scripts = map[string]string{
	"looks":   `{"turns":[{"text":"I look.","calls":[{"name":"fs_list_dir","input":{"workspace":"src"}}]},{"text":"There is one file."},{"text":"I said so."}]}`,
	"calls":   `{"turns":[{"text":"I ask you.","calls":[{"name":"get_weather","input":{"city":"Oslo"}}]},{"text":"It rains."}]}`,
	"touches": `{"turns":[{"text":"I make it.","calls":[{"name":"process_run","input":{"argv":["touch","/tmp/made"]}}]},{"text":"Done."}]}`,
}

func newHouse(t *testing.T) *house {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "palyrad")); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close() // palyrad takes it
	dir := t.TempDir()
	h := &house{t: t, bin: bin, socket: filepath.Join(dir, "sock"), url: "http://" + at + "/v1/", server: newProvider(t)}
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "src", "a.txt"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("[state]\ndir = %q\n[listen]\nsocket = %q\nhttp = %q\n[workspaces.src]\npath = %q\n[approvals]\nallow_self = true\n[agent]\nmodel = \"looks\"\n",
		filepath.Join(dir, "state"), h.socket, at, filepath.Join(dir, "src"))
	for name, dialect := range map[string]string{"real": "openai_chat", "reasons": "openai"} {
		text += fmt.Sprintf("[models.%s]\nprovider = %q\nurl = \"http://%s/v1\"\nnetwork = %q\n", name, dialect, h.server.at, h.server.at)
	}
	for name, script := range scripts {
		file := filepath.Join(dir, name+".json")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("[models.%s]\nprovider = \"scripted\"\nscript = %q\n", name, file)
	}
	h.config = filepath.Join(dir, "palyrad.toml")
	if err := os.WriteFile(h.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.mint()
	return h
}

// mint makes the token of the clients.
func (h *house) mint() {
	h.t.Helper()
	args := []string{"token", "create", "--ttl", "1h", "--json", "clients"}
	for _, s := range scopes {
		args = append(args, "--scope", s)
	}
	var made struct {
		Token struct {
			Secret string `json:"secret"`
		} `json:"token"`
	}
	if err := json.Unmarshal([]byte(h.palyra(args...)), &made); err != nil || made.Token.Secret == "" {
		h.t.Fatalf("no token: %v", err)
	}
	h.token = made.Token.Secret
}

// start begins palyrad and returns when it's ready.
func (h *house) start() {
	t := h.t
	argv := []string{filepath.Join(h.bin, "palyrad"), "--config", h.config}
	if h.within != nil {
		argv = h.within(argv)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	var log bytes.Buffer
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			fmt.Fprintln(&log, s.Text())
			if strings.Contains(s.Text(), `"msg":"ready"`) {
				ready <- true
			}
		}
		if err := s.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
			fmt.Fprintln(&log, err)
		}
		close(ready)
	}()
	h.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		for range ready {
		}
		if t.Failed() {
			t.Logf("palyrad: %v\n%s", err, log.String())
		}
	})
	t.Cleanup(h.stop)
	if !<-ready {
		t.Fatal("palyrad ended")
	}
}

// palyra runs a command and returns its output.
func (h *house) palyra(args ...string) string {
	h.t.Helper()
	out, err := exec.Command(filepath.Join(h.bin, "palyra"), append(args, "--socket", h.socket)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("palyra %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// provider is a server of Chat Completions, which does what the last message says, and of Responses,
// which says why if it's asked for a summary.
type provider struct {
	t  *testing.T
	at string // address, not the loopback's: a cell has its own
	*httptest.Server

	mu     sync.Mutex
	bodies []request     // of the requests
	go1    chan struct{} // closed when "slow" may go on
	gone   chan struct{} // closed when the client of "hang" has gone
}

type request struct {
	Model       string            `json:"model"`
	Stream      bool              `json:"stream"`
	Temperature *float64          `json:"temperature"`
	Tools       []json.RawMessage `json:"tools"`
	Format      struct {
		Type string `json:"type"`
	} `json:"response_format"`
	Messages []struct {
		Role    string          `json:"role"`
		Content string          `json:"content"`
		Call    string          `json:"tool_call_id"`
		Calls   json.RawMessage `json:"tool_calls"`
	} `json:"messages"`
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t, go1: make(chan struct{}), gone: make(chan struct{})}
	as, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			l, err := net.Listen("tcp4", net.JoinHostPort(ip.IP.String(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			p.at = l.Addr().String()
			p.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(p.serve)}}
			p.Start()
			t.Cleanup(p.Close)
			return p
		}
	}
	t.Fatal("this host has no address but the loopback's")
	return nil
}

// last returns the last request.
func (p *provider) last() request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[len(p.bodies)-1]
}

func (p *provider) reasons(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Reasoning struct {
			Summary string `json:"summary"`
		} `json:"reasoning"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		p.t.Error(err)
	}
	summary := "[]"
	if in.Reasoning.Summary == "auto" {
		summary = `[{"type":"summary_text","text":"Two and two."}]`
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []string{
		`{"type":"response.output_item.done","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":` + summary + `,"encrypted_content":"gA=="}}`,
		`{"type":"response.output_text.delta","output_index":1,"delta":"Four."}`,
		`{"type":"response.output_item.done","output_index":1,"item":{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"Four."}]}}`,
		`{"type":"response.completed","response":{"usage":{"input_tokens":11,"output_tokens":4}}}`,
	} {
		fmt.Fprintf(w, "data: %s\n\n", event)
	}
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/responses" {
		p.reasons(w, r)
		return
	}
	var in request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.URL.Path != "/v1/chat/completions" || !in.Stream {
		p.t.Errorf("%s: %v, %+v", r.URL.Path, err, in)
	}
	p.mu.Lock()
	p.bodies = append(p.bodies, in)
	p.mu.Unlock()
	m := in.Messages[len(in.Messages)-1]
	if m.Content == "busy" {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error":{"message":"slowly","type":"rate_limit_error","code":"rate_limit_exceeded"}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(delta, finish string) {
		end := "null"
		if finish != "" {
			end = `"` + finish + `"`
		}
		fmt.Fprintf(w, "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", delta, end)
		w.(http.Flusher).Flush()
	}
	end := func(finish string) {
		send(`{}`, finish)
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\ndata: [DONE]\n\n")
	}
	send(`{"role":"assistant","content":""}`, "")
	switch {
	case m.Role == "tool":
		send(`{"content":"It is `+m.Content+` "}`, "")
		send(`{"content":"degrees."}`, "")
		end("stop")
	case len(in.Tools) > 0:
		send(`{"tool_calls":[{"index":0,"id":"call_7","type":"function","function":{"name":"get_weather","arguments":""}}]}`, "")
		send(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`, "")
		send(`{"tool_calls":[{"index":0,"function":{"arguments":"\"Oslo\"}"}}]}`, "")
		end("tool_calls")
	case in.Format.Type == "json_schema":
		send(`{"content":"{\"city\":\"Oslo\"}"}`, "")
		end("stop")
	case m.Content == "slow":
		send(`{"content":"one "}`, "")
		select {
		case <-p.go1:
		case <-r.Context().Done():
		}
		send(`{"content":"two"}`, "")
		end("stop")
	case m.Content == "hang":
		send(`{"content":"one "}`, "")
		<-r.Context().Done()
		close(p.gone)
	case m.Content == "long":
		send(`{"content":"It begins"}`, "")
		end("length")
	default:
		send(`{"content":"You said `+m.Content+`."}`, "")
		end("stop")
	}
}
