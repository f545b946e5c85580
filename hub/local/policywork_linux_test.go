package local

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// costly is a candidate whose n tests have a base of this many arguments.
func costly(n, args int) *hub.PolicySet {
	var tests []string
	for i := range n {
		tests = append(tests, fmt.Sprintf(`{"name":"%d","request":{},"effect":"allow"}`, i))
	}
	return &hub.PolicySet{Files: map[string]string{"a.cedar": `@id("a") permit (principal, action, resource);`,
		"a.test.json": fmt.Sprintf(`{"version":1,"base":{"principal":{"type":"Palyra::User","id":"u"},"action":"tool.execute",`+
			`"resource":{"type":"Palyra::Tool","id":"x"},"context":{"args":["a"%s]}},"tests":[%s]}`, strings.Repeat(`,"a"`, args-1), strings.Join(tests, ","))}}
}

// TestPolicyWork: candidates are checked one at a time, of one principal one, in a
// short line; an owner at the socket has a place of its own; and a test of 600 KB
// that would take a minute and gigabytes is refused.
func TestPolicyWork(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, bob := h.member(1001, access.Operator), h.member(1002, access.Operator)
	begin := time.Now()
	v, err := hub.TestPolicy.Do(ctx, h, alice, hub.PolicyTestRequest{Candidate: costly(120, 100_000)})
	if err != nil || len(v.Failures) != 1 || !strings.Contains(v.Failures[0].Text, "a.test.json") {
		t.Errorf("%+v, %v", v, err)
	}
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	// One caller works.
	_, done, err := h.policyWork(ctx, alice, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wait, leave := context.WithCancel(ctx)
	reasons := make(chan string, 16)
	for range 8 {
		wg.Go(func() {
			_, err := hub.TestPolicy.Do(wait, h, bob, hub.PolicyTestRequest{Candidate: costly(1, 1)})
			reasons <- fault.ReasonOf(err)
		})
	}
	for range 4 { // a line of 8, half of it for one
		if got := <-reasons; got != "budget" {
			t.Errorf("beyond its part of the line: %q", got)
		}
	}
	if _, err := hub.TestPolicy.Do(ctx, h, h.owner, hub.PolicyTestRequest{Candidate: costly(1, 1)}); err != nil {
		t.Errorf("the owner's place: %v", err)
	}
	leave()
	wg.Wait()
	for range 4 {
		if got := <-reasons; got != "canceled" {
			t.Errorf("whoever left: %q", got)
		}
	}
	done()
	if v, err := hub.TestPolicy.Do(ctx, h, bob, hub.PolicyTestRequest{Candidate: costly(2, 2)}); err != nil || v.Tests != 2 || len(v.Failures) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
	// A stop ends what works.
	busy, done, err := h.policyWork(ctx, alice, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true}); err != nil {
		t.Fatal(err)
	}
	if fault.ReasonOf(context.Cause(busy)) != "stopped" {
		t.Errorf("after a stop: %v", context.Cause(busy))
	}
}
