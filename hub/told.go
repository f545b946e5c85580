package hub

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"palyra/internal/canon"
	"palyra/internal/toolproto"
)

// The outcomes of Told besides those of a step (StepResult).
const (
	ToldStarted   = "started"   // its program runs in the background; see Told.Run
	ToldCancelled = "cancelled" // the run was cancelled before it had an outcome
	ToldError     = "error"     // nothing was decided
)

// Told is what a model is told about a call.
type Told struct {
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

	Bad bool `json:"-"` // the call went wrong
}

// Cut says that a stream in Told isn't the whole, and where the whole is.
type Cut struct {
	Bytes    int64        `json:"bytes"` // of the whole
	Artifact canon.Digest `json:"artifact,omitzero"`
	Binary   bool         `json:"binary,omitempty"` // it isn't UTF-8; other bytes were replaced
	Lost     string       `json:"lost,omitempty"`   // why the whole wasn't kept
}

// Bounds of the text in Told, in bytes.
const (
	maxTail    = 24 << 10 // of a stream's end; its beginning is MaxInline at most
	maxWhat    = 200
	maxComment = 1000
	wordLen    = 12 // of the word around streams: 60 bits

	// Of the end of artifact.read's answer: all of what a model gets where it names no limit. It asks
	// for the part that it needs, and a gap in it would be one more artifact.
	maxReadTail = 96 << 10
)

// inBackground tells how to go on with a program in the background.
const inBackground = "It runs in the background as %[1]s, until it ends, process_stop ends it, or this connection does. " +
	"process_output with this id gives what it writes, process_status how it is."

// noRepeat ends each refusal.
const noRepeat = " Do not repeat it: the answer stays the same. Take another way, or tell the user what you need and why."

// layered says where the changes are, and what a person does about them.
const layered = "What was written to the workspace is in the layer %[1]s, not on the host: for the user, palyra changes diff %[1]s"

// NameCall names a call for people and models.
func NameCall(tool string, input json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, input) != nil {
		return tool
	}
	return tool + " " + Clip(b.String(), maxWhat)
}

// Clip cuts text between characters.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Refuse puts down a no. What would change the answer (Denial.Fix) is for the operator, and
// left out.
func (a *Told) Refuse(d *Denial, outcome, about string) {
	a.Outcome, a.Bad, a.Layer, a.Decision = outcome, true, d.Layer, d.DecisionID
	if a.Reason = d.Reason; a.Reason == "" {
		a.Reason = outcome
	}
	a.Comment = Clip(d.Comment, maxComment)
	why := ""
	switch d.Layer {
	case LayerPolicy:
		why = "The operator's policy doesn't permit it."
	case LayerApproval:
		why = "It needs a person's approval and didn't get it."
		if a.Comment != "" {
			why = fmt.Sprintf("A person said no, with the comment %q.", a.Comment)
		}
	case LayerIsolation:
		why = "This host can't enforce the confinement that it needs."
	case LayerBudget:
		why = "The run has used up what it may use."
	case LayerStop:
		why = "The operator has stopped all calls."
	case LayerAccess:
		why = "The credential of this connection lacks a permission"
		if d.Permission != "" {
			why += " (" + d.Permission + ")"
		}
		why += "."
	}
	a.Message = fmt.Sprintf("Nothing ran: %s. %s Reason: %s.%s", about, why, a.Reason, noRepeat)
}

// Tell says what became of a step of a run, without its output; see Took. about names the
// call.
func Tell(about string, r *Run, st *StepResult) *Told {
	a := &Told{Outcome: st.Outcome, Reason: st.Reason, Run: r.ID, Receipt: st.LogIndex, Decision: st.DecisionID}
	if st.Denial != nil {
		if a.Outcome == "" {
			a.Outcome = "denied"
		}
		a.Refuse(st.Denial, a.Outcome, about)
		if a.Decision == "" {
			a.Decision = st.DecisionID
		}
		return a
	}
	if r.Background && st.State == StepRunning {
		a.Outcome, a.Message = ToldStarted, fmt.Sprintf(inBackground, r.ID)
		return a
	}
	switch st.Outcome {
	case "executed":
		a.Exit = &st.Exit
	case "timed_out":
		a.Bad, a.Message = true, "It ran longer than it may: "+about+"."
	case "killed":
		a.Bad, a.Message = true, "It was killed: "+about+"."
	case "outcome_unknown":
		a.Bad, a.Message = true, "It is not known what became of it: "+about+". It may have run: look before you repeat it."
	case "":
		a.Bad, a.Outcome, a.Message = true, ToldError, "Not made: "+about+"."
		if r.State == RunCancelled {
			a.Outcome, a.Message = ToldCancelled, "Cancelled: "+about+"."
		}
	default:
		a.Bad, a.Message = true, "It failed: "+about+"."
	}
	if st.Error != "" {
		a.Message += " " + st.Error + "."
	}
	if st.Layer != "" {
		a.Changes = st.Layer
		a.Message = strings.TrimSpace(a.Message + " " + fmt.Sprintf(layered, st.Layer) + ".")
	}
	return a
}

// Took adds what the step wrote. Of a built-in tool an exit status but 0 is a failure, and output
// in JSON the result. tail returns the end of a stream beyond its first bytes and of most bytes, ""
// where it can't be had.
func (a *Told) Took(st *StepResult, builtin bool, tail func(o Output, first, most int64) string) {
	if a.Outcome == ToldStarted || st.Denial != nil {
		return
	}
	most := int64(maxTail)
	if st.Tool == toolproto.ArtifactRead {
		most = maxReadTail
	}
	end := func(o Output, first int64) string { return tail(o, first, most) }
	a.Stdout, a.StdoutCut = stream(st.Stdout, end)
	a.Stderr, a.StderrCut = stream(st.Stderr, end)
	if builtin && st.Outcome == "executed" {
		a.Bad = st.Exit != 0
		if a.StdoutCut == nil && strings.HasPrefix(a.Stdout, "{") && json.Valid([]byte(a.Stdout)) {
			a.Result, a.Stdout = json.RawMessage(strings.TrimSpace(a.Stdout)), ""
		}
	}
}

// stream returns what a tool wrote: all of it, or beginning and end with a line between.
func stream(o Output, tail func(o Output, first int64) string) (string, *Cut) {
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
		end := tail(o, int64(len(text)))
		if missing -= int64(len(end)); missing > 0 {
			text += fmt.Sprintf("\n[%d bytes are left out here]\n", missing)
		}
		text += end
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text, cut
}

// Text says the answer to clients that show their model only text. Streams stand between lines
// with a word that the program could not know, so nothing in them passes for such a line.
func (a *Told) Text() string {
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
			fmt.Fprintf(&b, ", cut: %s", encodeCut(o.cut))
		}
		fmt.Fprintf(&b, "\n%s\n--- %s end\n", strings.TrimSuffix(o.text, "\n"), word)
	}
	return b.String()
}

func encodeCut(c *Cut) string {
	b, err := json.Marshal(c)
	if err != nil {
		return "{}" // it has nothing that can't be written
	}
	return string(b)
}
