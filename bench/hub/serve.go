package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"palyra/hub"
	"palyra/hub/local"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/tool"
	"palyra/transport/httpapi"
)

// The server's bounds. The benchmark raises those that one caller could reach.
const (
	active  = 8 // palyrad's default
	queue   = 4096
	streams = 20000
)

func beServer(dir string) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	table := tool.New(tool.Config{Program: filepath.Join(dir, "palyra-tool"), Workspaces: map[string]tool.Workspace{"src": {Path: work}}})
	k, err := kernel.Open(ctx, kernel.Config{StateDir: filepath.Join(dir, "state"), CellPath: filepath.Join(dir, "palyra-cell"), Tools: table})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	st, err := store.Open(filepath.Join(dir, "store"), store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	h, err := local.Open(ctx, local.Config{Kernel: k, Store: st, AllowSelf: true, Profile: "local", Readers: streams,
		Bounds: session.Bounds{Active: active, Queue: queue}, Tools: func() []hub.Tool { return nil }})
	if err != nil {
		return err
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		err = errors.Join(err, h.Close(now))
	}()
	s, err := httpapi.New(httpapi.Config{Hub: h, Limits: httpapi.Limits{Rate: -1,
		Streams: streams, StreamsPerCaller: streams, Conns: 2 * streams, ConnsPerCaller: 2 * streams}})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return s.Serve(ctx, httpapi.Listener{Listener: l})
}

func isFull(err error) bool {
	k := fault.KindOf(err)
	return k == fault.Busy || k == fault.Unavailable
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("hub: internal error: " + err.Error())
	}
	return b
}
