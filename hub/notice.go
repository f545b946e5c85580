package hub

import (
	"context"
	"strings"
)

// Topics is a set of subjects that have operations of their own.
type Topics uint8

// The topics, by what is under them.
const (
	TopicQuestions Topics = 1 << iota // requests for approval, standing grants
	TopicRuns                         // sessions, runs and their steps
	TopicLayers                       // layers of staged workspaces
	TopicJournal                      // entries of the journal
	TopicPolicy                       // the set in force and those that are kept
	TopicAccess                       // members, tokens, devices
	TopicServers                      // MCP servers
	TopicDaemon                       // the emergency stop, settings
)

// EveryTopic has them all.
const EveryTopic = TopicQuestions | TopicRuns | TopicLayers | TopicJournal | TopicPolicy | TopicAccess | TopicServers | TopicDaemon

// topics has the name of each topic, and the operation by which a caller would look: whoever may
// not do that isn't told of it. nil: every caller is.
var topics = []struct {
	name string
	look *Operation
}{
	{"questions", ListApprovals.Operation},
	{"runs", ListRuns.Operation},
	{"layers", ListLayers.Operation},
	{"journal", ListJournalEntries.Operation},
	{"policy", GetPolicy.Operation},
	{"access", ListTokens.Operation},
	{"servers", ListServers.Operation},
	{"daemon", nil},
}

// String returns the names with a blank between them.
func (t Topics) String() string {
	var names []string
	for i := range topics {
		if t&(1<<i) != 0 {
			names = append(names, topics[i].name)
		}
	}
	return strings.Join(names, " ")
}

// Looked returns the topics whose operation may reports to be the caller's.
func Looked(may func(*Operation) bool) (t Topics) {
	for i := range topics {
		if topics[i].look == nil || may(topics[i].look) {
			t |= 1 << i
		}
	}
	return t
}

// Notices tells one reader that there is something to look at again, and nothing of what it is.
// It holds the topics since the last Next and no more, however slow its reader is.
type Notices interface {
	// Next blocks until something under the topics has changed. It returns fault.Denied once the
	// caller's token or membership has ended, and the error of its ctx. It must not be called
	// concurrently.
	Next(ctx context.Context) (Topics, error)
	Close() error
}

// Notifier makes Notices for a caller, of what that caller may look at. Too many of one token, one
// principal or all are fault.Busy "too_many".
type Notifier interface {
	Notices(c Caller) (Notices, error)
}
