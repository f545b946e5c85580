package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/fault"
)

// The names of a run's metadata that are palyrad's own: what a response repeats of its request, and
// the run's steps don't have. The others are the client's.
const (
	keptInstructions = "palyra_instructions" // how many bytes of what the model is told first they are
	keptPrevious     = "palyra_previous"     // id of the response that it goes on with
	keptSafety       = "palyra_safety_identifier"
	keptBackground   = "palyra_background" // "true"
	keptDeleted      = "palyra_deleted"    // "true": the response was given up
)

// repeated is what a response repeats of its request. Of agent and asked one is nil.
func repeated(kept map[string]string, agent *hub.Agent, asked *turn.Request, store bool) object {
	echo, told := object{"store": store}, ""
	if agent != nil {
		told = agent.Instructions
		tools := []object{}
		for _, f := range agent.Functions {
			tools = append(tools, toolOf(turn.Offer{Name: f.Name, Description: f.Description, Schema: f.Schema}))
		}
		echo["tools"] = tools
		if agent.MaxTokens > 0 {
			echo["max_output_tokens"] = agent.MaxTokens
		}
	} else {
		told = asked.System
		repeatRequest(echo, asked)
	}
	metadata := make(map[string]string)
	for name, v := range kept {
		switch name {
		case keptInstructions:
			if first, _ := split(told, kept); first != "" {
				echo["instructions"] = first
			}
		case keptPrevious:
			echo["previous_response_id"] = v
		case keptSafety:
			echo["safety_identifier"] = v
		case keptBackground:
			echo["background"] = true
		default:
			metadata[name] = v
		}
	}
	echo["metadata"] = metadata
	return echo
}

// split divides what a model is told first into a request's instructions and its messages of the
// role system or developer.
func split(told string, kept map[string]string) (instructions, rest string) {
	n, err := strconv.Atoi(kept[keptInstructions])
	if err != nil || n < 0 || n > len(told) {
		return "", told
	}
	return told[:n], strings.TrimPrefix(told[n:], between)
}

// echoOf is the model of a stored response, and what it repeats of its request.
func echoOf(run *hub.Run) (name string, echo object, err error) {
	if run.Agent != nil {
		return run.Agent.Model, repeated(run.Metadata, run.Agent, nil, true), nil
	}
	name, asked, err := askedOf(run)
	if err != nil {
		return "", nil, err
	}
	return name, repeated(run.Metadata, nil, asked, true), nil
}

// response reads the run of a response that is the caller's and wasn't given up. param is the
// member that names it.
func (x *exchange) response(ctx context.Context, id, param string) (*hub.Run, error) {
	code := "response_not_found"
	status := http.StatusNotFound
	if param != "" {
		code, status = "previous_response_not_found", http.StatusBadRequest
	}
	no := &flaw{status: status, kind: kindRequest, param: param, code: code, text: "you have no stored response of this id"}
	run := runOf("resp_", id)
	if run == "" {
		return nil, no
	}
	r, err := hub.GetRun.Do(ctx, x.v.Hub, hub.Caller{}, run)
	switch {
	case fault.KindOf(err) == fault.NotFound, r.Metadata[keptDeleted] != "", err == nil && (r.Principal != x.v.Caller.User || r.Agent == nil && (len(r.Steps) == 0 || r.Steps[0].Tool != turn.Tool || len(r.Steps) > 1)):
		return nil, no
	case err != nil:
		return nil, err
	}
	s, err := hub.GetSession.Do(ctx, x.v.Hub, hub.Caller{}, r.Session)
	if err == nil && s.State != hub.SessionOpen {
		return nil, no
	}
	return &r, err
}

// askedOf returns the model of a raw response, and what it was asked.
func askedOf(run *hub.Run) (name string, asked *turn.Request, err error) {
	var in struct {
		Model   string          `json:"model"`
		Request json.RawMessage `json:"request"`
	}
	if err := json.Unmarshal(run.Steps[0].Input, &in); err != nil {
		return "", nil, err
	}
	asked, err = turn.ParseRequest(in.Request)
	return in.Model, asked, err
}

// getResponse answers GET /v1/responses/{id}.
func (x *exchange) getResponse(id string) error {
	q := x.r.URL.Query()
	if q.Get("stream") == "true" {
		return x.replayResponse(id, q)
	}
	if q.Has("starting_after") {
		return bad("starting_after", "invalid_value", "it's for a stream")
	}
	b, err := x.recorded(id)
	if err != nil {
		return err
	}
	return answer(x.w, http.StatusOK, b.object(b.status))
}

// replayResponse sends the events of a response from its first, or from behind a number, and then
// those that come. They are made of the run's tape as those of its first stream were, and have the
// same numbers.
func (x *exchange) replayResponse(id string, q url.Values) error {
	from := 0
	if q.Has("starting_after") {
		n, err := strconv.Atoi(q.Get("starting_after")) // the server has seen that it's a number
		if err != nil {
			return bad("starting_after", "invalid_value", "want the number of an event")
		}
		from = n + 1
	}
	run, err := x.response(x.r.Context(), id, "")
	if err != nil {
		return err
	}
	b, err := x.replyOf(run)
	if err != nil {
		return err
	}
	b.stream, b.from = &stream{w: x.w}, from
	if err = b.open(); err == nil {
		err = x.follow(run.ID, b.take)
	}
	if err == nil {
		err = b.t.get(x.r.Context())
	}
	if err == nil {
		err = b.finish(false)
	}
	return b.stream.fail(x.r, err)
}

// cancelResponse answers POST /v1/responses/{id}/cancel.
func (x *exchange) cancelResponse(id string) error {
	run, err := x.response(x.r.Context(), id, "")
	if err != nil {
		return err
	}
	if _, err := hub.CancelRun.Do(x.r.Context(), x.v.Hub, hub.Caller{}, run.ID); err != nil {
		return err
	}
	return x.getResponse(id)
}

// deleteResponse answers DELETE /v1/responses/{id}. The run ends, if it hasn't, and stays as one of
// which nothing was stored.
func (x *exchange) deleteResponse(id string) error {
	ctx := x.r.Context()
	run, err := x.response(ctx, id, "")
	if err == nil && !over(run) {
		_, err = hub.CancelRun.Do(ctx, x.v.Hub, hub.Caller{}, run.ID)
	}
	if err == nil {
		_, err = hub.SetMetadata.Do(ctx, x.v.Hub, hub.Caller{}, hub.RunMetadata{Run: run.ID, Metadata: hub.Metadata{Metadata: map[string]string{keptDeleted: "true"}}})
	}
	if err != nil {
		return err
	}
	return answer(x.w, http.StatusOK, object{"id": id, "object": "response", "deleted": true})
}

// over reports whether a run has ended.
func over(run *hub.Run) bool {
	return slices.Contains([]string{hub.RunDone, hub.RunFailed, hub.RunCancelled}, run.State)
}

// replyOf is the response of a run, without what came of it.
func (x *exchange) replyOf(run *hub.Run) (*reply, error) {
	name, echo, err := echoOf(run)
	if err != nil {
		return nil, err
	}
	m := &model{agent: run.Agent != nil, id: name}
	switch {
	case m.agent && name == "":
		m.id = agentAlone
	case m.agent:
		m.id = agentPrefix + name
	}
	return newReply(x, &task{x: x, run: *run}, m, echo), nil
}

// recorded makes a response of what is on record.
func (x *exchange) recorded(id string) (*reply, error) {
	ctx := x.r.Context()
	run, err := x.response(ctx, id, "")
	if err != nil {
		return nil, err
	}
	b, err := x.replyOf(run)
	if err != nil {
		return nil, err
	}
	if run.LastSeq > 0 {
		if err := x.followTo(run.ID, run.LastSeq, b.take); err != nil {
			return nil, err
		}
	}
	switch run.State {
	case hub.RunPending, hub.RunAccepted:
		b.status = "queued"
	case hub.RunInProgress:
		b.status = "in_progress"
	case hub.RunWaitingApproval:
		b.wait()
	default:
		return b, b.settle()
	}
	return b, nil
}

// answerOf reads a model's answer from its step.
func (x *exchange) answerOf(ctx context.Context, run *hub.Run, st *hub.StepResult) (turn.Answer, error) {
	if err := x.grow(int(st.Stdout.Size)); err != nil {
		return turn.Answer{}, err
	}
	if int64(len(st.Stdout.Text)) == st.Stdout.Size {
		return turn.ReadAnswer(strings.NewReader(st.Stdout.Text))
	}
	a, err := hub.GetArtifact.Do(ctx, x.v.Hub, hub.Caller{}, hub.ArtifactQuery{Run: run.ID, Digest: st.Stdout.Artifact.String()})
	if err != nil {
		return turn.Answer{}, fault.New(fault.NotFound, "not_found", "read response", errors.New(cmp.Or(st.Stdout.LostWhy, "its text isn't kept any more")))
	}
	defer a.Close()
	return turn.ReadAnswer(a)
}
