package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"palyra/internal/fault"
)

// run starts a program of the system with values on its standard input alone, and returns what it
// wrote on standard output. Its environment is built.
func run(ctx context.Context, op string, stdin []byte, path string, args ...string) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(bounded, path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second // a child of it may keep the pipes open
	out, errs := &bounded64K{}, &bounded64K{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, errs
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = gaveUp(op, ctx.Err())
	case bounded.Err() != nil:
		err = gaveUp(op, bounded.Err())
	case err == nil && out.over:
		err = fault.New(fault.Integrity, "bad_answer", op, fmt.Errorf("%s wrote more than %d bytes", path, maxOutput))
	case err != nil:
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			err = &exited{err: err, said: firstLine(errs.b)}
		}
	}
	if err != nil {
		clear(out.b)
		return nil, err
	}
	return out.b, nil
}

// exited is a program that failed. It says on standard error why, and no value.
type exited struct {
	err  error
	said string
}

func (e *exited) Error() string {
	if e.said == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%v: %q", e.err, e.said)
}

func (e *exited) Unwrap() error { return e.err }

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line[:min(len(line), 200)]
}

const maxOutput = 64 << 10

// bounded64K keeps the first of what is written to it.
type bounded64K struct {
	b    []byte
	over bool
}

func (w *bounded64K) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-len(w.b))
	w.b = append(w.b, p[:n]...)
	w.over = w.over || n < len(p)
	return len(p), nil
}

// gaveUp is the error of a wait that the context ended.
func gaveUp(op string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.Canceled, "canceled", op, err)
	}
	return fault.New(fault.Timeout, "timeout", op, errors.New("no answer in time"))
}
