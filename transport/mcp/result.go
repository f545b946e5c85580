package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/fault"
)

// outcomePending is the outcome of a call that goes on; see Answer.Wait.
const outcomePending = "pending"

// Answer is what a model is told about a call: the structuredContent of a result.
type Answer struct {
	hub.Told

	theirs   bool   // it's of a call of an MCP server's tool
	answered []byte // what that server answered; nil: nothing
}

// maxQuoted bounds a program's last line before it is quoted, in bytes.
const maxQuoted = 160

// anew tells of a new layer in the middle of a connection.
const anew = "palyrad had ended the session of earlier calls, so this call saw the host's files without what those wrote."

// lastLine quotes the last line of text that isn't empty: it is a program's, and may hold
// anything.
func lastLine(b []byte) string {
	b = bytes.TrimRight(b, "\r\n")
	if i := bytes.LastIndexAny(b, "\r\n"); i >= 0 {
		b = b[i+1:]
	}
	if len(b) == 0 {
		return ""
	}
	return strconv.QuoteToASCII(string(b))
}

func cancelled(about string) *Answer {
	return &Answer{Told: hub.Told{Outcome: hub.ToldCancelled, Message: "Cancelled: " + about + ".", Bad: true}}
}

// failed is the answer to a call that palyrad didn't take, or whose end it didn't tell.
func failed(about string, err error) *Answer {
	a := &Answer{Told: hub.Told{Outcome: hub.ToldError, Reason: fault.ReasonOf(err), Bad: true}}
	if d := hub.DenialOf(err); d != nil {
		a.Refuse(d, "denied", about)
		return a
	}
	switch {
	case errors.Is(err, fault.ErrConnectionLost):
		a.Message = "The connection to palyrad broke while " + about + " was under way. It may have run: look before you repeat it."
	case errors.Is(err, fault.ErrUnreachable):
		a.Message = "Not made: " + about + ". " + explain(err)
	default:
		a.Message = "Not made: " + about + ". " + err.Error() + "."
		if h := fault.HintOf(err); h != "" && fault.KindOf(err) == fault.Usage {
			a.Message += " " + h
		}
	}
	return a
}

// answerTo says what became of a call that palyrad took.
func (s *server) answerTo(ctx context.Context, c *call, r *hub.Run) *Answer {
	st := &r.Steps[0]
	a := &Answer{Told: *hub.Tell(hub.NameCall(c.tool, c.input), r, st)}
	if c.their != nil && st.Outcome == "executed" {
		s.pass(ctx, c, a, r.ID, st.Stdout)
		return a
	}
	a.Took(st, c.tool != toolExec && c.tool != hub.NameForModels(runTool), func(o hub.Output, first, most int64) string { return s.tail(ctx, r.ID, o, first, most) })
	return a
}

// tail returns the end of a stream, beyond the first bytes and most bytes long, or "".
func (s *server) tail(ctx context.Context, run string, o hub.Output, first, most int64) string {
	if o.Artifact.IsZero() {
		return ""
	}
	art, err := hub.GetArtifact.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.ArtifactQuery{Run: run, Digest: o.Artifact.String()})
	if err != nil {
		return ""
	}
	defer art.Close()
	if _, err := art.Seek(max(first, art.Info().Size-most), io.SeekStart); err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(art, most))
	if err != nil {
		return ""
	}
	return string(b)
}

// result is an answer in the words of the protocol.
func (a *Answer) result() *sdk.CallToolResult {
	return &sdk.CallToolResult{StructuredContent: a, IsError: a.Bad, Content: []sdk.Content{&sdk.TextContent{Text: a.Text()}}}
}
