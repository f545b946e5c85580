package hub

import "slices"

// The operations. To add one, add its value here, among the others of Operations, and
// the function that does it to palyra/hub/local.

// Sessions.
var (
	// CreateSession opens a session that belongs to the caller.
	CreateSession = define[NewSession, Session]("sessions.createSession", "POST /sessions", "session.write",
		"Open a session", Operation{Status: 201, Idempotent: true, Effect: Begins})
	ListSessions = define[SessionQuery, Page[Session]]("sessions.listSessions", "GET /sessions", "session.read",
		"List sessions, newest first")
	GetSession = define[string, Session]("sessions.getSession", "GET /sessions/{session}", "session.read",
		"Get a session")
	// EndSession gives back the space of its artifacts, which can't be read any more.
	// Ending twice is no error. The session of a Call has ended with it, and keeps its
	// artifacts until then.
	EndSession = define[SessionChange, Session]("sessions.endSession", "POST /sessions/{session}/end", "session.write",
		"Cancel the runs of a session and end it", Operation{Effect: Keeps})
)

// Runs and calls.
var (
	// StartRun returns the run without waiting. The same idempotency key with the same
	// request returns the same run; with another one it is fault.Usage
	// "idempotency_key_reused". A full queue is fault.Busy "queue_full".
	StartRun = define[NewRun, Run]("runs.startRun", "POST /runs", "run.start",
		"Queue a run in a session", Operation{Doc: "The answer does not wait for the run; its tape says how it goes on.", Status: 201, Idempotent: true, Effect: Begins})
	ListRuns = define[RunQuery, Page[Run]]("runs.listRuns", "GET /runs", "session.read",
		"List runs without their steps, newest first")
	GetRun = define[string, Run]("runs.getRun", "GET /runs/{run}", "session.read",
		"Get a run with its steps")
	// CancelRun returns when no process of the run is left.
	CancelRun = define[string, Run]("runs.cancelRun", "POST /runs/{run}/cancel", "run.cancel",
		"Cancel a run", Operation{Doc: "The answer comes when no process of the run is left. A run that has ended stays as " +
			"it is. Only a caller who may read runs is told the steps.", Ends: true, Effect: Keeps})
	// SendInput returns when the input is durable. Calls that it interrupts end later.
	SendInput = define[RunInput, RunInputTaken]("runs.sendInput", "POST /runs/{run}/input", "run.start",
		"Say something to an agent at work", Operation{Doc: "For the principal whose run it is. It's on the tape when the answer comes; the started step that " +
			"names it is the first that the model makes with it. queue_full: eight wait already. run_ended: nothing more " +
			"is told in this run.", Effect: Begins})
	// SetMetadata counts for runs that have ended, too.
	SetMetadata = define[RunMetadata, None]("runs.setMetadata", "POST /runs/{run}/metadata", "session.write",
		"Replace the metadata of a run", Operation{Doc: "For the principal whose run it is. The tape and the journal know nothing of it.", Status: 204, Effect: Begins})
	// ReadTape gives the events that are there, then the others as they come.
	ReadTape = define[TapeQuery, Tape]("runs.readTape", "GET /runs/{run}/tape", "session.read",
		"Follow the events of a run", Operation{Doc: "The events that are there, then the others as they come, until the run has ended. " +
			"Accept chooses between server-sent events and one JSON document a line; the events " +
			"are the same. The header Last-Event-ID, which counts more than after, says where " +
			"to go on. 204: the run has ended and there is no further event.",
			Media: []string{MediaSSE, MediaNDJSON}, Also: []int{204}})
	// ReadOutput gives the output that there is, then the rest as it comes.
	ReadOutput = define[OutputQuery, Outputs]("runs.readOutput", "GET /runs/{run}/output", "artifact.read",
		"Follow what the calls of a run write", Operation{Doc: "Parts of standard output and standard error, one JSON document a line: what " +
			"there is, then the rest while the programs run, until the run has ended. An empty line " +
			"is a sign of life. Who comes back says how much of which step was seen.",
			Media: []string{MediaNDJSON}})
	// GetArtifact opens an artifact whose content was checked. The caller closes it.
	GetArtifact = define[ArtifactQuery, Artifact]("runs.getArtifact", "GET /runs/{run}/artifacts/{digest}", "artifact.read",
		"Get an artifact of a run", Operation{Doc: "Served as bytes, whatever its tool called it; that name is in the header " +
			HeaderMediaType + ". One range is honoured.",
			Media: []string{MediaBytes}, Also: []int{206}})
	// Call returns the run when it has ended. A done ctx cancels it, unless it has an
	// idempotency key: then it goes on, and the same Call returns its outcome.
	Call = define[NewCall, Run]("calls.call", "POST /calls", "run.start",
		"Make one call and wait for it", Operation{Doc: "A run of one step. Without an Idempotency-Key it is cancelled when the client " +
			"goes; with one it goes on, and the same request gives what became of it. Prefer: " +
			"respond-async, which needs a session, answers 202 at once.",
			Also: []int{202}, Key: true, Prefer: true, Effect: Begins})
	ListTools = define[ToolQuery, ToolList]("calls.listTools", "GET /tools", "session.read",
		"List the tools")
	ListModels = define[None, Page[Model]]("models.listModels", "GET /models", "session.read",
		"List the language models", Operation{Doc: "One that the caller couldn't ask now has the reason code with which a turn of it would be refused."})
	GetUsage = define[UsageQuery, Usage]("models.getUsage", "GET /usage", "session.read",
		"Sum what turns of language models took", Operation{Doc: "By day (UTC) and model, those under way included, and what is left of each budget. A principal's sums stay " +
			"when runs are removed; those of a session go with it. Only who may manage members is told another principal's."})
	// FindFolders chooses among the workspaces there are, and gives no access to one.
	FindFolders = define[FolderQuery, Page[Folder]]("calls.findFolders", "POST /workspaces/find", "run.start",
		"Say which workspaces hold some folders of the host", Operation{Doc: "One item for each path, in their order: the innermost workspace that holds the folder, links " +
			"resolved, or nothing. Nothing outside the workspaces is looked at.", Effect: Keeps})
)

// What workspaces tell agents.
var (
	ListInstructions = define[None, Page[Instructions]]("instructions.listInstructions", "GET /instructions", "session.read",
		"List the project instructions that the caller has accepted, by workspace")
	// InspectInstructions makes calls, which policy decides and a person may be asked about.
	InspectInstructions = define[string, Instructions]("instructions.inspectInstructions", "POST /instructions/{workspace}/inspect", "run.start",
		"Read the project instructions of a workspace", Operation{Doc: "Calls of fs.list_dir and fs.read_file in the caller's name, which end with the answer.", Effect: Begins})
	// AcceptInstructions is for people: no token may, but the console's.
	AcceptInstructions = define[InstructionsAcceptance, Instructions]("instructions.acceptInstructions", "POST /instructions/{workspace}/accept", "approval.resolve",
		"Accept the project instructions of a workspace for the caller's agents", Operation{Doc: "At the socket, without a token, or in the console. The file is read again: another digest is " +
			"refused, and so is hidden text without anyway."})
	RevokeInstructions = define[string, None]("instructions.revokeInstructions", "DELETE /instructions/{workspace}", "approval.resolve",
		"Forget which project instructions of a workspace the caller has accepted", Operation{Status: 204, Effect: Keeps})
)

// Layers of staged workspaces.
var (
	ListLayers = define[LayerQuery, Page[Layer]]("layers.listLayers", "GET /layers", "session.read",
		"List the layers of sessions with staged workspaces")
	GetLayer = define[string, LayerChanges]("layers.getLayer", "GET /layers/{layer}", "session.read",
		"List what a layer changes", Operation{Doc: "Compared with the workspace as it is now. A layer that a call uses is refused: locked."})
	// GetPatch tells contents of files, as an artifact does.
	GetPatch = define[PatchQuery, LayerPatch]("layers.getPatch", "GET /layers/{layer}/patch", "artifact.read",
		"Get what a layer changes as a patch for git apply")
	DiscardLayer = define[string, None]("layers.discardLayer", "DELETE /layers/{layer}", "session.write",
		"Remove a layer with all that was written to it", Operation{Status: 204, Effect: Keeps})
)

// MCP servers.
var (
	ListServers = define[None, Page[Server]]("servers.listServers", "GET /servers", "policy.manage",
		"List the MCP servers")
	// AddServer starts nothing.
	AddServer = define[NewServer, Server]("servers.addServer", "POST /servers", "policy.manage",
		"Add an MCP server", Operation{Doc: "It is started when its tools are listed or called.", Status: 201, Idempotent: true})
	GetServer = define[string, Server]("servers.getServer", "GET /servers/{server}", "policy.manage",
		"Get an MCP server with its tools")
	// InspectServer makes a call, which policy decides and a person may be asked about.
	InspectServer = define[string, Server]("servers.inspectServer", "POST /servers/{server}/inspect", "policy.manage",
		"Start an MCP server and list its tools", Operation{Doc: "A call of mcp.serve in the caller's name, which ends with the answer.", Effect: Begins})
	AcceptServer = define[Acceptance, Server]("servers.acceptServer", "POST /servers/{server}/accept", "policy.manage",
		"Accept the tools that an MCP server listed last", Operation{Doc: "By the digest of the list; another list is refused: tool_changed."})
	RemoveServer = define[string, None]("servers.removeServer", "DELETE /servers/{server}", "policy.manage",
		"Remove an MCP server, and end it", Operation{Status: 204, Effect: Keeps})
	ListServerTools = define[string, ServerTools]("servers.listServerTools", "GET /servers/{server}/tools", "session.read",
		"List the accepted tools of an MCP server")
)

// Requests for approval and standing grants.
var (
	// ListApprovals reduces requests of other principals that the caller couldn't answer.
	ListApprovals = define[ApprovalQuery, Page[Approval]]("approvals.listApprovals", "GET /approvals", "approval.read",
		"List requests for approval, newest first")
	GetApproval = define[string, Approval]("approvals.getApproval", "GET /approvals/{approval}", "approval.read",
		"Get a request for approval")
	// ResolveApproval answers in the caller's name. A second answer is fault.Busy
	// "version_conflict" and changes nothing.
	ResolveApproval = define[Resolution, Approval]("approvals.resolveApproval", "POST /approvals/{approval}/resolve", "approval.resolve",
		"Answer a request for approval", Operation{Doc: "The first answer counts; a second one is refused with 412. If policy wants more " +
			"than one person, the request stays pending and says who said yes. A yes for a " +
			"session or a time makes a standing grant. If the budget reads has no room, the " +
			"answer comes without the card and its text.", Ends: true})
	PreviewApproval = define[PreviewQuery, Preview]("approvals.previewApproval", "POST /approvals/{approval}/preview", "approval.read",
		"Say what a yes would let through", Operation{Doc: "The pattern, and which recent requests without a yes it would have covered. It " +
			"changes nothing.", Effect: Keeps})
	ListGrants = define[None, Page[StandingGrant]]("approvals.listGrants", "GET /grants", "approval.read",
		"List the standing grants, oldest first")
	RevokeGrant = define[string, StandingGrant]("approvals.revokeGrant", "POST /grants/{grant}/revoke", "approval.resolve",
		"End a standing grant", Operation{Doc: "Calls that run because of it run on.", Effect: Keeps})
)

// Policy.
var (
	GetPolicy = define[None, PolicyInfo]("policy.getPolicy", "GET /policy", "policy.read",
		"List the policies in force")
	ListPolicySets = define[None, Page[KeptPolicySet]]("policy.listPolicySets", "GET /policy/sets", "policy.read",
		"List the policy sets that are kept, newest first")
	GetPolicySet = define[string, KeptPolicySet]("policy.getPolicySet", "GET /policy/sets/{digest}", "policy.read",
		"Get a policy set with its texts")
	ExplainPolicy = define[NewCall, Explanation]("policy.explainPolicy", "POST /policy/explain", "policy.read",
		"Decide a call and stop there", Operation{Effect: Keeps})
	TestPolicy = define[PolicyTestRequest, PolicyReport]("policy.testPolicy", "POST /policy/test", "policy.read",
		"Run the tests of a policy set", Operation{Effect: Keeps})
	// GetDecision finds a decision about a call, if the caller may see it in the journal,
	// and a denial of anything else as long as the process remembers it.
	GetDecision = define[string, DecisionReport]("policy.getDecision", "GET /policy/decisions/{decision}", "policy.read",
		"Say why something was allowed or denied", Operation{Doc: "By the id that every denial carries, or eight or more of its first digits."})
	ExportDecision = define[string, []byte]("policy.exportDecision", "GET /policy/decisions/{decision}/bundle", "policy.read",
		"Get a decision with all that it follows from", Operation{Doc: "For another Cedar engine to make it again.", Media: []string{MediaJSON}})
	DiffPolicy = define[PolicyDiffQuery, PolicyDiff]("policy.diffPolicy", "POST /policy/diff", "policy.manage",
		"Decide recent calls again by a candidate", Operation{Doc: "The candidate is a set, a unified diff against the one in force, or the change " +
			"that a denial offers. It shows what others asked for, and so needs more than " +
			"reading policy.", Effect: Keeps})
	Reload = define[None, PolicyInfo]("policy.reload", "POST /reload", "policy.manage",
		"Read the policies again", Operation{Doc: "On an error the old ones stay in force.", Effect: Mends})
)

// The journal.
var (
	// GetReceipt returns the receipt whole, as it is signed. Other principals' receipts
	// don't exist for the caller.
	GetReceipt = define[uint64, []byte]("journal.getReceipt", "GET /receipts/{index}", "journal.read",
		"Get the receipt of a journal entry: a Sigstore bundle", Operation{Media: []string{MediaBundle}})
	// VerifyReceipt tells callers about a receipt that they have already.
	VerifyReceipt = define[ReceiptCheck, ReceiptAccount]("journal.verifyReceipt", "POST /journal/receipt/verify", "journal.read",
		"Verify a receipt and say what it states", Operation{Doc: "By the keys of this palyrad's journal. One of another log, or a changed one, is refused, with " +
			"what doesn't hold.", Effect: Keeps, Body: 4 << 20})
	// GetReach needs policy.read as well, as statements do.
	GetReach = define[ReachQuery, Reach]("journal.getReach", "GET /reach", "journal.read",
		"Say what hosts the newest calls could reach, reached and were denied", Operation{Doc: "By session, from the newest entries of the journal. " +
			"A denied host has the rule that would allow it."})
	GetJournal = define[None, JournalStatus]("journal.getJournal", "GET /journal", "journal.read",
		"Get size, origin and checkpoint of the journal")
	// VerifyJournal reads all of the journal, so it's bounded: see MaxVerified.
	VerifyJournal = define[None, JournalAudit]("journal.verifyJournal", "POST /journal/verify", "journal.read",
		"Verify the whole journal", Operation{Doc: "Every hash, checkpoint, signature and statement, and that results belong to intents. A journal that isn't sound " +
			"is an error that says what doesn't hold. One of more than 50000 entries is refused.", Effect: Keeps})
	ListJournalEntries = define[JournalQuery, Page[JournalEntry]]("journal.listJournalEntries", "GET /journal/entries", "journal.read",
		"List journal entries, oldest first")
	ProveJournalEntry = define[uint64, JournalProof]("journal.proveJournalEntry", "GET /journal/entries/{index}/proof", "journal.read",
		"Prove that an entry is in the journal")
	ProveJournalConsistency = define[JournalSince, JournalConsistency]("journal.proveJournalConsistency", "GET /journal/consistency", "journal.read",
		"Prove that the journal extends what it was")
	GetCheckpoint = define[None, []byte]("journal.getCheckpoint", "GET /journal/checkpoint", "journal.read",
		"Get the newest checkpoint: a signed note, as C2SP tlog-tiles serves it", Operation{Media: []string{MediaText}})
	GetTile = define[string, []byte]("journal.getTile", "GET /journal/tile/{name...}", "journal.read",
		"Get a tile or entry bundle, as C2SP tlog-tiles names it", Operation{Media: []string{MediaBytes}})
)

// Tokens and members.
var (
	// CreateToken has the text of the token in its result and nowhere else.
	CreateToken = define[NewToken, TokenSecret]("access.createToken", "POST /tokens", "token.manage",
		"Make an API token", Operation{Doc: "Its text is in the answer and cannot be had again, not with the same Idempotency-" +
			"Key either.",
			Status: 201, Idempotent: true})
	ListTokens = define[TokenQuery, Page[Token]]("access.listTokens", "GET /tokens", "token.manage",
		"List API tokens, newest first")
	RevokeToken = define[TokenChange, Token]("access.revokeToken", "POST /tokens/{token}/revoke", "token.manage",
		"End a token for good", Operation{Effect: Keeps})
	// RotateToken makes a successor; the old token stays good for the overlap.
	RotateToken = define[Rotation, TokenSecret]("access.rotateToken", "POST /tokens/{token}/rotate", "token.manage",
		"Make the successor of a token", Operation{Status: 201, Idempotent: true})
	ListMembers = define[None, Page[Member]]("access.listMembers", "GET /members", "member.manage",
		"List who has which role")
	// PutMember lets no caller give more than it holds.
	PutMember = define[MemberPut, Member]("access.putMember", "PUT /members/{principal}", "member.manage",
		"Give a principal a role", Operation{Creates: true})
	// RemoveMember never removes the last owner.
	RemoveMember = define[MemberRemoval, None]("access.removeMember", "DELETE /members/{principal}", "member.manage",
		"Take a principal's role", Operation{Status: 204, Effect: Keeps})
)

// Devices.
var (
	ListDevices = define[None, Page[Device]]("devices.listDevices", "GET /devices", "token.manage",
		"List the paired devices")
	GetDevice = define[string, Device]("devices.getDevice", "GET /devices/{device}", "token.manage",
		"Get a paired device with its certificates")
	// RevokeDevice ends its connections and runs, too.
	RevokeDevice = define[string, Device]("devices.revokeDevice", "POST /devices/{device}/revoke", "token.manage",
		"End a device for good", Operation{Doc: "Its connections are cut at once, and runs that it began are cancelled. Only pairing it again gives it a certificate.", Effect: Keeps})
	// RemoveDevice gives back its place among its principal's devices.
	RemoveDevice = define[string, None]("devices.removeDevice", "DELETE /devices/{device}", "token.manage",
		"Forget a device that has ended", Operation{Doc: "One that was revoked or has expired; another is refused: version_conflict. The journal keeps what it did, and its id can be another's.", Status: 204, Effect: Keeps})
	RenewDevice = define[DeviceRenewal, DeviceChain]("devices.renewDevice", "POST /devices/{device}/renew", Authenticated,
		"Get the next certificate of the device that asks", Operation{Doc: "For the key that it was paired with, over a connection with the certificate that it has.", Effect: Mends})
)

// Pairings of devices. A device acts as the principal who began its pairing, who alone approves it.
var (
	// BeginPairing has the code in its result and nowhere else.
	BeginPairing = define[None, PairingCode]("pairings.beginPairing", "POST /pairings", "token.manage",
		"Make a code with which a device can pair", Operation{Doc: "Good for five minutes and one attempt. The code is in the answer and cannot be had again."})
	ListPairings = define[None, Page[Pairing]]("pairings.listPairings", "GET /pairings", "token.manage",
		"List the pairings that wait, and the last that have ended")
	GetPairing = define[PairingQuery, Pairing]("pairings.getPairing", "GET /pairings/{pairing}", "token.manage",
		"Get a pairing")
	// ApprovePairing ends the pairing if the digits aren't the device's.
	ApprovePairing = define[PairingApproval, Pairing]("pairings.approvePairing", "POST /pairings/{pairing}/approve", "token.manage",
		"Give a device that shows these digits a certificate", Operation{Doc: "Other digits end the pairing: pairing_over."})
	DenyPairing = define[string, Pairing]("pairings.denyPairing", "POST /pairings/{pairing}/deny", "token.manage",
		"Refuse or cancel a pairing", Operation{Ends: true, Effect: Keeps})
)

// The daemon itself.
var (
	GetStatus = define[None, Status]("daemon.getStatus", "GET /status", Authenticated,
		"Say how the daemon is, and who asks")
	GetDoctor = define[None, Doctor]("daemon.getDoctor", "GET /doctor", "config.read",
		"Name every control of the host that is missing")
	GetConfig = define[None, Page[Setting]]("daemon.getConfig", "GET /config", "config.read",
		"List the settings in force")
	// Stop returns when everything that the request names has ended.
	Stop = define[StopRequest, Stopped]("daemon.stop", "POST /stop", "run.cancel",
		"Emergency stop", Operation{Brake: true, Effect: Keeps})
	Resume = define[None, Stopped]("daemon.resume", "POST /resume", "policy.manage",
		"Take new runs again", Operation{Effect: Mends})
	// Backup writes to BackupTo.W.
	Backup = define[BackupTo, BackupInfo]("daemon.backup", "POST /backup", "backup.manage",
		"Get an encrypted copy of the working state", Operation{Doc: "The trailer " +
			TrailerBackup + " says what it holds; without it the copy is not whole.",
			Media: []string{MediaBytes}, Effect: Keeps})
)

// Operations returns all operations of a Hub.
func Operations() []*Operation {
	return append([]*Operation{
		CreateSession.Operation, ListSessions.Operation, GetSession.Operation, EndSession.Operation,
		StartRun.Operation, ListRuns.Operation, GetRun.Operation, CancelRun.Operation, SendInput.Operation, SetMetadata.Operation, ReadTape.Operation, ReadOutput.Operation, GetArtifact.Operation, Call.Operation, ListTools.Operation, ListModels.Operation, GetUsage.Operation, FindFolders.Operation,
		ListLayers.Operation, GetLayer.Operation, GetPatch.Operation, DiscardLayer.Operation, ApplyLayer.Operation, UndoLayer.Operation, RecoverLayer.Operation,
		ListInstructions.Operation, InspectInstructions.Operation, AcceptInstructions.Operation, RevokeInstructions.Operation,
		ListServers.Operation, AddServer.Operation, GetServer.Operation, InspectServer.Operation, AcceptServer.Operation, RemoveServer.Operation, ListServerTools.Operation,
		ListApprovals.Operation, GetApproval.Operation, ResolveApproval.Operation, PreviewApproval.Operation, ListGrants.Operation, RevokeGrant.Operation,
		GetPolicy.Operation, ListPolicySets.Operation, GetPolicySet.Operation, ExplainPolicy.Operation, TestPolicy.Operation, GetDecision.Operation, ExportDecision.Operation, DiffPolicy.Operation, Reload.Operation,
		GetReceipt.Operation, VerifyReceipt.Operation, GetReach.Operation, GetJournal.Operation, VerifyJournal.Operation, ListJournalEntries.Operation, ProveJournalEntry.Operation, ProveJournalConsistency.Operation, GetCheckpoint.Operation, GetTile.Operation,
		WatchJournal.Operation, CosignJournal.Operation, ListKeys.Operation, RotateKey.Operation,
		CreateToken.Operation, ListTokens.Operation, OpenConsole.Operation, ListPasskeys.Operation, RevokePasskey.Operation, RevokeToken.Operation, RotateToken.Operation, ListMembers.Operation, PutMember.Operation, RemoveMember.Operation,
		ListDevices.Operation, GetDevice.Operation, RevokeDevice.Operation, RemoveDevice.Operation, RenewDevice.Operation,
		GetAuthority.Operation, ReplaceRoot.Operation,
		BeginPairing.Operation, ListPairings.Operation, GetPairing.Operation, ApprovePairing.Operation, DenyPairing.Operation,
		GetStatus.Operation, GetDoctor.Operation, GetConfig.Operation, Stop.Operation, Resume.Operation, Backup.Operation,
	}, slices.Concat(vaultOperations(), memoryOperations())...)
}
