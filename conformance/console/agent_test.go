package console

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// TestAgentScreen: a person asks an agent in the browser, sees its model's words as words, and goes on
// in the session.
func TestAgentScreen(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(string) string { return "[models.first]\nprovider = \"scripted\"\n" })
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/agent"), chromedp.SendKeys(chromedp.CSS("textarea"), "what <b>is</b> in src?"), click("button.yes"),
		see("what <b>is</b> in src?"), see("each decided, confined and attested"), see("3 turns of the model"), see("It proposes fs_list_dir"))
	wide(t, ctx)
	do(t, ctx, click(`main a[href^="/console/agent?session="]`), see("which this goes on with"))
	fits(t, ctx, h, "agent")
}
