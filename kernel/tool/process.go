package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/kernel"
)

// The tools for processes in the background. A process is the run of a call of process.run, which
// palyrad knows and the gate doesn't: palyrad says what the answer is before the call is decided,
// and palyra-tool hands it back, so that policy, receipt and journal have it like any other call.
// process.stop ends the process as its Effect, behind decision and intent.

// Processes has the processes in the background. Those of other principals don't exist:
// fault.NotFound, as for an unknown id.
type Processes interface {
	// List returns those of a principal that haven't ended, newest first, of one session if one is
	// named.
	List(ctx context.Context, who policy.Entity, session string) ([]toolproto.Process, error)
	Status(ctx context.Context, who policy.Entity, id string) (toolproto.Process, error)
	Output(ctx context.Context, who policy.Entity, in *toolproto.ProcessOutputInput) (toolproto.ProcessOutputResult, error)
	// Stop ends one, and returns when none of its programs is left and its result is on record.
	// It's no error if it has ended.
	Stop(ctx context.Context, who policy.Entity, id string) error
	// Holding returns those that have a session's layer mounted, by the layer's name.
	Holding(layer string) []string
}

// The limits of process.run in the background where the call names none.
const (
	backgroundWall = time.Hour
	backgroundCPU  = 20 * time.Minute
)

// background sets the limits of a call in the background: those that the operator declared for a
// workspace are for programs that somebody waits for.
func background(l *isolate.Limits) { l.Wall, l.CPU = backgroundWall, backgroundCPU }

// maxTold bounds what palyrad says of processes, in bytes.
const maxTold = 8 << 20

// expandProcess asks palyrad and puts its answer behind the input.
func expandProcess(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error) {
	var told any
	var effect kernel.Effect
	var err error
	switch in := input.(type) {
	case *toolproto.ProcessListInput:
		r := toolproto.ProcessListResult{}
		r.Processes, err = t.cfg.Processes.List(ctx, who, in.Session)
		told = r
	case *toolproto.ProcessStatusInput:
		told, err = t.cfg.Processes.Status(ctx, who, in.ID)
	case *toolproto.ProcessOutputInput:
		told, err = t.cfg.Processes.Output(ctx, who, in)
	case *toolproto.ProcessStopInput:
		told, err = t.cfg.Processes.Status(ctx, who, in.ID)
		effect = &stopping{t.cfg.Processes, who, in.ID}
	default:
		err = fault.New(fault.Internal, "internal", "expand tool", fmt.Errorf("a %T came in", input))
	}
	if err != nil {
		return nil, err
	}
	x, err := expandPlain(ctx, t, e, who, input)
	if err != nil {
		return nil, err
	}
	payload, err := canon.Marshal(told)
	if err != nil {
		return nil, err
	}
	x.Effect = effect
	x.Stdin, x.StdinMost = append(append(x.Stdin, '\n'), payload...), maxTold
	return x, nil
}

// stopping is the kernel.Effect of process.stop.
type stopping struct {
	processes Processes
	who       policy.Entity
	id        string
}

var _ kernel.Effect = (*stopping)(nil)

// Begin implements kernel.Effect: the process is stopped before the tool says that it is.
func (s *stopping) Begin(ctx context.Context) error { return s.processes.Stop(ctx, s.who, s.id) }

// End implements kernel.Effect.
func (s *stopping) End(bool, int) {}

// Close implements kernel.Effect.
func (s *stopping) Close() {}

// holding names the processes in the background that keep a layer from its readers.
func (t *Table) holding(err error, layer string) error {
	f, ok := err.(*fault.Error)
	if !ok || !errors.Is(err, fault.ErrLocked) || t.cfg.Processes == nil {
		return err
	}
	if ids := t.cfg.Processes.Holding(layer); len(ids) > 0 {
		return f.WithHint("a program in the background has it mounted: palyra runs cancel " + strings.Join(ids, ", ") + ", or process.stop, ends it")
	}
	return err
}
