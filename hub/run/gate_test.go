package run

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	"palyra/agentloop/turn"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel"
)

// gate is a gate without a sandbox: its tools do what their names say. It is
// here to make every order of events; palyra/hub/local's tests use the real one.
type gate struct {
	mu    sync.Mutex
	calls map[string]int // by tool and input
	log   uint64         // next index of the journal
	read  []string       // of each call, its tool and the origins of its label
	past  [][]byte       // entries of the journal, for the next Open
	in    chan string    // tool of each call that has begun; nil: nobody looks
	free  chan struct{}  // "hold" waits for an element
	feed  chan [2]string // what "feed" writes: to stdout, to stderr; closed: it ends
}

func newGate() *gate {
	return &gate{calls: make(map[string]int), in: make(chan string, 1000), free: make(chan struct{}, 1000), feed: make(chan [2]string)}
}

func (g *gate) JournalStatus(context.Context) (kernel.JournalStatus, error) {
	return kernel.JournalStatus{Size: uint64(len(g.past))}, nil
}

func (g *gate) JournalEntries(from, to uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		for i := from; i < to; i++ {
			if !yield(journal.Record{Index: i, Content: g.past[i]}, nil) {
				return
			}
		}
	}
}

// sources are what the tool of a call has its output from: its input says so.
func sources(input []byte) *kernel.Sources {
	var in struct{ From string }
	_ = json.Unmarshal(input, &in)
	return &kernel.Sources{Hosts: strings.Contains(in.From, "hosts"), Server: strings.Contains(in.From, "server"), Files: strings.Contains(in.From, "files")}
}

func (g *gate) CallAs(ctx context.Context, who kernel.Caller, p kernel.Proposal, stdio kernel.IO) (*kernel.Outcome, error) {
	g.mu.Lock()
	g.calls[p.Tool+" "+string(p.Input)]++
	g.read = append(g.read, strings.Join(append([]string{p.Tool}, who.Read().Origins()...), " "))
	g.mu.Unlock()
	g.in <- p.Tool
	if p.Tool == "unknown" {
		return nil, fault.New(fault.Usage, "not_found", "expand tool", nil)
	}
	o := &kernel.Outcome{CallID: "call_" + ident.New("x")[2:], CapsuleDigest: canon.Sum(p.Input), Outcome: receipt.Executed}
	ended := func(outcome string, exit int, err error) (*kernel.Outcome, error) {
		o.Outcome, o.Exit = outcome, exit
		if err != nil {
			o.Error = &kernel.Failure{Kind: fault.KindOf(err).String(), Reason: fault.ReasonOf(err), Text: err.Error()}
		}
		g.mu.Lock()
		o.LogIndex = g.log
		g.log++
		g.mu.Unlock()
		return o, nil
	}
	tell := func(e kernel.Event) {
		e.CallID, e.Capsule = o.CallID, o.CapsuleDigest
		stdio.Observe(e)
	}
	tell(kernel.Event{Step: kernel.StepSealed})
	o.Decision = policy.Decision{ID: [16]byte{1}, Effect: policy.Allow, Reason: "permitted", Policies: []string{"p"}}
	does, says := p.Tool, ""
	if p.Tool == turn.Tool {
		var in struct{ Does, Says string }
		_ = json.Unmarshal(p.Input, &in)
		does, says = in.Does, in.Says
	}
	switch does {
	case "deny":
		o.Decision.Effect, o.Decision.Reason = policy.Deny, "default_deny"
		tell(kernel.Event{Step: kernel.StepDecided, Decision: &o.Decision})
		return ended(receipt.Denied, 126, fault.New(fault.Denied, "default_deny", "decide call", nil))
	case "ask":
		o.Decision.Effect = policy.NeedsApproval
		tell(kernel.Event{Step: kernel.StepDecided, Decision: &o.Decision})
		q := approval.Request{Capsule: o.CapsuleDigest, PolicySet: canon.Sum(nil), Call: approval.Call{Tool: p.Tool}, Timeout: time.Minute}
		rec := approval.Resolve(ctx, who.Approver, q)
		v := rec.View()
		o.Approval = &v
		tell(kernel.Event{Step: kernel.StepAnswered, Approval: &v})
		if !rec.Approved() {
			return ended(receipt.NotApproved, 126, fault.New(fault.NotApproved, v.Answer, "ask for approval", nil))
		}
	default:
		tell(kernel.Event{Step: kernel.StepDecided, Decision: &o.Decision})
	}
	o.Intent = new(uint64)
	tell(kernel.Event{Step: kernel.StepIntent, Sources: sources(p.Input)})
	if says != "" {
		_, _ = io.WriteString(stdio.Stdout, says)
	}
	switch does {
	case "exit":
		return ended(receipt.Executed, 3, nil)
	case "hold":
		select {
		case <-g.free:
		case <-ctx.Done():
			return ended(receipt.Killed, 137, fault.New(fault.Canceled, "canceled", "run", ctx.Err()))
		}
	case "feed":
		for w := range g.feed {
			_, _ = io.WriteString(stdio.Stdout, w[0])
			_, _ = io.WriteString(stdio.Stderr, w[1])
		}
	case "print":
		var n struct{ Bytes int }
		_ = json.Unmarshal(p.Input, &n)
		_, _ = io.WriteString(stdio.Stdout, strings.Repeat("é", n.Bytes/2)+strings.Repeat("x", n.Bytes%2))
		_, _ = io.WriteString(stdio.Stderr, "done\xff")
		if ctx.Err() != nil {
			return ended(receipt.Killed, 137, fault.New(fault.Canceled, "canceled", "run", ctx.Err()))
		}
	}
	return ended(receipt.Executed, 0, nil)
}

// count returns how often a tool was called.
func (g *gate) count() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		n += c
	}
	return n
}
