package httpapi

import (
	"net/http"

	"palyra/kernel/hub"
	"palyra/transport/api"
)

// The permissions of the table; authz/access says who holds them.
const (
	permSessionRead     = "session.read"
	permSessionWrite    = "session.write"
	permRunStart        = "run.start"
	permRunCancel       = "run.cancel"
	permApprovalRead    = "approval.read"
	permApprovalResolve = "approval.resolve"
	permPolicyRead      = "policy.read"
	permPolicyManage    = "policy.manage"
	permTokenManage     = "token.manage"
	permMemberManage    = "member.manage"
	permConfigRead      = "config.read"
	permJournalRead     = "journal.read"
	permArtifactRead    = "artifact.read"
	permBackupManage    = "backup.manage"
)

// route is an operation and what serves it.
type route struct {
	api.Operation
	health bool // served also where nobody authenticates
	brake  bool // limited by a bucket of its own: other requests of the caller do not use it up
	serve  func(*exchange) error
}

const (
	get  = http.MethodGet
	post = http.MethodPost
)

// table is the one table of routes: what is not here cannot be asked.
func table() []route {
	var all []route
	for _, part := range [][]route{sessionRoutes(), runRoutes(), approvalRoutes(), policyRoutes(), journalRoutes(), accessRoutes(), daemonRoutes(), healthRoutes()} {
		all = append(all, part...)
	}
	for i := range all {
		if all[i].Status == 0 {
			all[i].Status = http.StatusOK
		}
	}
	return all
}

func pageParams(more ...api.Param) []api.Param {
	return append([]api.Param{
		{Name: "after", Doc: "next of the page before"},
		{Name: "limit", Doc: "items in a page, 1 to 1000; 100 without it", Integer: true},
	}, more...)
}

func sessionRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "createSession", Tag: "sessions", Method: post, Path: "/sessions", Permission: permSessionWrite,
			Summary: "Open a session", Request: api.Type[hub.NewSession](), Response: api.Type[hub.Session](), Status: 201, Idempotent: true, ETag: true},
			serve: createSession},
		{Operation: api.Operation{ID: "listSessions", Tag: "sessions", Method: get, Path: "/sessions", Permission: permSessionRead,
			Summary: "List sessions, newest first", Response: api.Type[hub.Page[hub.Session]](),
			Query: pageParams(api.Param{Name: "principal", Doc: "whose sessions"},
				api.Param{Name: "state", Doc: "their state", Enum: []string{hub.SessionOpen, hub.SessionEnded}})},
			serve: listSessions},
		{Operation: api.Operation{ID: "getSession", Tag: "sessions", Method: get, Path: "/sessions/{session}", Permission: permSessionRead,
			Summary: "Get a session", Response: api.Type[hub.Session](), ETag: true}, serve: getSession},
		{Operation: api.Operation{ID: "endSession", Tag: "sessions", Method: post, Path: "/sessions/{session}/end", Permission: permSessionWrite,
			Summary: "Cancel the runs of a session and end it", Response: api.Type[hub.Session](), ETag: true, IfMatch: true}, serve: endSession},
	}
}

func runRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "startRun", Tag: "runs", Method: post, Path: "/runs", Permission: permRunStart,
			Summary: "Queue a run in a session", Doc: "The answer does not wait for the run; its tape says how it goes on.",
			Request: api.Type[hub.NewRun](), Response: api.Type[hub.Run](), Status: 201, Idempotent: true, ETag: true}, serve: startRun},
		{Operation: api.Operation{ID: "listRuns", Tag: "runs", Method: get, Path: "/runs", Permission: permSessionRead,
			Summary: "List runs without their steps, newest first", Response: api.Type[hub.Page[hub.Run]](),
			Query: pageParams(api.Param{Name: "session", Doc: "the session that they belong to"}, api.Param{Name: "principal", Doc: "whose runs"},
				api.Param{Name: "state", Doc: "a state that they may be in", Many: true, Enum: []string{hub.RunPending, hub.RunAccepted, hub.RunInProgress,
					hub.RunWaitingApproval, hub.RunDone, hub.RunFailed, hub.RunCancelled}})},
			serve: listRuns},
		{Operation: api.Operation{ID: "getRun", Tag: "runs", Method: get, Path: "/runs/{run}", Permission: permSessionRead,
			Summary: "Get a run with its steps", Response: api.Type[hub.Run](), ETag: true}, serve: getRun},
		{Operation: api.Operation{ID: "cancelRun", Tag: "runs", Method: post, Path: "/runs/{run}/cancel", Permission: permRunCancel,
			Summary: "Cancel a run", Doc: "The answer comes when no process of the run is left. A run that has ended stays as it is.",
			Response: api.Type[hub.Run](), ETag: true}, serve: cancelRun},
		{Operation: api.Operation{ID: "readTape", Tag: "runs", Method: get, Path: "/runs/{run}/tape", Permission: permSessionRead,
			Summary: "Follow the events of a run", Doc: "The events that are there, then the others as they come, until the run has ended. " +
				"Accept chooses between server-sent events and one JSON document a line; the events are the same. The header " +
				"Last-Event-ID, which counts more than after, says where to go on. 204: the run has ended and there is no further event.",
			Query: []api.Param{{Name: "after", Doc: "sequence number of the last event already seen", Integer: true}},
			Media: []string{api.MediaSSE, api.MediaNDJSON}, Response: api.Type[hub.Event](), Also: []int{204}}, serve: readTape},
		{Operation: api.Operation{ID: "getArtifact", Tag: "runs", Method: get, Path: "/runs/{run}/artifacts/{digest}", Permission: permArtifactRead,
			Summary: "Get an artifact of a run", Doc: "Served as bytes, whatever its tool called it; that name is in the header " + api.HeaderMediaType +
				". One range is honoured.", Media: []string{api.MediaBytes}, Also: []int{206}, ETag: true}, serve: getArtifact},
		{Operation: api.Operation{ID: "call", Tag: "calls", Method: post, Path: "/calls", Permission: permRunStart,
			Summary: "Make one call and wait for it", Doc: "A run of one step. Without an Idempotency-Key it is cancelled when the client goes; with " +
				"one it goes on, and the same request gives what became of it. Prefer: respond-async, which needs a session, answers 202 at once.",
			Request: api.Type[hub.NewCall](), Response: api.Type[hub.Run](), Also: []int{202}, Key: true, Prefer: true, ETag: true}, serve: makeCall},
		{Operation: api.Operation{ID: "listTools", Tag: "calls", Method: get, Path: "/tools", Permission: permSessionRead,
			Summary: "List the tools", Response: api.Type[hub.Page[hub.Tool]]()}, serve: listTools},
	}
}

func approvalRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "listApprovals", Tag: "approvals", Method: get, Path: "/approvals", Permission: permApprovalRead,
			Summary: "List requests for approval, newest first", Response: api.Type[hub.Page[hub.Approval]](),
			Query: pageParams(api.Param{Name: "session", Doc: "the session that they belong to"}, api.Param{Name: "run", Doc: "the run that they belong to"},
				api.Param{Name: "state", Doc: "their state", Enum: []string{hub.ApprovalPending, hub.ApprovalApproved, hub.ApprovalDenied,
					hub.ApprovalExpired, hub.ApprovalWithdrawn}})},
			serve: listApprovals},
		{Operation: api.Operation{ID: "getApproval", Tag: "approvals", Method: get, Path: "/approvals/{approval}", Permission: permApprovalRead,
			Summary: "Get a request for approval", Response: api.Type[hub.Approval](), ETag: true}, serve: getApproval},
		{Operation: api.Operation{ID: "resolveApproval", Tag: "approvals", Method: post, Path: "/approvals/{approval}/resolve", Permission: permApprovalResolve,
			Summary: "Answer a request for approval", Doc: "The first answer counts; a second one is refused with 412. Where policy wants more than one person the request stays " +
				"pending and says who said yes. A yes for a session or a time makes a standing grant.",
			Request: api.Type[hub.Answer](), Response: api.Type[hub.Approval](), ETag: true, IfMatch: true}, serve: resolveApproval},
		{Operation: api.Operation{ID: "previewApproval", Tag: "approvals", Method: post, Path: "/approvals/{approval}/preview", Permission: permApprovalRead,
			Summary: "Say what a yes would let through", Doc: "The pattern, and which recent requests without a yes it would have covered. It changes nothing.",
			Request: api.Type[hub.Answer](), Response: api.Type[hub.Preview]()}, serve: previewApproval},
		{Operation: api.Operation{ID: "listGrants", Tag: "approvals", Method: get, Path: "/grants", Permission: permApprovalRead,
			Summary: "List the standing grants, oldest first", Response: api.Type[hub.Page[hub.StandingGrant]]()}, serve: listGrants},
		{Operation: api.Operation{ID: "revokeGrant", Tag: "approvals", Method: post, Path: "/grants/{grant}/revoke", Permission: permApprovalResolve,
			Summary: "End a standing grant", Doc: "What runs because of it runs on.", Response: api.Type[hub.StandingGrant]()}, serve: revokeGrant},
	}
}

func policyRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "getPolicy", Tag: "policy", Method: get, Path: "/policy", Permission: permPolicyRead,
			Summary: "List the policies in force", Response: api.Type[hub.PolicyInfo]()}, serve: getPolicy},
		{Operation: api.Operation{ID: "explainPolicy", Tag: "policy", Method: post, Path: "/policy/explain", Permission: permPolicyRead,
			Summary: "Decide a call and stop there", Request: api.Type[hub.NewCall](), Response: api.Type[hub.Explanation]()}, serve: explainPolicy},
		{Operation: api.Operation{ID: "testPolicy", Tag: "policy", Method: post, Path: "/policy/test", Permission: permPolicyRead,
			Summary: "Run the tests of a policy set", Request: api.Type[api.PolicyTestRequest](), Response: api.Type[hub.PolicyReport]()}, serve: testPolicy},
		{Operation: api.Operation{ID: "getDecision", Tag: "policy", Method: get, Path: "/policy/decisions/{decision}", Permission: permPolicyRead,
			Summary: "Say why something was allowed or denied", Doc: "By the id that every denial carries, or eight or more of its first digits.",
			Response: api.Type[hub.DecisionReport]()}, serve: getDecision},
		{Operation: api.Operation{ID: "exportDecision", Tag: "policy", Method: get, Path: "/policy/decisions/{decision}/bundle", Permission: permPolicyRead,
			Summary: "Get a decision with all that it follows from", Doc: "For another Cedar engine to make it again.", Media: []string{api.MediaJSON}}, serve: exportDecision},
		{Operation: api.Operation{ID: "diffPolicy", Tag: "policy", Method: post, Path: "/policy/diff", Permission: permPolicyManage,
			Summary: "Decide recent calls again by a candidate", Doc: "The candidate is a set, a unified diff against the one in force, or the change that " +
				"a denial offers. It shows what others asked for, and so needs more than reading policy.",
			Request: api.Type[hub.PolicyDiffQuery](), Response: api.Type[hub.PolicyDiff]()}, serve: diffPolicy},
		{Operation: api.Operation{ID: "reload", Tag: "policy", Method: post, Path: "/reload", Permission: permPolicyManage,
			Summary: "Read the policies again", Doc: "On an error the old ones stay in force.", Response: api.Type[hub.PolicyInfo]()}, serve: reload},
	}
}

func journalRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "getReceipt", Tag: "journal", Method: get, Path: "/receipts/{index}", Permission: permJournalRead,
			Summary: "Get the receipt of a journal entry: a Sigstore bundle", Media: []string{mediaBundle}}, serve: getReceipt},
		{Operation: api.Operation{ID: "getJournal", Tag: "journal", Method: get, Path: "/journal", Permission: permJournalRead,
			Summary: "Get size, origin and checkpoint of the journal", Response: api.Type[hub.JournalStatus]()}, serve: getJournal},
		{Operation: api.Operation{ID: "listJournalEntries", Tag: "journal", Method: get, Path: "/journal/entries", Permission: permJournalRead,
			Summary: "List journal entries, oldest first", Response: api.Type[hub.Page[hub.JournalEntry]](),
			Query: []api.Param{{Name: "from", Doc: "index of the first", Integer: true},
				{Name: "limit", Doc: "entries in a page, 1 to 1000; 100 without it", Integer: true}}},
			serve: listJournalEntries},
		{Operation: api.Operation{ID: "proveJournalEntry", Tag: "journal", Method: get, Path: "/journal/entries/{index}/proof", Permission: permJournalRead,
			Summary: "Prove that an entry is in the journal", Response: api.Type[hub.JournalProof]()}, serve: proveJournalEntry},
		{Operation: api.Operation{ID: "proveJournalConsistency", Tag: "journal", Method: get, Path: "/journal/consistency", Permission: permJournalRead,
			Summary: "Prove that the journal extends what it was", Response: api.Type[hub.JournalConsistency](),
			Query: []api.Param{{Name: "old", Doc: "the size that it had", Integer: true}}}, serve: proveJournalConsistency},
		{Operation: api.Operation{ID: "getCheckpoint", Tag: "journal", Method: get, Path: "/journal/checkpoint", Permission: permJournalRead,
			Summary: "Get the newest checkpoint: a signed note, as C2SP tlog-tiles serves it", Media: []string{api.MediaText}}, serve: getCheckpoint},
		{Operation: api.Operation{ID: "getTile", Tag: "journal", Method: get, Path: "/journal/tile/{name...}", Permission: permJournalRead,
			Summary: "Get a tile or entry bundle, as C2SP tlog-tiles names it", Media: []string{api.MediaBytes}}, serve: getTile},
	}
}

func accessRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "createToken", Tag: "access", Method: post, Path: "/tokens", Permission: permTokenManage,
			Summary: "Make an API token", Doc: "Its text is in the answer and cannot be had again, not with the same Idempotency-Key either.",
			Request: api.Type[hub.NewToken](), Response: api.Type[hub.TokenSecret](), Status: 201, Idempotent: true, ETag: true}, serve: createToken},
		{Operation: api.Operation{ID: "listTokens", Tag: "access", Method: get, Path: "/tokens", Permission: permTokenManage,
			Summary: "List API tokens, newest first", Response: api.Type[hub.Page[hub.Token]](),
			Query: pageParams(api.Param{Name: "principal", Doc: "whose tokens"})}, serve: listTokens},
		{Operation: api.Operation{ID: "revokeToken", Tag: "access", Method: post, Path: "/tokens/{token}/revoke", Permission: permTokenManage,
			Summary: "End a token for good", Response: api.Type[hub.Token](), ETag: true, IfMatch: true}, serve: revokeToken},
		{Operation: api.Operation{ID: "rotateToken", Tag: "access", Method: post, Path: "/tokens/{token}/rotate", Permission: permTokenManage,
			Summary: "Make the successor of a token", Request: api.Type[api.RotationRequest](), Response: api.Type[hub.TokenSecret](),
			Status: 201, Idempotent: true, ETag: true, IfMatch: true}, serve: rotateToken},
		{Operation: api.Operation{ID: "listMembers", Tag: "access", Method: get, Path: "/members", Permission: permMemberManage,
			Summary: "List who has which role", Response: api.Type[hub.Page[hub.Member]]()}, serve: listMembers},
		{Operation: api.Operation{ID: "putMember", Tag: "access", Method: http.MethodPut, Path: "/members/{principal}", Permission: permMemberManage,
			Summary: "Give a principal a role", Request: api.Type[api.MemberChange](), Response: api.Type[hub.Member](), ETag: true,
			IfMatch: true, Creates: true}, serve: putMember},
		{Operation: api.Operation{ID: "removeMember", Tag: "access", Method: http.MethodDelete, Path: "/members/{principal}", Permission: permMemberManage,
			Summary: "Take a principal's role", Status: 204, IfMatch: true}, serve: removeMember},
	}
}

func daemonRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "getStatus", Tag: "daemon", Method: get, Path: "/status", Permission: api.Authenticated,
			Summary: "Say how the daemon is, and who asks", Response: api.Type[hub.Status]()}, serve: getStatus},
		{Operation: api.Operation{ID: "getDoctor", Tag: "daemon", Method: get, Path: "/doctor", Permission: permConfigRead,
			Summary: "Name every control of the host that is missing", Response: api.Type[hub.Doctor]()}, serve: getDoctor},
		{Operation: api.Operation{ID: "getConfig", Tag: "daemon", Method: get, Path: "/config", Permission: permConfigRead,
			Summary: "List the settings in force", Response: api.Type[hub.Page[hub.Setting]]()}, serve: getConfig},
		{Operation: api.Operation{ID: "stop", Tag: "daemon", Method: post, Path: "/stop", Permission: permRunCancel,
			Summary: "Emergency stop", Request: api.Type[hub.StopRequest](), Response: api.Type[hub.Stopped]()}, brake: true, serve: stop},
		{Operation: api.Operation{ID: "resume", Tag: "daemon", Method: post, Path: "/resume", Permission: permPolicyManage,
			Summary: "Take new runs again", Response: api.Type[hub.Stopped]()}, serve: resume},
		{Operation: api.Operation{ID: "backup", Tag: "daemon", Method: post, Path: "/backup", Permission: permBackupManage,
			Summary: "Get an encrypted copy of the working state", Doc: "The trailer " + api.TrailerBackup + " says what it holds; without it the copy is not whole.",
			Request: api.Type[hub.BackupRequest](), Media: []string{api.MediaBytes}}, serve: backup},
		{Operation: api.Operation{ID: "getOpenAPI", Tag: "daemon", Method: get, Path: "/openapi.json", Permission: api.Authenticated,
			Summary: "Get this document", Media: []string{api.MediaJSON}}, serve: getOpenAPI},
	}
}

func healthRoutes() []route {
	return []route{
		{Operation: api.Operation{ID: "livez", Tag: "health", Method: get, Path: "/livez", Root: true, Permission: api.Public,
			Summary: "Is the process alive", Media: []string{api.MediaText}}, health: true, serve: livez},
		{Operation: api.Operation{ID: "readyz", Tag: "health", Method: get, Path: "/readyz", Root: true, Permission: api.Public,
			Summary: "Can calls be served", Doc: "503 with the class of what is wrong.", Media: []string{api.MediaText}}, health: true, serve: readyz},
		{Operation: api.Operation{ID: "metrics", Tag: "health", Method: get, Path: "/metrics", Root: true, Permission: permConfigRead,
			Summary: "Get metrics in the text format of Prometheus", Media: []string{mediaPrometheus}}, health: true, serve: getMetrics},
	}
}
