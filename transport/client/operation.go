package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// Do implements hub.Hub. It ignores the caller: the daemon says who asks.
func (c *Client) Do(ctx context.Context, _ hub.Caller, op *hub.Operation, in any) (any, error) {
	r := requestOf(op, in)
	switch op {
	case hub.ReadTape.Operation:
		return c.tape(ctx, in.(hub.TapeQuery))
	case hub.ReadOutput.Operation:
		return c.outputs(ctx, in.(hub.OutputQuery))
	case hub.GetArtifact.Operation:
		return c.artifact(ctx, r)
	case hub.Backup.Operation:
		return c.backup(ctx, r, in.(hub.BackupTo).W)
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := c.whole(ctx, resp, r.op)
	if err != nil || op.Out == api.Type[[]byte]() {
		return b, err
	}
	out := reflect.New(op.Out)
	if op.Out == api.Type[hub.None]() {
		return hub.None{}, nil
	}
	if err := json.Unmarshal(b, out.Interface()); err != nil {
		return nil, fault.New(fault.Integrity, "bad_answer", r.op, err)
	}
	return out.Elem().Interface(), nil
}

// requestOf puts the parts of an operation's input where they belong.
func requestOf(op *hub.Operation, in any) *request {
	r := &request{op: op.Verb(), method: op.Method, path: op.Path, again: op.Method == http.MethodGet || op.Brake}
	parts, v := api.InputOf(op), reflect.ValueOf(in)
	at := func(index []int) reflect.Value {
		if len(index) == 0 {
			return v
		}
		return v.FieldByIndex(index)
	}
	for _, f := range parts.Path {
		s := fmt.Sprint(at(f.Index))
		if whole := "{" + f.Name + "...}"; strings.Contains(r.path, whole) {
			r.path = strings.Replace(r.path, whole, (&url.URL{Path: s}).EscapedPath(), 1)
		} else {
			r.path = strings.Replace(r.path, "{"+f.Name+"}", url.PathEscape(s), 1)
		}
	}
	for _, f := range parts.Query {
		switch x := at(f.Index); {
		case f.Many:
			for i := range x.Len() {
				r.where(f.Name, fmt.Sprint(x.Index(i)))
			}
		case !x.IsZero() || f.Needed:
			r.where(f.Name, fmt.Sprint(x))
		}
	}
	if parts.Match != nil {
		switch n := at(parts.Match).Int(); {
		case n != 0:
			r.set("If-Match", fmt.Sprintf(`"v%d"`, n))
		case op.Creates:
			r.set("If-None-Match", "*")
		default: // whichever there is
			r.set("If-Match", "*")
		}
	}
	key := ""
	if parts.Key != nil {
		key = at(parts.Key).String()
	}
	if op.Idempotent || op.Key && key != "" {
		r.keyed(key)
	}
	if parts.BodyType != nil {
		r.in = at(parts.Body).Interface()
	}
	return r
}

// backup copies the archive to w. The daemon's account of the content comes last; without
// it the written bytes aren't a whole backup.
func (c *Client) backup(ctx context.Context, r *request, w io.Writer) (info hub.BackupInfo, err error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return info, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(sink{w}, resp.Body); err != nil {
		if e, ok := errors.AsType[sinkError](err); ok {
			return info, fault.New(fault.Unavailable, "io_error", r.op, e.error)
		}
		return info, c.lost(ctx, r.op, err)
	}
	if err := json.Unmarshal([]byte(resp.Trailer.Get(hub.TrailerBackup)), &info); err != nil {
		return info, fault.New(fault.Integrity, "bad_answer", r.op, errors.New("it ends before its end"))
	}
	return info, nil
}

// sink marks the errors of a writer, to tell them from those of the connection.
type sink struct{ w io.Writer }

type sinkError struct{ error }

// Write implements io.Writer.
func (s sink) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if err != nil {
		err = sinkError{err}
	}
	return n, err
}
