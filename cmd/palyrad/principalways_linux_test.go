package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/ident"
)

// nones are the kinds of things that operations name, and an id of none of each.
var nones = map[string]func() string{
	"session": func() string { return ident.New(ident.Session) }, "run": func() string { return ident.New(ident.Run) }, "approval": func() string { return ident.New(ident.Approval) },
	"token": func() string { return ident.New(ident.Token) }, "grant": func() string { return ident.New(ident.Grant) }, "pairing": func() string { return ident.New(ident.Pairing) },
	"passkey": func() string { return ident.New(ident.Passkey) }, "memory": func() string { return ident.New(ident.Memory) },
	"digest": func() string { return "sha256:" + strings.Repeat(fmt.Sprintf("%08x", rand.Uint32()), 8) },
	"layer":  func() string { return fmt.Sprintf("src-%016x", rand.Uint64()) }, "decision": func() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) },
	"index": func() string { return fmt.Sprint(1_000_000 + rand.IntN(1000)) }, "device": func() string { return "laptop" }, "server": func() string { return "none" },
	"workspace": func() string { return "none" }, "name": func() string { return "0/099" }, "principal": func() string { return "uid:4000" },
	"response": func() string { return "resp_" + strings.TrimPrefix(ident.New(ident.Run), "run_") }, "model": func() string { return "none" },
}

func text(format string, a ...any) string {
	for i := range a {
		b, _ := json.Marshal(a[i])
		a[i] = string(b)
	}
	return fmt.Sprintf(format, a...)
}

// took takes up the run of an answer.
func tookRun(w *world, p *party, answer []byte) {
	var r struct {
		hub.Run
		In hub.Run `json:"run"` // of an operation that is a call
	}
	if json.Unmarshal(answer, &r) != nil {
		return
	}
	run := &r.Run
	if r.In.ID != "" {
		run = &r.In
	}
	if run.ID != "" {
		w.follow(p, run.ID)
	}
}

// ended takes up which runs of a principal it has ended, and wants those of the other to wait on.
func ended(w *world, p *party, _ []byte) {
	for _, o := range w.parties {
		for _, id := range slices.Clone(o.waiting) {
			_, b := w.send(o, "GET", "/api/v1/runs/"+id, "")
			switch {
			case bytes.Contains(b, []byte(`"state":"waiting_approval"`)):
			case o == p:
				o.waiting = slices.DeleteFunc(o.waiting, func(s string) bool { return s == id })
				w.follow(o, id)
			default:
				w.t.Fatalf("a run of %s waits no more: %s", o.user, b)
			}
		}
	}
}

// answered takes up the end of a principal's own run, to which it said no.
func answered(w *world, p *party, answer []byte) {
	var a hub.Approval
	if json.Unmarshal(answer, &a) != nil || !slices.Contains(p.waiting, a.Run) {
		return
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(s string) bool { return s == a.Run })
	for limit := time.Now().Add(patience); ; {
		_, b := w.send(p, "GET", "/api/v1/runs/"+a.Run, "")
		if !bytes.Contains(b, []byte(`"state":"waiting_approval"`)) {
			break
		}
		if time.Now().After(limit) {
			w.t.Fatalf("a run that was answered waits on: %s", b)
		}
	}
	w.follow(p, a.Run)
}

func tookMemory(w *world, p *party, answer []byte) {
	tookRun(w, p, answer)
	var r hub.MemoryResult
	if json.Unmarshal(answer, &r) == nil {
		for _, it := range r.Items {
			p.have("memory", it.ID)
		}
	}
}

func took(kind string) func(*world, *party, []byte) {
	return func(w *world, p *party, answer []byte) {
		var one struct {
			ID    string
			Items []map[string]any
		}
		if json.Unmarshal(answer, &one) != nil {
			return
		}
		if one.ID != "" {
			p.have(kind, one.ID)
		}
		for _, it := range one.Items {
			for _, name := range []string{"id", kind} {
				if id, ok := it[name].(string); ok {
					p.have(kind, id)
				}
			}
		}
	}
}

func (p *party) have(kind, id string) {
	if !slices.Contains(p.has[kind], id) {
		p.has[kind] = append(p.has[kind], id)
	}
}

// writes is a step that a person is asked about.
func writes(p *party) string {
	return text(`{"tool":"fs.write_file","input":{"workspace":"src","path":%s,"mode":"create","content":"x"}}`, p.mark+".txt")
}

const words = "oak pine elm fir larch"

// steps is one of what a run has its tools do, in words of its principal.
func steps(w *world, p *party, id func(string) string) string {
	all := allSteps(p, id)
	return all[w.r.IntN(len(all))]
}

func allSteps(p *party, id func(string) string) []string {
	return []string{
		text(`{"tool":"palyra.echo","input":{"text":%s}}`, p.mark+" says "+words),
		text(`{"tool":"palyra.echo","input":{"text":%s}}`, strings.Repeat(p.mark+" ", 1500)), // an artifact
		text(`{"tool":"memory.retain","input":{"text":%s}}`, "The tree of "+p.mark+" is an "+words),
		text(`{"tool":"memory.retain","input":{"text":%s,"scope":"session"}}`, "Here "+p.mark+" has an "+words),
		`{"tool":"memory.search","input":{"query":"which tree is it, an oak or a pine?","limit":64}}`,
		`{"tool":"memory.list","input":{"limit":256}}`,
		text(`{"tool":"memory.list","input":{"ids":[%s]}}`, id("memory")),
		text(`{"tool":"memory.forget","input":{"ids":[%s]}}`, nones["memory"]()),
		text(`{"tool":"artifact.read","input":{"digest":%s}}`, id("artifact")),
		text(`{"tool":"process.output","input":{"id":%s}}`, id("run")),
		text(`{"tool":"process.status","input":{"id":%s}}`, id("run")),
		text(`{"tool":"process.stop","input":{"id":%s}}`, id("run")),
		`{"tool":"process.list","input":{}}`,
		text(`{"tool":"process.run","input":{"argv":["echo",%s]}}`, p.mark),
		text(`{"tool":"changes.show","input":{"layer":%s}}`, id("layer")),
	}
}

// agents are the prompts of agents, whose model looks into memory, says what it found and ends.
func agents(w *world, p *party, id func(string) string) string {
	after := ""
	if w.r.IntN(3) == 0 {
		after = text(`,"after":%s`, id("run"))
	}
	return text(`{"prompt":%s`, "Tell "+p.mark+" of an oak and a pine.") + after + "}"
}

// ways are the operations of the hub, by their ids. TestPrincipals wants each to be here.
var ways = map[string]way{
	"createSession": {body: func(w *world, p *party, _ func(string) string) string { return text(`{"title":%s}`, p.mark) }, took: took("session")},
	"listSessions": {query: func(w *world, id func(string) string) string {
		return w.one("", "limit=1", "principal="+w.one(w.parties[0].user, w.parties[1].user), "after="+id("session"))
	}},
	"getSession": {}, "endSession": {},
	"startRun": {body: func(w *world, p *party, id func(string) string) string {
		staged := w.one("", `"staged":true,`)
		switch w.r.IntN(5) {
		case 0:
			return text(`{"session":%s,`, id("session")) + `"agent":` + agents(w, p, id) + "}"
		case 1:
			if len(p.waiting) == 0 { // others of the session would wait behind it
				return text(`{"session":%s,"steps":[`, p.desk) + writes(p) + `]}`
			}
		}
		return text(`{"session":%s,`, id("session")) + staged + `"steps":[` + steps(w, p, id) + `]}`
	}, took: tookRun},
	"listRuns": {query: func(w *world, id func(string) string) string {
		return w.one("", "principal="+w.one(w.parties[0].user, w.parties[1].user), "session="+id("session"), "after="+id("run"), "only=background")
	}},
	"getRun": {}, "cancelRun": {took: ended}, "readTape": {}, "readOutput": {}, "getArtifact": {},
	"sendInput": {body: func(w *world, p *party, _ func(string) string) string {
		return text(`{"mode":"follow_up","text":%s}`, p.mark)
	}},
	"setMetadata": {body: func(w *world, p *party, _ func(string) string) string {
		return text(`{"metadata":{"note":%s}}`, p.mark)
	}},
	"call": {body: func(w *world, p *party, id func(string) string) string {
		in := w.one("", text(`"session":%s,`, id("session")))
		return "{" + in + strings.TrimPrefix(steps(w, p, id), "{")
	}, took: tookRun},
	"listTools": {query: func(w *world, _ func(string) string) string { return w.one("", "known=1") }},
	"getUsage": {query: func(w *world, id func(string) string) string {
		return w.one("", "session="+id("session"), "by=principal", "principal="+w.one(w.parties[0].user, w.parties[1].user))
	}},
	"listModels": {}, "findFolders": {body: func(*world, *party, func(string) string) string { return `{"paths":["/"]}` }},

	"listInstructions": {}, "inspectInstructions": {}, "acceptInstructions": {}, "revokeInstructions": {},
	"listLayers": {query: func(w *world, id func(string) string) string {
		return w.one("", "session="+id("session")) // after is a place in the order of names
	}, took: took("layer")},
	"getLayer": {}, "getPatch": {}, "discardLayer": {},
	"applyLayer": {body: digestOf, took: tookRun}, "undoLayer": {body: digestOf, took: tookRun}, "recoverLayer": {took: tookRun},

	"listServers": {}, "addServer": {}, "getServer": {}, "inspectServer": {}, "acceptServer": {}, "removeServer": {}, "listServerTools": {},

	"listApprovals": {query: func(w *world, id func(string) string) string {
		return w.one("", "state=pending", "run="+id("run"), "session="+id("session"))
	}, took: func(w *world, p *party, answer []byte) {
		var page hub.Page[hub.Approval]
		_ = json.Unmarshal(answer, &page)
		for _, a := range page.Items {
			if !a.Reduced {
				p.have("approval", a.ID)
			}
		}
	}},
	"getApproval": {public: reduced}, "previewApproval": {public: reduced, body: func(*world, *party, func(string) string) string { return `{"approve":true}` }},
	"resolveApproval": {public: reduced, body: func(w *world, p *party, _ func(string) string) string {
		return `{"approve":` + w.one("true", "false") + text(`,"comment":%s}`, p.mark)
	}, took: answered},
	"listGrants": {}, "revokeGrant": {public: reduced},

	"getPolicy": {}, "listPolicySets": {}, "getPolicySet": {}, "testPolicy": {}, "diffPolicy": {}, "reload": {},
	"explainPolicy": {body: func(w *world, p *party, id func(string) string) string { return steps(w, p, id) }},
	"getDecision":   {}, "exportDecision": {},

	"getReceipt": {}, "verifyReceipt": {}, "getReach": {}, "getJournal": {took: func(w *world, _ *party, answer []byte) {
		var s hub.JournalStatus
		if json.Unmarshal(answer, &s) == nil {
			w.size = fmt.Sprint(s.Size)
		}
	}}, "verifyJournal": {},
	"listJournalEntries":      {query: func(w *world, _ func(string) string) string { return w.one("", "limit=200", "from=10&limit=50") }},
	"proveJournalEntry":       {public: "a proof says that an entry of a number is there"},
	"proveJournalConsistency": {query: func(*world, func(string) string) string { return "old=1" }},
	"getCheckpoint":           {}, "getTile": {public: "tiles hold hashes"}, "watchJournal": {}, "cosignJournal": {}, "listKeys": {}, "rotateKey": {},

	"createToken": {body: func(w *world, p *party, _ func(string) string) string {
		return text(`{"name":%s,"scopes":["session.read"],"ttl_ns":3600000000000}`, p.mark)
	}, took: took("token")},
	"listTokens": {query: func(w *world, _ func(string) string) string {
		return w.one("", "principal="+w.one(w.parties[0].user, w.parties[1].user))
	}},
	"revokeToken": {}, "rotateToken": {body: func(*world, *party, func(string) string) string { return `{"overlap_ns":0}` }, took: took("token")},
	"openConsole": {}, "listPasskeys": {}, "revokePasskey": {}, "listMembers": {}, "putMember": {}, "removeMember": {},

	"listDevices": {}, "getDevice": {}, "revokeDevice": {}, "removeDevice": {}, "renewDevice": {}, "getAuthority": {}, "replaceRoot": {},
	"beginPairing": {took: took("pairing")}, "listPairings": {}, "getPairing": {}, "approvePairing": {}, "denyPairing": {},

	"getStatus": {}, "getDoctor": {}, "getConfig": {}, "resume": {}, "backup": {},
	"stop": {body: func(*world, *party, func(string) string) string { return `{"all":false,"deny_new":false}` }, took: ended},

	"setSecret": {}, "rollBackSecret": {}, "revealSecret": {}, "listSecrets": {}, "removeSecret": {}, "rotateVault": {}, "addVaultRecipient": {}, "importSecrets": {},
	"exportSecrets": {}, "getVault": {}, "verifyVault": {},

	"searchMemory": {body: func(w *world, p *party, id func(string) string) string {
		return `{"query":"an oak, a pine or a fir","limit":64` + w.one("", text(`,"of":%s`, id("session")), text(`,"session":%s`, id("session"))) + "}"
	}, took: tookMemory},
	"listMemory": {body: func(w *world, p *party, id func(string) string) string {
		return w.one(`{"limit":256}`, text(`{"ids":[%s]}`, id("memory")), text(`{"session":%s}`, id("session")))
	}, took: tookMemory},
	"addMemory": {body: func(w *world, p *party, id func(string) string) string {
		of := w.one("", text(`,"of":%s`, id("session")))
		return `{"import":` + w.one("true", "false") + text(`,"items":[{"text":%s,"tags":[%s]`, p.mark+" planted an "+words, strings.ToLower(p.mark)) + of + "}]}"
	}, took: func(w *world, p *party, answer []byte) {
		tookMemory(w, p, answer)
		var r hub.MemoryResult
		_ = json.Unmarshal(answer, &r)
		for _, it := range r.Items {
			p.items[it.ID] = true
		}
	}},
	"forgetMemory": {body: func(w *world, p *party, id func(string) string) string {
		return w.one(text(`{"ids":[%s]}`, id("memory")), text(`{"of":%s}`, id("session")), `{"origin":"web"}`)
	}, took: func(w *world, p *party, answer []byte) { tookRun(w, p, answer); w.list(p) }},
	"getMemory": {},
}

const reduced = "other operators learn that a question or a grant exists, reduced to what could be theirs to answer"

func digestOf(w *world, p *party, id func(string) string) string {
	return text(`{"digest":%s}`, id("digest"))
}

// foreignWays are the requests of others' APIs, by method and path.
var foreignWays = map[string]way{
	"GET /v1/models": {}, "GET /v1/models/agent": {},
	"POST /v1/responses": {body: func(w *world, p *party, id func(string) string) string {
		return text(`{"model":%s,"input":%s`, w.one("agent", "recalls"), p.mark+" asks of an oak and a pine") +
			w.one("", text(`,"previous_response_id":%s`, id("response")), text(`,"metadata":{"palyra_session":%s}`, id("session"))) + "}"
	}, took: tookResponse},
	"GET /v1/responses/{response}": {query: func(w *world, _ func(string) string) string {
		return w.one("", "stream=true", "stream=true&starting_after=1")
	}},
	"GET /v1/responses/{response}/input_items": {}, "DELETE /v1/responses/{response}": {took: ended}, "POST /v1/responses/{response}/cancel": {},
	"POST /v1/chat/completions": {body: func(w *world, p *party, id func(string) string) string {
		return text(`{"model":%s,"messages":[{"role":"user","content":%s}]`, w.one("agent", "recalls"), p.mark+" asks of an oak and a pine") +
			w.one("", text(`,"metadata":{"palyra_session":%s}`, id("session"))) + "}"
	}},
	"POST /v1/messages": {body: func(w *world, p *party, _ func(string) string) string {
		return text(`{"model":%s,"max_tokens":100,"messages":[{"role":"user","content":%s}]}`, w.one("agent", "recalls"), p.mark+" asks of an oak and a pine")
	}},
	"POST /v1/embeddings": {body: func(w *world, p *party, _ func(string) string) string {
		return text(`{"model":"hashes","input":%s}`, p.mark)
	}},
}

func tookResponse(w *world, p *party, answer []byte) {
	var r struct{ ID string }
	if json.Unmarshal(answer, &r) == nil && strings.HasPrefix(r.ID, "resp_") {
		p.have("response", r.ID)
		w.follow(p, "run_"+strings.TrimPrefix(r.ID, "resp_"))
	}
}
