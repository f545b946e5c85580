package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Outcomes besides those of a step (hub.StepResult).
const (
	outcomePending   = "pending"   // it goes on; see Answer.Wait
	outcomeStarted   = "started"   // its program runs in the background; see Answer.Run
	outcomeCancelled = "cancelled" // the run was cancelled before it had an outcome
	outcomeError     = "error"     // nothing was decided
)

// Answer is what a model is told about a call: the structuredContent of a result.
type Answer struct {
	// Outcome is one of a step ("executed", "denied", "not_approved", "refused", "failed",
	// "timed_out", "killed", "outcome_unknown"), "started", "pending", "cancelled" or "error".
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"` // what became of the call and what to do, where it isn't done
	Exit    *int   `json:"exit,omitempty"`
	// Result is the result of a tool that answers in JSON; then there is no Stdout.
	Result    json.RawMessage `json:"result,omitempty"`
	Stdout    string          `json:"stdout,omitempty"`
	StdoutCut *Cut            `json:"stdout_cut,omitempty"`
	Stderr    string          `json:"stderr,omitempty"`
	StderrCut *Cut            `json:"stderr_cut,omitempty"`
	Reason    string          `json:"reason,omitempty"`   // a code
	Layer     string          `json:"layer,omitempty"`    // of Palyra that said no
	Comment   string          `json:"comment,omitempty"`  // a person's, with a no
	Wait      string          `json:"wait,omitempty"`     // of a pending call, for call_wait
	Approval  string          `json:"approval,omitempty"` // that a pending call waits for
	Changes   string          `json:"changes,omitempty"`  // the layer that has what was written to the workspace
	Receipt   *uint64         `json:"receipt,omitempty"`  // index in the journal
	Decision  string          `json:"decision,omitempty"`
	Run       string          `json:"run,omitempty"`

	theirs   bool   // it's of a call of an MCP server's tool
	answered []byte // what that server answered; nil: nothing
	bad      bool   // the request went wrong, as the protocol has it (isError)
}

// Cut says that a stream in an Answer isn't the whole, and where the whole is.
type Cut struct {
	Bytes    int64        `json:"bytes"` // of the whole
	Artifact canon.Digest `json:"artifact,omitzero"`
	Binary   bool         `json:"binary,omitempty"` // it isn't UTF-8; other bytes were replaced
	Lost     string       `json:"lost,omitempty"`   // why the whole wasn't kept
}

// Bounds of the text in an answer, in bytes.
const (
	maxTail    = 24 << 10 // of a stream's end; its beginning is hub.MaxInline at most
	maxWhat    = 200
	maxComment = 1000
	maxQuoted  = 160 // of a program's last line, before it is quoted
	wordLen    = 12  // of the word around streams: 60 bits
)

// inBackground tells how to go on with a program in the background.
const inBackground = "It runs in the background as %[1]s, until it ends, process_stop ends it, or this connection does. " +
	"process_output with this id gives what it writes, process_status how it is."

// noRepeat ends each refusal.
const noRepeat = " Do not repeat it: the answer stays the same. Take another way, or tell the user what you need and why."

// layered says where the changes are, and what a person does about them.
const layered = "What was written to the workspace is in the layer %[1]s, not on the host: for the user, palyra changes diff %[1]s"

// anew tells of a new layer in the middle of a connection.
const anew = "palyrad had ended the session of earlier calls, so this call saw the host's files without what those wrote."

// what names a call for people and models.
func what(tool string, input json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, input) != nil {
		return tool
	}
	return tool + " " + clip(b.String(), maxWhat)
}

// clip cuts text between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

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
	return &Answer{Outcome: outcomeCancelled, Message: "Cancelled: " + about + ".", bad: true}
}

// failed is the answer to a call that palyrad didn't take, or whose end it didn't tell.
func failed(about string, err error) *Answer {
	a := &Answer{Outcome: outcomeError, Reason: fault.ReasonOf(err), bad: true}
	if d := hub.DenialOf(err); d != nil {
		a.refuse(d, "denied", about)
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

// refuse puts down a no. What would change the answer (Denial.Fix) is for the operator, and
// left out.
func (a *Answer) refuse(d *hub.Denial, outcome, about string) {
	a.Outcome, a.bad, a.Layer, a.Decision = outcome, true, d.Layer, d.DecisionID
	if a.Reason = d.Reason; a.Reason == "" {
		a.Reason = outcome
	}
	a.Comment = clip(d.Comment, maxComment)
	why := ""
	switch d.Layer {
	case hub.LayerPolicy:
		why = "The operator's policy doesn't permit it."
	case hub.LayerApproval:
		why = "It needs a person's approval and didn't get it."
		if a.Comment != "" {
			why = fmt.Sprintf("A person said no, with the comment %q.", a.Comment)
		}
	case hub.LayerIsolation:
		why = "This host can't enforce the confinement that it needs."
	case hub.LayerBudget:
		why = "The run has used up what it may use."
	case hub.LayerStop:
		why = "The operator has stopped all calls."
	case hub.LayerAccess:
		why = "The credential of this connection lacks a permission"
		if d.Permission != "" {
			why += " (" + d.Permission + ")"
		}
		why += "."
	}
	a.Message = fmt.Sprintf("Nothing ran: %s. %s Reason: %s.%s", about, why, a.Reason, noRepeat)
}

// answerTo says what became of a call that palyrad took.
func (s *server) answerTo(ctx context.Context, c *call, r *hub.Run) *Answer {
	st, about := &r.Steps[0], what(c.tool, c.input)
	a := &Answer{Outcome: st.Outcome, Reason: st.Reason, Run: r.ID, Receipt: st.LogIndex, Decision: st.DecisionID}
	if st.Denial != nil {
		if a.Outcome == "" {
			a.Outcome = "denied"
		}
		a.refuse(st.Denial, a.Outcome, about)
		if a.Decision == "" {
			a.Decision = st.DecisionID
		}
		return a
	}
	if r.Background && st.State == hub.StepRunning {
		a.Outcome, a.Message = outcomeStarted, fmt.Sprintf(inBackground, r.ID)
		return a
	}
	switch st.Outcome {
	case "executed":
		a.Exit = &st.Exit
	case "timed_out":
		a.bad, a.Message = true, "It ran longer than it may: "+about+"."
	case "killed":
		a.bad, a.Message = true, "It was killed: "+about+"."
	case "outcome_unknown":
		a.bad, a.Message = true, "It is not known what became of it: "+about+". It may have run: look before you repeat it."
	case "":
		a.bad, a.Outcome, a.Message = true, outcomeError, "Not made: "+about+"."
		if r.State == hub.RunCancelled {
			a.Outcome, a.Message = outcomeCancelled, "Cancelled: "+about+"."
		}
	default:
		a.bad, a.Message = true, "It failed: "+about+"."
	}
	if st.Error != "" {
		a.Message += " " + st.Error + "."
	}
	if st.Layer != "" {
		a.Changes = st.Layer
		a.Message = strings.TrimSpace(a.Message + " " + fmt.Sprintf(layered, st.Layer) + ".")
	}
	if c.their != nil && st.Outcome == "executed" {
		s.pass(ctx, c, a, r.ID, st.Stdout)
		return a
	}
	builtin := c.tool != toolExec && c.tool != NameOf(runTool)
	a.Stdout, a.StdoutCut = s.stream(ctx, r.ID, st.Stdout)
	a.Stderr, a.StderrCut = s.stream(ctx, r.ID, st.Stderr)
	if builtin && st.Outcome == "executed" {
		a.bad = st.Exit != 0
		if a.StdoutCut == nil && strings.HasPrefix(a.Stdout, "{") && json.Valid([]byte(a.Stdout)) {
			a.Result, a.Stdout = json.RawMessage(strings.TrimSpace(a.Stdout)), ""
		}
	}
	return a
}

// stream returns what a tool wrote: all of it, or beginning and end with a line between.
func (s *server) stream(ctx context.Context, run string, o hub.Output) (string, *Cut) {
	text, cut := o.Text, (*Cut)(nil)
	if o.Base64 != nil {
		text, cut = string(o.Base64), &Cut{Bytes: o.Size, Binary: true}
	}
	if missing := o.Size - int64(len(text)); missing > 0 || o.Lost {
		if cut == nil {
			cut = new(Cut)
		}
		cut.Bytes, cut.Artifact = o.Size, o.Artifact
		if o.Lost {
			cut.Lost = "lost"
			if o.LostWhy != "" {
				cut.Lost = o.LostWhy
			}
		}
		tail := s.tail(ctx, run, o, int64(len(text)))
		if missing -= int64(len(tail)); missing > 0 {
			text += fmt.Sprintf("\n[%d bytes are left out here]\n", missing)
		}
		text += tail
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text, cut
}

// tail returns the end of a stream beyond the first bytes, "" where it can't be had.
func (s *server) tail(ctx context.Context, run string, o hub.Output, first int64) string {
	if o.Artifact.IsZero() {
		return ""
	}
	art, err := hub.GetArtifact.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.ArtifactQuery{Run: run, Digest: o.Artifact.String()})
	if err != nil {
		return ""
	}
	defer art.Close()
	if _, err := art.Seek(max(first, art.Info().Size-maxTail), io.SeekStart); err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(art, maxTail))
	if err != nil {
		return ""
	}
	return string(b)
}

// result is an answer in the words of the protocol.
func (a *Answer) result() *sdk.CallToolResult {
	return &sdk.CallToolResult{StructuredContent: a, IsError: a.bad, Content: []sdk.Content{&sdk.TextContent{Text: a.text()}}}
}

// text says the answer to clients that show their model only text. Streams stand between lines
// with a word that the program could not know, so nothing in them passes for such a line.
func (a *Answer) text() string {
	var b strings.Builder
	b.WriteString(a.Outcome)
	if a.Exit != nil {
		fmt.Fprintf(&b, ", exit %d", *a.Exit)
	}
	if a.Receipt != nil {
		fmt.Fprintf(&b, ", receipt %d", *a.Receipt)
	}
	if a.Decision != "" {
		b.WriteString(", decision " + a.Decision)
	}
	if a.Wait != "" {
		b.WriteString(", wait " + a.Wait)
	}
	word := rand.Text()[:wordLen]
	if a.Stdout+a.Stderr != "" {
		fmt.Fprintf(&b, ", output stands between lines with %s", word)
	}
	b.WriteByte('\n')
	if a.Message != "" {
		b.WriteString(a.Message + "\n")
	}
	if a.Result != nil {
		fmt.Fprintf(&b, "%s\n", a.Result)
	}
	for _, o := range []struct {
		name, text string
		cut        *Cut
	}{{"stdout", a.Stdout, a.StdoutCut}, {"stderr", a.Stderr, a.StderrCut}} {
		if o.text == "" {
			continue
		}
		fmt.Fprintf(&b, "--- %s %s", word, o.name)
		if o.cut != nil {
			fmt.Fprintf(&b, ", cut: %s", encode(o.cut))
		}
		fmt.Fprintf(&b, "\n%s\n--- %s end\n", strings.TrimSuffix(o.text, "\n"), word)
	}
	return b.String()
}
