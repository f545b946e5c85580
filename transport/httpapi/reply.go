package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// json answers with a JSON value.
func (x *exchange) json(status int, v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	return x.bytes(status, hub.MediaJSON, b)
}

// version answers with a resource and its ETag; a client that has this version
// is told so.
func (x *exchange) versioned(status int, v any, version int64) error {
	tag := etag(version)
	x.w.Header().Set("ETag", tag)
	if x.r.Method == http.MethodGet && x.r.Header.Get("If-None-Match") == tag {
		x.deadline()
		x.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return x.json(status, v)
}

// bytes answers with a body as it is.
func (x *exchange) bytes(status int, media string, b []byte) error {
	h := x.w.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	x.deadline()
	x.w.WriteHeader(status)
	_, _ = x.w.Write(b) // the client may have gone
	return nil
}

// deadline starts the client's time to take the answer. Before it there was no deadline: a
// call may wait for as long as it needs.
func (x *exchange) deadline() {
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.s.lim.Write))
}

// encode writes a value as JSON: nil slices and maps as empty ones, text as it is.
func encode(v any) ([]byte, error) {
	rv := reflect.New(reflect.TypeOf(v)).Elem()
	rv.Set(reflect.ValueOf(v))
	fill(rv)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(rv.Interface()); err != nil {
		return nil, fault.New(fault.Internal, "internal", "encode answer", err)
	}
	return b.Bytes(), nil
}

// fill makes nil slices and maps empty, so that a list is a list in JSON. v is ours; values
// that it points to may not be, so fill copies them before a change.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if e := v.Type().Elem(); !v.IsNil() && e.Kind() == reflect.Struct {
			c := reflect.New(e)
			c.Elem().Set(v.Elem())
			fill(c.Elem())
			v.Set(c)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				fill(f)
			}
		}
	case reflect.Slice:
		e := v.Type().Elem().Kind()
		switch {
		case e == reflect.Uint8:
		case v.IsNil():
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		case e == reflect.Struct || e == reflect.Slice || e == reflect.Pointer:
			c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(c, v)
			for i := range c.Len() {
				fill(c.Index(i))
			}
			v.Set(c)
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}

// logLevel returns the log level of a refusal. Our own faults are errors, whatever their
// status. Exhausted resources and timeouts are worth a look.
func logLevel(err error) slog.Level {
	switch api.KindOf(err) {
	case fault.Internal, fault.Integrity, fault.BadState:
		return slog.LevelError
	case fault.Unavailable, fault.Timeout:
		if api.StatusOf(err) != http.StatusTooManyRequests { // which is the caller's own doing
			return slog.LevelWarn
		}
	}
	return slog.LevelDebug
}

// refuse answers with the problem that err is. x is nil before the route is known.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, x *exchange, err error) {
	id := idOf(r)
	p := api.ProblemOf(err, id, x == nil || !x.known || x.caller.ReadsPolicy)
	op, user := "", ""
	if x != nil && x.rt.Operation != nil {
		op, user = x.rt.ID, x.caller.User
	}
	s.note(r.Context(), id, op, user, p.Status, err)
	s.metrics.refused(p.Status)
	if r.Context().Err() != nil && errors.Is(err, r.Context().Err()) {
		return // the client is gone
	}
	if x != nil && x.rt.page {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.lim.Write))
		s.cfg.Console.Refuse(w, p)
		return
	}
	if (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	if x != nil && x.rt.foreign && s.cfg.OpenAI != nil {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.lim.Write))
		s.cfg.OpenAI.Refuse(w, r, p)
		return
	}
	b, encErr := json.Marshal(p)
	if encErr != nil {
		panic(fmt.Sprintf("httpapi: internal error: encode problem: %v", encErr))
	}
	h := w.Header()
	h.Del("ETag")
	h.Set("Content-Type", api.MediaProblem)
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.lim.Write))
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(b, '\n'))
}

// note logs a refusal, under the id that the caller was given.
func (s *Server) note(ctx context.Context, id, op, user string, status int, err error) {
	level := logLevel(err)
	if level > slog.LevelDebug {
		// Each principal has its own lines, and unknown callers share theirs.
		if _, ok := s.noise.take("problem " + user); !ok {
			level = slog.LevelDebug
		}
	}
	s.log.Log(ctx, level, "request refused", "request", id, "operation", op, "caller", user, "status", status, "error", err)
}
