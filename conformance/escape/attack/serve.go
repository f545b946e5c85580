package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// serveWord makes the program an MCP server with one tool, probe, which makes the attempt that its
// words name and answers with what it printed. It's what the battery has behind palyrad's gateway.
const serveWord = "serve"

// serve answers until its input ends. A probe's output goes to standard error as well, so that it's
// known of a probe that doesn't come to its end.
func serve() error {
	protocol := os.Stdout
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Arguments struct {
					Words []string `json:"words"`
				} `json:"arguments"`
			} `json:"params"`
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			return err
		}
		var result any
		switch m.Method {
		case "initialize":
			result = map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]string{"name": "attack", "version": "1"}}
		case "tools/list":
			result = map[string]any{"tools": []any{map[string]any{"name": "probe", "inputSchema": map[string]string{"type": "object"}}}}
		case "tools/call":
			text, err := printed(m.Params.Arguments.Words)
			if err != nil {
				return err
			}
			result = map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}}
		default:
			continue
		}
		if err := json.NewEncoder(protocol).Encode(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result}); err != nil {
			return err
		}
	}
	return in.Err()
}

// printed makes an attempt and returns what it printed.
func printed(words []string) (string, error) {
	p, ok := probes()[words[0]]
	if !ok {
		return "", fmt.Errorf("unknown probe %q", words[0])
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	before := os.Stdout
	os.Stdout = w
	text := make(chan string)
	go func() {
		b, _ := io.ReadAll(io.TeeReader(r, os.Stderr))
		text <- string(b)
	}()
	emit(result{Case: words[0], Outcome: "STARTED"})
	detail, err := p(parse(words[1:]))
	emit(report(words[0], detail, err))
	os.Stdout = before
	w.Close()
	return <-text, nil
}
