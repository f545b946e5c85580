package store

import (
	"context"
	"database/sql"
	"fmt"

	"palyra/internal/canon"
)

// JournalResult is a result in the journal: what became of a call.
type JournalResult struct {
	LogIndex uint64
	Call     string
	Session  string
	Run      string // "" for a call outside runs
	Outcome  string
	Capsule  canon.Digest
}

// JournalView is the journal as the cross-check sees it.
type JournalView interface {
	// Results calls f with each result, in the order of the log.
	Results(ctx context.Context, f func(JournalResult) error) error
}

// Difference is one point in which store and journal do not agree.
type Difference struct {
	Kind     string `json:"kind"`
	Run      string `json:"run"`
	Step     int    `json:"step"`
	Call     string `json:"call"`
	LogIndex uint64 `json:"log_index"`
	Detail   string `json:"detail"`
}

// The kinds of a Difference.
const (
	StepWithoutResult = "step_without_result" // a step that is done has no result in the journal
	ResultWithoutStep = "result_without_step" // a result of a run has no step
	ResultTwice       = "result_twice"        // a call has two results
	StepNotDone       = "step_not_done"       // there is a result, and the step does not know it
	OutcomeDiffers    = "outcome_differs"
	CapsuleDiffers    = "capsule_differs"
	IndexDiffers      = "log_index_differs"
	RunDiffers        = "run_differs"
)

// Report is what CheckJournal found.
type Report struct {
	Results     int          `json:"results"`   // of runs, in the journal
	Steps       int          `json:"steps"`     // done, in the store
	Retired     int          `json:"retired"`   // results whose steps Retire has removed
	Unsettled   int          `json:"unsettled"` // of those, NotLogged: the next start asks the journal
	Differences []Difference `json:"differences"`
}

// CheckJournal compares the steps that are done with the results in the
// journal: each has the other, and they say the same. Of steps that Retire has
// removed it is known how many there were, and up to where in the journal. While
// calls run, a result may be there before its step knows it (StepNotDone); at
// rest there is no difference. It is an oracle for tests and for doctor, not a gate: the
// journal is right where they differ.
func (s *Store) CheckJournal(ctx context.Context, j JournalView) (*Report, error) {
	rep := &Report{Differences: []Difference{}}
	// Steps before results: what is done by then has its result.
	done := make(map[int64]bool) // by row; false until its result was seen
	_, err := View(ctx, s, func(tx *Tx) (any, error) {
		return nil, tx.query("check journal", `SELECT n FROM steps WHERE state = 'done'`, nil, func(r *sql.Rows) error {
			var n int64
			err := r.Scan(&n)
			done[n] = false
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	rep.Steps = len(done)
	gone, err := View(ctx, s, func(tx *Tx) (retirement, error) {
		r, _, err := tx.retirement()
		return r, err
	})
	if err != nil {
		return nil, err
	}
	seen := make(map[int64]bool)
	err = j.Results(ctx, func(res JournalResult) error {
		if res.Run != "" {
			rep.Results++
		}
		n, step, err := s.stepOf(ctx, res.Call)
		if err != nil {
			return err
		}
		if step == nil {
			if res.Run != "" && res.LogIndex < gone.Through && uint64(rep.Retired) < gone.Results {
				rep.Retired++
			} else if res.Run != "" {
				rep.differs(ResultWithoutStep, &Step{Run: res.Run, CallID: res.Call, LogIndex: res.LogIndex}, res.Outcome)
			}
			return nil
		}
		if seen[n] {
			rep.differs(ResultTwice, step, fmt.Sprint("again at ", res.LogIndex))
			return nil
		}
		seen[n] = true
		if _, ok := done[n]; ok {
			done[n] = true
		}
		rep.compare(step, res)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for n, ok := range done {
		if !ok {
			step, err := s.stepAt(ctx, n)
			if err != nil {
				return nil, err
			}
			if step.LogIndex == NotLogged {
				rep.Unsettled++
				continue
			}
			rep.differs(StepWithoutResult, step, step.Outcome)
		}
	}
	return rep, nil
}

func (r *Report) differs(kind string, s *Step, detail string) {
	r.Differences = append(r.Differences, Difference{Kind: kind, Run: s.Run, Step: s.Index, Call: s.CallID, LogIndex: s.LogIndex, Detail: detail})
}

func (r *Report) compare(s *Step, res JournalResult) {
	if s.Run != res.Run {
		r.differs(RunDiffers, s, fmt.Sprintf("the journal says %.80q", res.Run))
	}
	if s.State != StepDone {
		r.differs(StepNotDone, s, fmt.Sprintf("it is %s, the journal says %s at %d", s.State, res.Outcome, res.LogIndex))
		return
	}
	if s.Outcome != res.Outcome {
		r.differs(OutcomeDiffers, s, fmt.Sprintf("%.40q, the journal says %.40q", s.Outcome, res.Outcome))
	}
	if s.Capsule != res.Capsule {
		r.differs(CapsuleDiffers, s, fmt.Sprintf("%s, the journal says %s", s.Capsule, res.Capsule))
	}
	if s.LogIndex != res.LogIndex {
		r.differs(IndexDiffers, s, fmt.Sprintf("%d, the journal says %d", s.LogIndex, res.LogIndex))
	}
}

// stepOf returns the step of a call and its row, nil if there is none.
func (s *Store) stepOf(ctx context.Context, call string) (n int64, step *Step, err error) {
	_, err = View(ctx, s, func(tx *Tx) (any, error) {
		ok, err := tx.row("check journal", `SELECT n FROM steps WHERE call = ? AND call <> ''`, []any{call}, &n)
		if err == nil && ok {
			step, err = tx.stepByCall(call)
		}
		return nil, err
	})
	return n, step, err
}

func (s *Store) stepAt(ctx context.Context, n int64) (*Step, error) {
	return View(ctx, s, func(tx *Tx) (*Step, error) {
		return one(tx, "step", fmt.Sprint(n), selectStep+` WHERE n = ?`, []any{n}, scanStep)
	})
}
