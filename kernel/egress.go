package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"palyra/call/egress"
	"palyra/crypt/receipt"
	"palyra/crypt/scrub"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/egress/client"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// inspection returns hosts, rules about requests and uses of secrets in their one spelling. The
// hosts of the last two are among the first.
func (p *Proposal) inspection() (hosts, inspect, uses []string, err error) {
	if len(p.EgressInspect)+len(p.EgressSecrets) == 0 {
		return slices.Clone(p.EgressHosts), nil, nil, nil
	}
	var in egress.Inspection
	if in.Rules, err = egress.ParseInspects(p.EgressInspect); err != nil {
		return nil, nil, nil, err
	}
	if in.Uses, err = egress.ParseUses(p.EgressSecrets); err != nil {
		return nil, nil, nil, err
	}
	rules, err := egress.ParseRules(slices.Concat(p.EgressHosts, egress.Strings(in.Hosts())))
	if err != nil {
		return nil, nil, nil, err
	}
	if len(in.Rules) > 0 {
		inspect = egress.Strings(in.Rules)
	}
	if len(in.Uses) > 0 {
		uses = egress.Strings(in.Uses)
	}
	return rules.Strings(), inspect, uses, nil
}

// rootsEnv adds the variables that lead programs to the authority of a call whose requests are
// inspected. They are the call's own: a variable of the caller's would lead elsewhere, and one that
// leads there would be shown to no approver.
func (p *Proposal) rootsEnv(env []string) ([]string, error) {
	inspected := len(p.EgressInspect)+len(p.EgressSecrets) > 0
	for _, e := range env {
		if name := capsule.Name(e); inspected && rootsName(name) || slices.Contains(isolate.RootsEnv(), e) {
			return nil, usage("invalid_input", fmt.Sprintf("set environment %q", name), errors.New("it leads to the certificates of a call whose requests are inspected"))
		}
	}
	if !inspected {
		return env, nil
	}
	env = append(slices.Clip(env), isolate.RootsEnv()...)
	slices.SortFunc(env, func(a, b string) int { return strings.Compare(capsule.Name(a), capsule.Name(b)) })
	for _, u := range p.uses {
		name := capsule.Name(u.Use)
		op := fmt.Sprintf("give %s a placeholder", name)
		switch {
		case slices.ContainsFunc(env, func(e string) bool { return capsule.Name(e) == name }):
			return nil, usage("invalid_input", op, errors.New("the variable has another value"))
		case matchesName(loaderNames, name):
			return nil, usage("invalid_input", op, errors.New("it makes programs load code or configuration"))
		}
	}
	return env, nil
}

// rootsName reports whether a variable leads programs to certificates they trust.
func rootsName(name string) bool {
	return slices.ContainsFunc(isolate.RootsEnv(), func(e string) bool { return capsule.Name(e) == name })
}

// checkEgress refuses hosts that the call's network can't lead to.
func (p *Proposal) checkEgress() error {
	const op = "check egress hosts"
	switch {
	case len(p.EgressHosts) == 0 && p.Network == isolate.NetworkEgress:
		return usage("invalid_input", op, errors.New("a network that leads to hosts, and no host is named")).
			WithHint("name them: --egress HOST:PORT, or egress_hosts in the tool's input")
	case len(p.EgressHosts) == 0 && p.Network == isolate.NetworkPreflight:
		return usage("invalid_input", op, errors.New("hosts are to be looked up before the call begins, and none is named")).
			WithHint("name them: --egress HOST:PORT, or egress_hosts in the tool's input")
	case isolate.AllowsHostNetwork(p.Network) && len(p.EgressInspect)+len(p.EgressSecrets) > 0:
		return usage("invalid_input", op, errors.New("in the host's network nothing reads requests or puts secrets in")).
			WithHint("leave the network out: --inspect and --egress-secret are for a network of the call's own")
	case len(p.EgressHosts) > 0 && p.Network == isolate.NetworkHost:
		return usage("invalid_input", op, errors.New("in the host's network nothing holds a program to hosts")).
			WithHint("leave the hosts out, or the network: then the call reaches its hosts and no other")
	case len(p.EgressHosts) == 0:
		return nil
	case p.TierFloor != tier.None && p.TierFloor != tier.C:
		return usage("invalid_input", op, errors.New("hosts are reached from a network namespace, which only tier c has"))
	case p.Network == isolate.NetworkSession:
		return usage("invalid_input", op, errors.New("the network of a session is shared by its calls, and hosts are one call's")).
			WithHint("leave the network out: a call with hosts has one of its own. To try a server that needs hosts, start it and what asks it in one call")
	case p.Network == isolate.NetworkVoid:
		return usage("invalid_input", op, errors.New("in the network void no socket can be made")).
			WithHint("leave the network out: a call with hosts has one of its own, with 127.0.0.1 and ::1")
	}
	rules, err := egress.ParseRules(p.EgressHosts)
	if err == nil && p.Network == isolate.NetworkPreflight {
		err = checkPreflight(rules)
	}
	return err
}

// checkPreflight refuses rules that can't be checked before the call begins.
func checkPreflight(rules egress.Rules) error {
	for _, r := range rules.All() {
		op := fmt.Sprintf("check egress rule %q", r)
		if _, below := r.Name(); below {
			return usage("invalid_input", op, errors.New("before a call begins single names are looked up, and this is any name below one")).
				WithHint("name each, or leave the network preflight out")
		}
		if r != r.Bare() {
			return usage("invalid_input", op, errors.New("in the host's network nothing counts connections or bytes")).
				WithHint("leave the bounds out, or the network preflight")
		}
	}
	return nil
}

// egress returns the hosts in their one spelling, and the network that leads to them.
func (p *Proposal) egress() (hosts []string, network string, err error) {
	if len(p.EgressHosts) == 0 {
		return []string{}, p.Network, nil
	}
	rules, err := egress.ParseRules(p.EgressHosts)
	if err != nil {
		return nil, "", err
	}
	if p.Network == isolate.NetworkPreflight {
		return rules.Strings(), p.Network, nil
	}
	return rules.Strings(), isolate.NetworkEgress, nil
}

// portsOf returns the TCP ports of a call whose hosts are looked up before it begins; nil for
// another.
func portsOf(c *capsule.Capsule) (ports []uint16) {
	if c.Network != isolate.NetworkPreflight {
		return nil
	}
	rules, err := egress.ParseCanonical(c.EgressHosts)
	if err != nil {
		panic(fmt.Sprintf("kernel: internal error: the sealed hosts of a call: %v", err))
	}
	for _, r := range rules.All() {
		ports = append(ports, r.Port())
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// The sockets that palyra-egress gets for each protocol. It binds one for each address and port
// when that is first asked for: the resolver and the two proxies, the names of exact rules, and as
// many names below a suffix as are asked for until all are used.
const (
	fixedSockets  = 3
	suffixSockets = 48
)

// egressOf returns what palyra-cell must know of a call that reaches hosts; nil for another.
func egressOf(c *capsule.Capsule) *isolate.Egress {
	if c.Network != isolate.NetworkEgress {
		return nil
	}
	rules, err := egress.ParseCanonical(c.EgressHosts)
	if err != nil {
		panic(fmt.Sprintf("kernel: internal error: the sealed hosts of a call: %v", err))
	}
	e := &isolate.Egress{Sockets: fixedSockets, Roots: len(c.EgressInspect)+len(c.EgressSecrets) > 0}
	for _, r := range rules.All() {
		switch _, below := r.Name(); {
		case below:
			e.Sockets += suffixSockets
		case !r.Prefix().IsValid() || r.Prefix().IsSingleIP():
			e.Sockets++
		}
	}
	for _, a := range rules.Addresses() {
		// An address that can only be the program's own is reached by names that resolve to it.
		one := &isolate.Egress{Addresses: []string{a.String()}, Sockets: 1}
		if isolate.CheckEgress(tier.C, isolate.NetworkEgress, one) == nil {
			e.Addresses = append(e.Addresses, a.String())
		}
	}
	slices.Sort(e.Addresses)
	e.Sockets = min(e.Sockets, isolate.MaxEgressSockets)
	return e
}

// canEgress refuses a call with hosts where nothing leads to them, before a person is asked.
func (k *Kernel) canEgress(ctx context.Context, s *sealed) error {
	if len(s.capsule.EgressHosts) == 0 || s.mcp != nil {
		return nil
	}
	const op = "reach hosts"
	if k.cfg.Egress == nil {
		return fault.New(fault.Refused, "egress_lost", op, errors.New("the call names hosts, and no palyra-egress is here to lead to them")).
			WithHint("install palyra-egress beside palyra, or start it for palyrad: docs/EGRESS.md")
	}
	if r, ok := k.cfg.Egress.(interface{ Ready(context.Context) error }); ok {
		return r.Ready(ctx)
	}
	return nil
}

// outlet is a call's way to its hosts, while its program runs. The zero outlet leads nowhere.
type outlet struct {
	session *client.Session
	files   *budget.Hold
	stop    func() bool      // the watch for its loss; false: it has seen it
	until   time.Time        // the end of its time at palyra-egress
	cut     bool             // the way was over, and the run was ended for it
	checked *evidence.Egress // of a call in the host's network, whose hosts were looked up: no way
	roots   *os.File         // the call's authority; nil if nothing is inspected
}

// Descriptors of an outlet in this process: the session, the end for palyra-cell, and the
// authority.
const outletFiles = 3

// beyond is the time that palyra-egress gives a call on top of its limit: palyra-cell ends it
// there.
const beyond = time.Minute

// openEgress opens the way to the call's hosts, if it names some, and returns the context of the
// run, which ends with the way.
func (c *call) openEgress(ctx context.Context, spec *isolate.Spec, files *isolate.Files) (context.Context, *outlet, error) {
	if spec.Network == isolate.NetworkPreflight {
		checked, err := c.preflight(ctx)
		return ctx, &outlet{checked: checked}, err
	}
	if spec.Egress == nil {
		return ctx, new(outlet), nil
	}
	hold, err := c.k.cfg.Budgets.Files.Take(c.who.owner(), outletFiles)
	if err != nil {
		return nil, nil, err
	}
	wall := min(spec.Limits.Wall+beyond, maxLimits().Wall)
	until := time.Now().Add(wall)
	owner := c.who.owner()
	session, err := c.k.cfg.Egress.Open(ctx, &client.Order{Rules: c.s.capsule.EgressHosts, Inspect: c.s.capsule.EgressInspect, Uses: c.s.orderUses(), Networks: c.s.networks, Early: c.s.early, Capsule: c.s.id, Limits: client.Limits{Wall: wall}, Owner: owner.Name, Reserve: owner.Reserve})
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	w := &outlet{session: session, files: hold, until: until}
	if err = c.giveSecrets(ctx, session); err == nil && spec.Egress.Roots {
		w.roots, err = authority(session)
	}
	if err != nil {
		session.CloseNow() // err says more
		hold.Release()
		return nil, nil, err
	}
	run, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	seen := make(chan bool, 1)
	go func() { // until end
		select {
		case <-session.Done():
			cancel()
			seen <- true
		case <-over:
			seen <- false
		}
	}()
	w.stop = func() bool {
		close(over)
		defer cancel()
		return !<-seen
	}
	files.Egress, files.Roots = session.Cell(), w.roots
	return run, w, nil
}

// checking bounds the time for looking hosts up: palyra-egress gives each name 15 seconds, and
// looks up several at once.
const checking = time.Minute

// preflight has palyra-egress look up the call's hosts and judge what they lead to. One that may
// not be reached refuses the call. The program looks them up again, and may find others.
func (c *call) preflight(ctx context.Context) (*evidence.Egress, error) {
	const op = "look up the call's hosts"
	hold, err := c.k.cfg.Budgets.Files.Take(c.who.owner(), outletFiles)
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	ctx, cancel := context.WithTimeout(ctx, checking)
	defer cancel()
	owner := c.who.owner()
	session, err := c.k.cfg.Egress.Open(ctx, &client.Order{Rules: c.s.capsule.EgressHosts, Check: true, Capsule: c.s.id,
		Limits: client.Limits{Wall: checking}, Owner: owner.Name, Reserve: owner.Reserve})
	if err != nil {
		return nil, err
	}
	closed := session.Close
	select {
	case <-session.Done():
	case <-ctx.Done():
		closed = session.CloseNow
	}
	e, err := closed()
	switch {
	case ctx.Err() != nil:
		return nil, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case err != nil:
		return nil, err
	case len(e.Denied) > 0:
		return nil, fault.New(fault.Refused, "egress_denied", op, errors.New(e.Denied[0].String())).
			WithHint("docs/EGRESS.md has the reasons; a private network is reached where a rule names it and the port")
	}
	return e, nil
}

// end closes the way and adds to the evidence of a run what went over it, without values of secrets
// and placeholders in the names that the program asked for. It returns an error if the way was over
// before the run, most often because palyra-egress was lost: then what went over it isn't known.
func (w *outlet) end(ctx context.Context, res *isolate.Result, values scrub.Values, trip *tripwire) error {
	if w.session == nil {
		if w.checked != nil && res != nil && res.Evidence != nil {
			res.Evidence.Egress = *w.checked
		}
		return nil
	}
	defer w.files.Release()
	if w.roots != nil {
		defer w.roots.Close()
	}
	w.cut = !w.stop()
	closed := w.session.Close
	if ctx.Err() != nil {
		closed = w.session.CloseNow
	}
	e, err := closed()
	name := func(s string) string { return trip.name(unnamed(values, s)) }
	if e != nil {
		for i := range e.Leaks {
			e.Leaks[i].Host = name(e.Leaks[i].Host)
		}
		trip.saw(e.Leaks...)
	}
	if e != nil && res != nil && res.Evidence != nil {
		for i := range e.Connections {
			c := &e.Connections[i]
			c.Host, c.ServerName = name(c.Host), name(c.ServerName)
		}
		for i := range e.Denied {
			e.Denied[i].Host = name(e.Denied[i].Host)
		}
		for i := range e.Requests {
			r := &e.Requests[i]
			r.Method, r.Path = name(r.Method), name(r.Path)
		}
		res.Evidence.Egress = *e
	}
	switch {
	case err != nil || !w.cut:
	case time.Now().Before(w.until):
		err = fault.New(fault.Unavailable, "egress_lost", "reach hosts", errors.New("palyra-egress ended before the call"))
	default: // the longest call's time is palyra-egress's, too
		err = fault.New(fault.Timeout, "wall", "reach hosts", errors.New("the time limit passed"))
	}
	return err
}

// withoutHosts returns p with the connections and denials of its evidence counted alone, if the
// lists made it too large: a program chooses the names in them, and must not keep its result from
// being recorded.
func (c *call) withoutHosts(p receipt.Predicate, err error) (receipt.Predicate, bool) {
	r := c.out.Result
	if !errors.Is(err, receipt.ErrTooLarge) || r == nil || r.Evidence == nil || len(r.Evidence.Egress.Connections)+len(r.Evidence.Egress.Denied)+len(r.Evidence.Egress.Requests) == 0 {
		return p, false
	}
	e := &r.Evidence.Egress
	e.More += int64(len(e.Connections))
	for _, d := range e.Denied {
		e.MoreDenied += d.Times
	}
	e.MoreRequests += int64(len(e.Requests))
	e.Connections, e.Denied, e.Requests = nil, nil, nil
	b, err := canon.Marshal(r.Evidence)
	p.Evidence = b
	return p, err == nil
}
