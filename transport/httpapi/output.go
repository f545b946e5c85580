package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"palyra/hub"
)

// outputSize is the memory of a reader of output besides that of its place, in bytes: a part,
// encoded, and what net/http holds for a request.
const outputSize = 64 << 10

// readOutput writes parts as they come. There are few readers of output, and none waits long
// for a program that writes: each keeps its request, and so the part that it has taken.
func readOutput(x *exchange) error {
	if _, err := accepts(x.r.Header, hub.MediaNDJSON); err != nil {
		return err
	}
	in, err := x.input()
	if err != nil {
		return err
	}
	s := x.s.streams
	place, err := s.reserve(x.payer(), outputSize)
	if err != nil {
		x.w.Header().Set("Retry-After", "5")
		return err
	}
	defer place.Release()
	ctx, stop := s.while(x.r.Context())
	defer stop()
	out, err := hub.ReadOutput.Do(ctx, x.s.cfg.Hub, x.caller, in.(hub.OutputQuery))
	if err != nil {
		return err
	}
	defer out.Close()
	w := http.NewResponseController(x.w)
	if err := w.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) { // as in readBody
		return err
	}
	h := x.w.Header()
	h.Set("Content-Type", hub.MediaNDJSON)
	h.Set("X-Accel-Buffering", "no")
	x.deadline()
	x.w.WriteHeader(http.StatusOK)
	if x.r.Method == http.MethodHead {
		return nil
	}
	if err := x.parts(ctx, w, out); err != nil {
		x.s.log.Info("output not read to its end", "request", idOf(x.r), "error", err)
		panic(http.ErrAbortHandler) // it must not look whole
	}
	return nil
}

// parts writes the parts to their end. Each Next asks anew whether the caller may, so one that
// waits is asked again after lookEvery.
func (x *exchange) parts(ctx context.Context, w *http.ResponseController, out hub.Outputs) error {
	lim := &x.s.lim
	until, quiet := time.Now().Add(lim.StreamAge), time.Now()
	send := func(b []byte) error {
		x.deadline()
		quiet = time.Now()
		if _, err := x.w.Write(b); err != nil {
			return err
		}
		return w.Flush()
	}
	if err := send(nil); err != nil { // the client needn't wait for the header
		return err
	}
	for time.Now().Before(until) {
		p, err := next(ctx, out)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errNothing):
			if time.Since(quiet) < lim.Heartbeat {
				continue
			}
			err = send([]byte("\n"))
		case err == nil:
			var b []byte
			if b, err = encode(p); err == nil {
				err = send(b)
			}
		}
		if err != nil {
			return err
		}
	}
	return errors.New("its time is over")
}

var errNothing = errors.New("nothing new")

// next waits for a part for a moment.
func next(ctx context.Context, out hub.Outputs) (hub.OutputPart, error) {
	wait, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	p, err := out.Next(wait)
	if err != nil && !errors.Is(err, io.EOF) && wait.Err() != nil && ctx.Err() == nil {
		err = errNothing
	}
	return p, err
}
