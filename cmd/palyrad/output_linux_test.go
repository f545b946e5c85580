package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// TestLiveOutput: palyra call hands on what a program writes while it runs, and ends the call
// when its own reader has left. A reader of output hears of a kill, and afterwards the output
// of what was killed isn't there.
func TestLiveOutput(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	const flood = `{"argv":["/usr/bin/yes","0123456789"]}`
	cmd := exec.CommandContext(t.Context(), filepath.Join(p.bin, "palyra-ctl"), "call", "--socket", p.sock, "process.run", flood)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4*hub.MaxInline)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatalf("%v; %s", err, complaint.String())
	}
	if want := bytes.Repeat([]byte("0123456789\n"), len(first)); !bytes.HasPrefix(want, first) {
		t.Errorf("other bytes than the program's")
	}
	var runs hub.Page[hub.Run]
	r.must(200, "GET", "/api/v1/runs?state=in_progress", "", &runs)
	if len(runs.Items) != 1 {
		t.Fatalf("%d runs are under way", len(runs.Items))
	}
	out.Close()
	if err := cmd.Wait(); err == nil || !strings.Contains(complaint.String(), "write standard output") {
		t.Errorf("%v; %s", err, complaint.String())
	}
	var run hub.Run
	r.must(200, "GET", "/api/v1/runs/"+runs.Items[0].ID, "", &run)
	if run.State != hub.RunCancelled {
		t.Errorf("the run is %s (%s)", run.State, run.Reason)
	}

	var s hub.Session
	r.must(201, "POST", "/api/v1/sessions", "{}", &s)
	r.must(201, "POST", "/api/v1/runs", fmt.Sprintf(`{"session":%q,"steps":[{"tool":"process.run","input":%s}]}`, s.ID, flood), &run)
	path := "http://localhost/api/v1/runs/" + run.ID + "/output"
	resp, err := r.client().Get(path)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	defer resp.Body.Close()
	var part hub.OutputPart
	parts := json.NewDecoder(resp.Body)
	if err := parts.Decode(&part); err != nil || part.Stream != "stdout" || !strings.HasPrefix(part.Text, "0123456789\n") {
		t.Errorf("%+v, %v", part, err)
	}
	r.signal(syscall.SIGKILL)
	r.exit()
	for err == nil {
		err = parts.Decode(&part)
	}
	if err == io.EOF {
		t.Error("output that broke off looks whole")
	}
	gone(t, p.bin, 0)
	r = p.start()
	if resp, err = r.client().Get(path); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || len(bytes.TrimSpace(b)) > 0 {
		t.Errorf("afterwards: %q, %v", b, err)
	}
}
