package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/internal/fault"
)

func bench(ctx context.Context, stderr io.Writer, inv *command.Invocation) (*front.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fault.New(fault.Refused, "helper_unusable", "find palyra-cell", err)
	}
	helper, err := installed.Find(exe, "palyra-cell")
	if err != nil {
		return nil, err
	}
	o := selfbench.Options{Cell: helper, N: int(command.Value(inv, "n", int64(50))),
		Progress: func(text string) { fmt.Fprintf(stderr, "palyra: %s\n", text) }}
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
