package console

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestMemoryScreen: a person has a text remembered, finds it beside what an agent wrote, which stays
// text, and forgets that, by clicks and without scripts. Each is a call.
func TestMemoryScreen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHouseIn(t, dir, vaulted(t, dir))
	h.palyra("call", "memory.retain", `{"text":"a\u202egpj </td><h1>pwned</h1><script>document.title='pwned'</script> release","tags":["<b>x"]}`)
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	open := func() { t.Helper(); do(t, ctx, goTo(h.url+"/console/memory"), see("What you, and agents")) }
	rows := func() int { return get(t, ctx, js[int]("document.querySelectorAll('main tbody tr').length")) }
	open()
	if text := mainText(t, ctx); strings.Contains(text, "pwned") {
		t.Errorf("before a click:\n%s", text)
	}
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("textarea"), "make dist makes a <release>"), chromedp.SendKeys(chromedp.CSS("input[name=tags]"), "build, two"),
		click(`form[action$="/add"] button`), until(".said", "It is remembered"), see("2 of at most"))
	do(t, ctx, click("button.yes"), see("make dist makes a <release>"), see("build, two"), see("⟦U+202E⟧"), see("never"))
	safe(t, func() (string, string, int, int) {
		return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
			get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
	})
	if first := get(t, ctx, js[string]("document.querySelector('main tbody tr').textContent")); rows() != 2 || !strings.Contains(first, "make dist") {
		t.Errorf("%d items, the first: %s", rows(), first)
	}
	wide(t, ctx)
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("input[name=query]"), "dist\r"), see("score "))
	if rows() != 1 {
		t.Errorf("%d items are found:\n%s", rows(), mainText(t, ctx))
	}
	open()
	do(t, ctx, click("button.yes"), see("Found by"), click("main tbody tr:nth-child(2) input"), click("button.no"), until(".said", "forgotten"), see("1 of at most"))
	do(t, ctx, click("button.yes"), see("make dist"))
	if rows() != 1 {
		t.Errorf("%d items are left:\n%s", rows(), mainText(t, ctx))
	}
	do(t, ctx, click("button.no"), see("no item is ticked"))
	do(t, ctx, goTo(h.url+"/console/runs"), see("done"), click("main tbody a"), see("memory.list"), see("executed"))
	fits(t, ctx, h, "memory")
}

var (
	question = regexp.MustCompile(`apr_[0-9a-z]+`)
	capsule  = regexp.MustCompile(`"capsule": *"(sha256:[0-9a-f]+)"`)
)

// TestMemoryAsked: where policy asks about a call of the page's, the page waits for longer than an
// answer may take otherwise, and says what became of it.
func TestMemoryAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHouseIn(t, dir, vaulted(t, dir), func(bin string) string {
		policies := filepath.Join(dir, "asks")
		if out, err := command(bin, "palyra", "policy", "init", policies).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		const (
			head  = `(principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::`
			asks  = "@id(\"ask\")\nforbid " + head + "\"memory.forget\") when { !context.sensitive } unless { context.approved };\n"
			never = "@id(\"never\")\nforbid " + head + "\"memory.search\");\n"
			tests = `{"version": 1, "base": {"principal": {"type": "Palyra::User", "id": "alice", "roles": ["operator"]}, "action": "tool.execute",
				"resource": {"type": "Palyra::Tool", "id": "memory.forget"}, "context": {"executable": {"path": "/usr/libexec/palyra/palyra-tool", "system": true},
				"capabilities": [], "stdin": "sealed", "tier": "c"}}, "tests": [
				{"name": "asks", "request": {}, "effect": "needs_approval", "policies": ["ask"]},
				{"name": "never", "request": {"resource": {"type": "Palyra::Tool", "id": "memory.search"}}, "effect": "deny", "policies": ["never"]}]}`
		)
		err := errors.Join(os.Remove(filepath.Join(policies, "24-memory.test.json")), os.WriteFile(filepath.Join(policies, "95-ask.cedar"), []byte(asks+never), 0o600), os.WriteFile(filepath.Join(policies, "95-ask.test.json"), []byte(tests), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		return "[policy]\ndir = \"" + policies + "\"\n"
	})
	h.palyra("memory", "add", "one to forget")
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/memory"), chromedp.SendKeys(chromedp.CSS("input[name=query]"), "forget\r"), see("The call’s outcome: denied"), shown(`main a[href^="/console/receipts/"]`))
	for _, answer := range []struct{ yes, says string }{{"deny", "The call’s outcome: not approved"}, {"approve", "What you, and agents"}} {
		do(t, ctx, goTo(h.url+"/console/memory"), click("button.yes"), see("one to forget"), click("main tbody input"), press("button.no"))
		id := ""
		tick := time.NewTicker(100 * time.Millisecond)
		for id == "" {
			select {
			case <-tick.C:
				id = question.FindString(h.palyra("approvals", "ls", "--json"))
			case <-ctx.Done():
				t.Fatal("no question came")
			}
		}
		tick.Stop()
		if answer.yes == "approve" {
			select {
			case <-time.After(11 * time.Second): // a page's answer has 10 s
			case <-ctx.Done():
			}
		}
		args := []string{"approvals", answer.yes, id}
		if answer.yes == "approve" {
			args = append(args, "--capsule", capsule.FindStringSubmatch(h.palyra("approvals", "show", id, "--json"))[1])
		}
		h.palyra(args...)
		do(t, ctx, see(answer.says))
	}
	do(t, ctx, until(".said", "forgotten"), see("0 of at most"))
}
