package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// patience bounds the call that proves a setup.
const patience = 2 * time.Minute

// prove starts palyra as the agent will, has it run true, and reports what became of that.
func (a *app) prove(ctx context.Context, s server, r *front.Report) {
	text, reason, receipt, err := call(ctx, s)
	if err != nil {
		text = err.Error()
	}
	if receipt != nil {
		r.Fields["receipt"] = *receipt
		r.Text += fmt.Sprintf("proved: true ran in a cell, receipt %d (palyra journal show %d)\n", *receipt, *receipt)
		r.Text += "next: start the agent as ever; palyra approvals watch --answer answers what it waits for\n"
		if slices.Contains(s.Args, "--staged") {
			r.Text += "      palyra changes show lists what it wrote, and palyra changes apply brings it to the project\n"
		}
		return
	}
	r.Exit = front.Findings
	r.Fields["call"] = text
	r.Text += "set up, but a call of true was not executed: " + front.Escape(front.OneLine(text)) + "\n"
	switch fault.Code(reason) {
	case fault.ErrOverlayUnavailable:
		r.Text += "this host can't stage a workspace: with --direct calls write to the workspace itself\n"
	case fault.ErrUnreachable:
		r.Text += "start palyrad in another terminal, then run this again: the entry names its socket\n"
	}
}

// call makes the call and returns its receipt's index if it was executed, else the words and
// the reason code of the answer.
func call(ctx context.Context, s server) (said, reason string, receipt *int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, s.Command, append(s.Args[:len(s.Args):len(s.Args)], "--patience", "10s")...)
	var errs strings.Builder
	c.Stderr = &errs
	c.WaitDelay = 10 * time.Second
	in, err := c.StdinPipe()
	if err != nil {
		return "", "", nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", "", nil, err
	}
	if err := c.Start(); err != nil {
		return "", "", nil, err
	}
	defer func() {
		in.Close()
		werr := c.Wait()
		if err != nil && errs.Len() > 0 {
			err = fmt.Errorf("%s", strings.TrimSpace(errs.String()))
		} else if err != nil && werr != nil {
			err = werr
		}
	}()
	lines := bufio.NewReader(io.LimitReader(out, 16<<20))
	for _, q := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"palyra-setup","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"process_run","arguments":{"argv":["true"]}}}`,
	} {
		if _, err := io.WriteString(in, q+"\n"); err != nil {
			return "", "", nil, err
		}
		var m struct {
			ID     *int
			Error  *struct{ Message string }
			Result struct {
				StructuredContent struct {
					Outcome, Message, Reason string
					Exit                     *int
					Receipt                  *int64
				}
			}
		}
		for m.ID == nil { // notifications have none
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return "", "", nil, err
			}
			if err := json.Unmarshal(line, &m); err != nil {
				return "", "", nil, err
			}
		}
		got := m.Result.StructuredContent
		switch {
		case m.Error != nil:
			return m.Error.Message, "", nil, nil
		case *m.ID == 1:
		case got.Outcome == "executed" && got.Receipt != nil && got.Exit != nil && *got.Exit == 0:
			return "", "", got.Receipt, nil
		case got.Message != "":
			return got.Outcome + ": " + got.Message, got.Reason, nil, nil
		default:
			return got.Outcome, got.Reason, nil, nil
		}
	}
	return "no answer", "", nil, nil
}
