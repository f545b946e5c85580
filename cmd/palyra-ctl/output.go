package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
)

// printer hands on what a run's step writes, to the stream of the same name.
type printer struct {
	to  [2]io.Writer
	n   [2]int64 // bytes handed on
	say io.Writer
}

// printer returns the printer of a command, nil with --json.
func (a *app) printer(inv *command.Invocation) *printer {
	if inv.Has("json") {
		return nil
	}
	stdout, stderr := a.stdout, a.stderr
	if inv.Has("raw") {
		stdout, stderr = terminal.Raw(stdout), terminal.Raw(stderr)
	}
	return &printer{to: [2]io.Writer{front.Stdout(stdout), front.Stream{W: stderr, Name: "standard error"}}, say: a.stderr}
}

// follow hands on output as it comes, until its end or that of ctx.
func (p *printer) follow(ctx context.Context, h hub.Hub, q hub.OutputQuery) error {
	out, err := hub.ReadOutput.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		part, err := out.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := p.put(&part); err != nil {
			return err
		}
	}
}

func (p *printer) put(part *hub.OutputPart) error {
	i := 0
	if part.Stream == "stderr" {
		i = 1
	}
	n, err := p.to[i].Write(part.Bytes())
	p.n[i] += int64(n)
	return err
}

// rest hands on what is missing of an ended step's stream.
func (p *printer) rest(ctx context.Context, h hub.Hub, run string, i int, o hub.Output) error {
	if o.Artifact.IsZero() {
		b := o.Base64
		if b == nil {
			b = []byte(o.Text)
		}
		_, err := p.to[i].Write(b[min(p.n[i], int64(len(b))):])
		return err
	}
	if p.n[i] == o.Size {
		return nil
	}
	art, err := hub.GetArtifact.Do(ctx, h, hub.Caller{}, hub.ArtifactQuery{Run: run, Digest: o.Artifact.String()})
	if err != nil {
		return err
	}
	defer art.Close()
	if _, err := art.Seek(p.n[i], io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(p.to[i], art)
	return err
}

// runsOutput prints what the steps of a run have written, and with --follow what they write.
func (a *app) runsOutput(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	q := hub.OutputQuery{Run: inv.Operands[0], Step: int(command.Value(inv, "step", int64(0))), Until: hub.UntilNow}
	if inv.Has("follow") {
		q.Until = ""
	}
	out, err := hub.ReadOutput.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	done, p := &result{streamed: true}, a.printer(inv)
	var lost error
	for {
		part, err := out.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return done, lost
		case err != nil:
			return done, err
		case p == nil:
			err = front.WriteJSON(front.Stdout(a.stdout), part, "")
		default:
			err = p.put(&part)
		}
		if err != nil {
			return done, err
		}
		if part.Lost != "" {
			lost = errors.Join(lost, fault.New(fault.Unavailable, part.Lost, fmt.Sprintf("read %s of step %d", part.Stream, part.Step), fmt.Errorf("its rest wasn't kept (%s)", part.Lost)))
		}
	}
}
