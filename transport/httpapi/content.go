package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// Answers that are too large for memory.

// content answers with an artifact or one range of it.
func (x *exchange) content(a hub.Artifact) error {
	info := a.Info()
	h := x.w.Header()
	tag := `"` + info.Digest + `"`
	h.Set("ETag", tag)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Disposition", "attachment")
	h.Set(hub.HeaderMediaType, visible(info.MediaType))
	h.Set(hub.HeaderCreated, info.Created.UTC().Format(time.RFC3339Nano))
	if x.r.Header.Get("If-None-Match") == tag {
		x.deadline()
		x.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	first, n, status := int64(0), info.Size, http.StatusOK
	if r := x.r.Header.Get("Range"); r != "" {
		from, count, ok := parseRange(r, info.Size)
		switch {
		case !ok: // more than one, or another unit: the whole is an answer too
		case count <= 0:
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
			return answered(416, "read artifact", fmt.Errorf("it has %d bytes", info.Size))
		default:
			first, n, status = from, count, http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+n-1, info.Size))
		}
	}
	if _, err := a.Seek(first, io.SeekStart); err != nil {
		return fault.New(fault.Unavailable, "io_error", "read artifact", err)
	}
	h.Set("Content-Type", hub.MediaBytes)
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	x.deadline()
	x.w.WriteHeader(status)
	if x.r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.CopyN(patient{x}, a, n); err != nil {
		x.s.log.Info("artifact not delivered", "request", idOf(x.r), "error", err)
		panic(http.ErrAbortHandler) // it must not look whole
	}
	return nil
}

// parseRange reads "bytes=a-", "bytes=a-b" or "bytes=-n". ok is false for
// anything else; count is not positive if nothing of it exists.
func parseRange(s string, size int64) (first, count int64, ok bool) {
	r, ok := strings.CutPrefix(s, "bytes=")
	a, b, dash := strings.Cut(r, "-")
	if !ok || !dash {
		return 0, 0, false
	}
	from, errA := parseUint(a)
	to, errB := parseUint(b)
	switch {
	case a == "" && errB == nil:
		n := min(int64(to), size)
		return size - n, n, true
	case errA != nil || b != "" && (errB != nil || to < from):
		return 0, 0, false
	case b == "":
		return int64(from), size - int64(from), true
	}
	return int64(from), min(int64(to), size-1) - int64(from) + 1, true
}

// visible turns foreign text into a header value.
func visible(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1
		}
		return c
	}, s[:min(len(s), 256)])
}

// patient writes an answer in pieces, each with its own deadline: the whole may take long,
// but a client that stops reading is cut off.
type patient struct{ x *exchange }

// Write implements io.Writer.
func (p patient) Write(b []byte) (int, error) {
	p.x.deadline()
	return p.x.w.Write(b)
}

func backup(x *exchange) error {
	in, err := x.input()
	if err != nil {
		return err
	}
	h, to := x.w.Header(), in.(hub.BackupTo)
	w := &begun{w: patient{x}, first: func() {
		h.Set("Content-Type", hub.MediaBytes)
		h.Set("Content-Disposition", `attachment; filename="palyra.backup.age"`)
		h.Set("Trailer", hub.TrailerBackup)
	}}
	to.W = w
	info, err := hub.Backup.Do(x.r.Context(), x.s.cfg.Hub, x.caller, to)
	if err != nil && !w.yes {
		return err
	}
	if err != nil {
		x.s.log.Error("backup broken off", "request", idOf(x.r), "error", err)
		panic(http.ErrAbortHandler) // it must not look whole
	}
	if !w.yes {
		return fault.New(fault.Internal, "internal", "write backup", errors.New("nothing was written"))
	}
	b, err := json.Marshal(info)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h.Set(hub.TrailerBackup, string(b))
	return nil
}

// begun calls first before the first byte and remembers that there was one.
type begun struct {
	w     io.Writer
	first func()
	yes   bool
}

// Write implements io.Writer.
func (b *begun) Write(p []byte) (int, error) {
	if !b.yes {
		b.yes = true
		b.first()
	}
	return b.w.Write(p)
}
