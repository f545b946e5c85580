// Package session defines sessions: a session belongs to one principal, is open until it
// has ended, and makes one run at a time, or several that said that they may be made so.
//
//	s, err := session.Create(ctx, st, "uid:1000", "deploy", 256)
//	s, err = session.End(ctx, st, s.ID, s.Version) // no run can be started in it any more
//
// [Lines] is the order in which runs get their turn: one active run per session, or a bounded
// number of parallel ones, a bounded queue behind, and a bounded number of runs at work in all.
//
// The package checks no permission: palyra/hub/local decides who may see or end which
// session.
package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"palyra/hub/store"
	"palyra/internal/fault"
)

// MaxTitle bounds a title, in bytes.
const MaxTitle = 200

// next is the table of states. A change that isn't in it can't happen.
var next = map[store.SessionState][]store.SessionState{
	store.SessionOpen:  {store.SessionEnded},
	store.SessionEnded: {},
}

// Create opens a session of a principal that has fewer than most open;
// otherwise it is fault.Busy "too_many".
func Create(ctx context.Context, st *store.Store, principal, title string, most int) (*store.Session, error) {
	s, err := New(principal, title)
	if err != nil {
		return nil, err
	}
	err = st.Update(ctx, func(tx *store.Tx) error {
		switch n, err := tx.OpenSessions(principal); {
		case err != nil:
			return err
		case n >= most:
			return fault.New(fault.Busy, "too_many", "create session", fmt.Errorf("%.80q has %d open", principal, n)).
				WithHint("end one: palyra sessions end")
		}
		return tx.CreateSession(s)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// New returns a session that no store has yet.
func New(principal, title string) (*store.Session, error) {
	const op = "create session"
	switch {
	case principal == "":
		return nil, fault.New(fault.Denied, "not_a_member", op, errors.New("no principal asks"))
	case len(title) > MaxTitle || !utf8.ValidString(title) || strings.ContainsRune(title, 0):
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("a title is at most %d bytes of UTF-8", MaxTitle))
	}
	return &store.Session{Principal: principal, Title: title, State: store.SessionOpen}, nil
}

// End ends a session, if version is its current one or 0. Ending one that has
// ended is no error and changes nothing. Its runs are the caller's to cancel.
func End(ctx context.Context, st *store.Store, id string, version int64) (s *store.Session, err error) {
	err = st.Update(ctx, func(tx *store.Tx) error {
		s, err = EndIn(tx, id, version)
		return err
	})
	return s, err
}

// EndIdle is End of a session in which no run is under way; ErrLocked if one is.
func EndIdle(ctx context.Context, st *store.Store, id string, version int64) (s *store.Session, err error) {
	err = st.Update(ctx, func(tx *store.Tx) error {
		live := []store.RunState{store.RunPending, store.RunAccepted, store.RunInProgress, store.RunWaitingApproval}
		runs, err := tx.Runs(store.RunFilter{Session: id, States: live}, store.Page{Limit: 1})
		if err != nil {
			return err
		}
		if len(runs) > 0 {
			return fault.New(fault.Busy, "locked", fmt.Sprintf("end session %q", id), fmt.Errorf("run %s is under way", runs[0].ID)).
				WithHint("wait for it, or cancel it")
		}
		s, err = EndIn(tx, id, version)
		return err
	})
	return s, err
}

// EndIn is End within a transaction.
func EndIn(tx *store.Tx, id string, version int64) (*store.Session, error) {
	s, err := tx.Session(id)
	if err != nil || s.State == store.SessionEnded {
		return s, err
	}
	if version != 0 && version != s.Version {
		return nil, fault.New(fault.Busy, "version_conflict", fmt.Sprintf("end session %q", id),
			fmt.Errorf("it is version %d by now", s.Version)).WithHint("read it again")
	}
	s.State, s.Ended = store.SessionEnded, time.Now().UTC()
	return s, tx.UpdateSession(s)
}
