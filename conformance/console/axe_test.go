package console

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// finding is what axe-core has against a page.
type finding struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML, FailureSummary string }
}

// axe has axe-core judge the open page, and returns what it finds serious or critical. It runs beside
// the page's scripts, in a world of its own, where the page's policy (Content-Security-Policy) isn't
// its.
func axe(t testing.TB, ctx context.Context) (found []finding) {
	t.Helper()
	const file = "node_modules/axe-core/axe.min.js"
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: make console gets it", err)
	}
	text := get(t, ctx, func(ctx context.Context, tab *chromedp.Target) (string, error) {
		tree, err := cdp.Call(ctx, tab, page.GetFrameTree, cdp.Empty{})
		if err != nil {
			return "", err
		}
		world, err := cdp.Call(ctx, tab, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: tree.FrameTree.Frame.ID, WorldName: "axe"})
		if err != nil {
			return "", err
		}
		yes := true
		do := func(expression string) (runtime.EvaluateResult, error) {
			r, err := cdp.Call(ctx, tab, runtime.Evaluate, runtime.EvaluateParams{Expression: expression, ContextID: world.ExecutionContextID, AwaitPromise: &yes, ReturnByValue: &yes})
			if err == nil && r.ExceptionDetails != nil {
				err = fmt.Errorf("axe: %v", r.ExceptionDetails)
			}
			return r, err
		}
		there, err := do("typeof axe === 'object'") // the page has one world of a name
		if err == nil && string(there.Result.Value) != "true" {
			_, err = do(string(source) + "; true")
		}
		if err != nil {
			return "", err
		}
		r, err := do(`axe.run(document, { resultTypes: ['violations'] }).then((r) => JSON.stringify(r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')))`)
		if err != nil {
			return "", err
		}
		var text string
		err = json.Unmarshal([]byte(r.Result.Value), &text)
		return text, err
	})
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatal(err)
	}
	return found
}
