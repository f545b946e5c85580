package run

import "context"

// Halt is the emergency stop of runs, as far as it has come.
type Halt struct {
	jobs []*job
}

// Halt cancels the runs that match chooses, as CancelAll does, and waits for
// nothing: no disk, and no lock that is held while one is waited for.
func (e *Engine) Halt(s Stop, match func(session, user string) bool) *Halt {
	return &Halt{e.cancel(s, match)}
}

// Cancelled returns how many runs it ended.
func (h *Halt) Cancelled() int { return len(h.jobs) }

// Wait waits until no program of the runs is left and every end is durable, or
// until ctx is done. It does not wait for a run that could not be written down
// and will be tried again. It returns of how many runs a program may still be
// there, and how many ends are not durable.
func (h *Halt) Wait(ctx context.Context) (left, unrecorded int) {
	for _, j := range h.jobs {
		if alive := j.program(); alive != nil {
			select {
			case <-alive:
			case <-ctx.Done():
			}
			if j.program() != nil {
				left++
			}
		}
	}
	for _, j := range h.jobs {
		select {
		case <-j.ended:
		case <-j.stuck:
		case <-ctx.Done():
		}
		select {
		case <-j.ended:
			if j.err != nil {
				unrecorded++
			}
		default:
			unrecorded++
		}
	}
	return left, unrecorded
}

// begins notes that a program of the run may be there from now on.
func (j *job) begins() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.alive = make(chan struct{})
}

// gone notes that none is. It may be called again.
func (j *job) gone() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.alive != nil {
		close(j.alive)
		j.alive = nil
	}
}

// program returns what is closed when the run's program is gone, nil if there is
// none. After a cancel none comes: the gate says that one begins before it looks
// for the last time whether the call was cancelled.
func (j *job) program() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.alive
}
