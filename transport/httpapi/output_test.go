package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api/apitest"
)

// parts reads n parts, all there are if n is negative, and counts heartbeats.
func parts(t *testing.T, body *bufio.Reader, n int) (got []hub.OutputPart, beats int, err error) {
	t.Helper()
	for n < 0 || len(got) < n {
		line, err := body.ReadString('\n')
		if err != nil {
			return got, beats, err
		}
		if line == "\n" {
			beats++
			continue
		}
		var p hub.OutputPart
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		got = append(got, p)
	}
	return got, beats, nil
}

// TestReadOutput: parts reach the reader while the run goes on, heartbeats between them, and
// the end looks like one.
func TestReadOutput(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Heartbeat = time.Millisecond })
	run := r.run(apitest.ToolWait)
	r.hub.Write(run, "stdout", "one\n")
	_, resp := r.follow(run+"/output", hub.MediaNDJSON)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != hub.MediaNDJSON || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	body := bufio.NewReader(resp.Body)
	if got, _, err := parts(t, body, 1); err != nil || got[0].Text != "one\n" || got[0].Stream != "stdout" {
		t.Errorf("%+v, %v", got, err)
	}
	if line, err := body.ReadString('\n'); err != nil || line != "\n" {
		t.Errorf("heartbeat %q, %v", line, err)
	}
	r.hub.Write(run, "stderr", "two\n")
	r.hub.Finish(run)
	if got, _, err := parts(t, body, -1); err != io.EOF || len(got) != 1 || got[0].Text != "two\n" {
		t.Errorf("%+v, %v", got, err)
	}
	_, resp = r.follow(run+"/output?stdout=4", hub.MediaNDJSON)
	if got, _, err := parts(t, bufio.NewReader(resp.Body), -1); err != io.EOF || len(got) != 1 || got[0].Stream != "stderr" {
		t.Errorf("on from byte 4: %+v, %v", got, err)
	}
	_, resp = r.follow("run_"+strings.Repeat("0", 32)+"/output", hub.MediaNDJSON)
	if resp.StatusCode != 404 {
		t.Errorf("of no run: %d", resp.StatusCode)
	}
}

// TestOutputPlaces: a reader has the places of what it holds, and one that goes, or whose time
// is over, gives them back.
func TestOutputPlaces(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Streams, c.Limits.StreamsPerCaller = 16, 5 })
	run := r.run(apitest.ToolWait)
	c, resp := r.follow(run+"/output", hub.MediaNDJSON)
	if n := r.streams.count(); resp.StatusCode != 200 || n != 1+2*outputSize/readerSize {
		t.Fatalf("%d, %d places", resp.StatusCode, n)
	}
	if _, resp := r.follow(run+"/output", hub.MediaNDJSON); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("second reader: %d", resp.StatusCode)
	}
	c.Close()
	eventually(t, "a reader that went has no place", func() bool { return r.streams.count() == 0 })
	r = newRig(t, func(c *Config) { c.Limits.StreamAge = time.Millisecond })
	_, resp = r.follow(r.run(apitest.ToolWait)+"/output", hub.MediaNDJSON)
	if _, _, err := parts(t, bufio.NewReader(resp.Body), -1); err != io.ErrUnexpectedEOF {
		t.Errorf("old reader ends with %v", err)
	}
}

// TestOutputDrains: the end of Serve waits for no reader of output, and no program.
func TestOutputDrains(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Drain = time.Minute })
	_, resp := r.follow(r.run(apitest.ToolWait)+"/output", hub.MediaNDJSON)
	r.stop()
	if _, _, err := parts(t, bufio.NewReader(resp.Body), -1); err != io.ErrUnexpectedEOF {
		t.Errorf("output ends with %v", err)
	}
}

// noMore lets a reader read until asked is over, as the hub does when rights end.
type noMore struct{ asked int }

// Next implements hub.Outputs.
func (o *noMore) Next(ctx context.Context) (hub.OutputPart, error) {
	if o.asked--; o.asked < 0 {
		return hub.OutputPart{}, fault.New(fault.Denied, "permission_denied", "check permission", nil)
	}
	<-ctx.Done()
	return hub.OutputPart{}, ctx.Err()
}

// Close implements hub.Outputs.
func (o *noMore) Close() error { return nil }

// TestOutputAsksAgain: a reader that waits is asked again whether it may, and its end isn't
// that of the output.
func TestOutputAsksAgain(t *testing.T) {
	if _, err := next(t.Context(), &noMore{asked: 1}); !errors.Is(err, errNothing) {
		t.Errorf("%v", err)
	}
	r := newRig(t)
	h := hub.NewTable(hub.ReadOutput.By(func(context.Context, hub.Caller, hub.OutputQuery) (hub.Outputs, error) { return &noMore{asked: 2}, nil }))
	run := r.run(apitest.ToolWait)
	for op, e := range r.hub.Table {
		if op != hub.ReadOutput.Operation {
			h[op] = e
		}
	}
	r.hub.Table = h
	_, resp := r.follow(run+"/output", hub.MediaNDJSON)
	if _, _, err := parts(t, bufio.NewReader(resp.Body), -1); err != io.ErrUnexpectedEOF {
		t.Errorf("ends with %v", err)
	}
}
