package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/internal/measure"
	"palyra/kernel/selfbench"
)

var benchCommand = command.Command{
	Name:  "bench",
	Short: "measure what a confined call costs on this host",
	Long: `
Runs a program that only exits, and /bin/true, in turns: unconfined (fork and
exec), in cells of each kind (built for the call, with a network made ahead,
with the shared void network, waiting ahead, tier B), as whole calls with
policy, receipt and journal in a directory of its own, and under bwrap where
that is installed. Each call is checked by its evidence. What it prints are
medians and their ratios within this run; medians of two runs do not compare.
With the default N it takes about a minute. Nothing is written to the journal
of the state directory.`,
	Flags: []command.Flag{
		{Name: "n", Arg: "N", Help: "samples of each path, program and arrival (default 50)", Parse: command.Count(100000)},
		{Name: "sparse", Help: "also with 100 ms between calls"},
		flagJSON,
	},
	Exits:    []command.Exit{exitOK, exitUsage, {Code: "7", Meaning: "no tier can be enforced here"}, exitBusy},
	Examples: []command.Example{{Line: "palyra bench --n 200", Does: "prints tables of medians, p99 and ratios"}},
}

func (a *app) bench(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	helper, err := a.cell()
	if err != nil {
		return nil, err
	}
	o := selfbench.Options{Cell: helper, N: int(command.Value(inv, "n", int64(50))),
		Progress: func(text string) { fmt.Fprintf(a.stderr, "palyra: %s\n", text) }}
	if inv.Has("sparse") {
		for _, p := range measure.Patterns() {
			o.Arrivals = append(o.Arrivals, p.Name)
		}
	}
	r, err := selfbench.Run(ctx, o)
	if err != nil {
		if fault.KindOf(err) == fault.Internal && ctx.Err() != nil {
			err = fault.New(fault.Canceled, "canceled", "measure", context.Cause(ctx))
		}
		return nil, err
	}
	var text strings.Builder
	r.WriteText(&text)
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var fields front.Document
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, err
	}
	return &front.Report{Text: text.String(), Fields: fields}, nil
}
