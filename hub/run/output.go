package run

import (
	"bytes"
	"context"
	"io"
	"unicode/utf8"

	"palyra/hub"
	"palyra/internal/canon"
)

// capture takes one stream of a call: the beginning stays in memory, and as soon
// as there is more the whole goes into an artifact of the run. It never fails:
// what cannot be kept is counted, and the result says that it was lost. Its
// methods are called by one goroutine at a time.
type capture struct {
	e    *Engine
	j    *job
	head []byte // at most hub.MaxInline bytes
	size int64

	pipe *io.PipeWriter // nil: everything is in head
	kept chan kept      // of capacity 1; the artifact, when it is durable
}

type kept struct {
	digest canon.Digest
	err    error
}

func (e *Engine) capture(j *job) *capture { return &capture{e: e, j: j} }

// Write implements io.Writer.
func (c *capture) Write(p []byte) (int, error) {
	c.size += int64(len(p))
	if c.j.left.n.Add(-int64(len(p))) < 0 {
		c.j.cancel(&Stop{State: "failed", Reason: ReasonBytes})
	}
	if c.pipe == nil {
		if len(c.head)+len(p) <= hub.MaxInline {
			c.head = append(c.head, p...)
			return len(p), nil
		}
		c.spill(p)
		c.head = append(c.head, p[:hub.MaxInline-len(c.head)]...)
		return len(p), nil
	}
	_, _ = c.pipe.Write(p) // kept has the error
	return len(p), nil
}

// spill begins the artifact with what there is and p.
func (c *capture) spill(p []byte) {
	r, w := io.Pipe()
	c.pipe, c.kept = w, make(chan kept, 1)
	mediaType := "application/octet-stream"
	if utf8.Valid(c.head) {
		mediaType = "text/plain; charset=utf-8"
	}
	// It ends with the pipe, which close closes; the call is not over before.
	go func() {
		a, err := c.e.store.PutArtifact(context.WithoutCancel(c.j.ctx), c.j.id, mediaType, r)
		_ = r.CloseWithError(io.ErrClosedPipe)
		k := kept{err: err}
		if err == nil {
			k.digest = a.Digest
		}
		c.kept <- k
	}()
	_, _ = w.Write(c.head)
	_, _ = w.Write(p)
}

// close returns what was captured. An artifact is durable then.
func (c *capture) close() hub.Output {
	o := hub.Output{Size: c.size}
	if c.pipe != nil {
		_ = c.pipe.Close()
		k := <-c.kept
		if k.err != nil {
			o.Lost, o.LostWhy = true, reasonOf(k.err)
			c.e.cfg.Log.Warn("keep output", "run", c.j.id, "error", k.err)
		} else {
			o.Artifact = k.digest
		}
	}
	text := c.head
	if c.pipe != nil {
		text = whole(text)
	}
	if utf8.Valid(text) && bytes.IndexByte(text, 0) < 0 {
		o.Text = string(text)
	} else {
		o.Base64 = c.head
	}
	return o
}

// whole cuts off the beginning of a character at the end.
func whole(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}
