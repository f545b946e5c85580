package clients

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/pagination"
	"github.com/openai/openai-go/v3/responses"
)

func (h *house) client(more ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(h.url), option.WithAPIKey(h.token), option.WithMaxRetries(0)}, more...)...)
}

var weather = openai.FunctionDefinitionParam{Name: "get_weather", Description: openai.String("The weather of a city"),
	Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}}}

func input(text string) responses.ResponseNewParamsInputUnion {
	return responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}
}

// must fails with an error that isn't nil.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestGo drives palyrad with OpenAI's client for Go.
func TestGo(t *testing.T) {
	h := newHouse(t)
	c := h.client()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, f := range map[string]func(*testing.T, context.Context, *house, openai.Client){
		"models": goModels, "chat": goChat, "tools": goTools, "stream": goStream, "cancel": goCancel, "errors": goErrors,
		"responses": goResponses, "events": goEvents, "background": goBackground, "agent": goAgent, "functions": goFunctions, "approval": goApproval,
	} {
		t.Run(name, func(t *testing.T) { f(t, ctx, h, c) })
	}
	ask := must[*responses.Response](t)
	first := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "real", Input: input("hello")}))
	h.stop()
	h.start()
	if r := ask(c.Responses.Get(ctx, first.ID, responses.ResponseGetParams{})); r.OutputText() != "You said hello." {
		t.Errorf("behind a restart: %s", r.RawJSON())
	}
	if r := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "real", PreviousResponseID: openai.String(first.ID), Input: input("more")})); r.OutputText() != "You said more." || len(h.server.last().Messages) != 3 {
		t.Errorf("behind a restart: %s", r.RawJSON())
	}
}

func goModels(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	page := must[*pagination.Page[openai.Model]](t)(c.Models.List(ctx))
	var ids []string
	for _, m := range page.Data {
		ids = append(ids, m.ID)
	}
	if got := strings.Join(ids, " "); !strings.Contains(got, "real") || !strings.Contains(got, "agent/real") || !strings.Contains(got, " agent ") {
		t.Errorf("models: %s", got)
	}
	if m := must[*openai.Model](t)(c.Models.Get(ctx, "agent/real")); m.ID != "agent/real" || m.OwnedBy != "openai_chat" {
		t.Errorf("%+v", m)
	}
}

func goChat(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	r := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "real", Temperature: openai.Float(0.5),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.DeveloperMessage("Be brief."), openai.UserMessage("hello")}}))
	if len(r.Choices) != 1 || r.Choices[0].Message.Content != "You said hello." || r.Choices[0].FinishReason != "stop" || r.Usage.PromptTokens != 11 || r.Usage.CompletionTokens != 4 ||
		r.Usage.PromptTokensDetails.CachedTokens != 3 || !strings.HasPrefix(r.ID, "chatcmpl_") {
		t.Errorf("%s", r.RawJSON())
	}
	if got := h.server.last(); got.Messages[0].Role != "system" || got.Messages[0].Content != "Be brief." || got.Temperature == nil || *got.Temperature != 0.5 {
		t.Errorf("the provider was asked %+v", got)
	}
}

func goTools(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	q := openai.ChatCompletionNewParams{Model: "real", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("weather?")}, Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(weather)}}
	r := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(ctx, q))
	calls := r.Choices[0].Message.ToolCalls
	if len(calls) != 1 || calls[0].Function.Name != "get_weather" || calls[0].Function.Arguments != `{"city":"Oslo"}` || r.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("%s", r.RawJSON())
	}
	q.Messages = append(q.Messages, r.Choices[0].Message.ToParam(), openai.ToolMessage("21", calls[0].ID))
	r = must[*openai.ChatCompletion](t)(c.Chat.Completions.New(ctx, q))
	if r.Choices[0].Message.Content != "It is 21 degrees." {
		t.Errorf("%s", r.RawJSON())
	}
	if got := h.server.last(); len(got.Messages) != 3 || got.Messages[2].Call != "call_7" || !strings.Contains(string(got.Messages[1].Calls), "call_7") {
		t.Errorf("the provider was asked %+v", got)
	}
}

// goStream: the first word is there while the provider holds back the second.
func goStream(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	s := c.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "real", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("slow")},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}})
	var all openai.ChatCompletionAccumulator
	waits := true
	for s.Next() {
		all.AddChunk(s.Current())
		if len(all.Choices) > 0 && all.Choices[0].Message.Content == "one " && waits {
			waits = false
			close(h.server.go1)
		}
	}
	if s.Err() != nil || waits || all.Choices[0].Message.Content != "one two" || all.Usage.TotalTokens != 15 || all.Choices[0].FinishReason != "stop" {
		t.Errorf("%v, waits %v: %+v", s.Err(), waits, all.ChatCompletion)
	}
}

// goCancel: a client that goes takes the question to the provider along.
func goCancel(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	own, cancel := context.WithCancel(ctx)
	s := c.Chat.Completions.NewStreaming(own, openai.ChatCompletionNewParams{Model: "real", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hang")}})
	for s.Next() {
		if cs := s.Current().Choices; len(cs) > 0 && cs[0].Delta.Content != "" {
			cancel()
		}
	}
	cancel()
	select {
	case <-h.server.gone:
	case <-ctx.Done():
		t.Error("the provider is still being asked")
	}
}

func goErrors(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := func(c openai.Client, model, text string, more ...option.RequestOption) (*openai.Error, error) {
		_, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: openai.ChatModel(model), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}, more...)
		e, _ := errors.AsType[*openai.Error](err)
		if e == nil {
			e = new(openai.Error)
		}
		return e, err
	}
	if e, err := ask(h.client(option.WithAPIKey("palyra_wrong")), "real", "hello"); e.StatusCode != 401 || e.Code != "invalid_api_token" || e.Type != "invalid_api_key" {
		t.Errorf("%v", err)
	}
	if e, err := ask(c, "nothing", "hello"); e.StatusCode != 404 || e.Code != "model_not_found" || e.Param != "model" {
		t.Errorf("%v", err)
	}
	if e, err := ask(c, "real", "hello", option.WithJSONSet("seed", 7)); e.StatusCode != 400 || e.Param != "seed" || e.Code != "unsupported_parameter" {
		t.Errorf("%v", err)
	}
	if e, err := ask(c, "real", "busy"); e.StatusCode != 429 || e.Type != "rate_limit_error" || e.Response.Header.Get("Retry-After") != "7" {
		t.Errorf("%v", err)
	}
	if r, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "real", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("long")}}); err != nil || r.Choices[0].FinishReason != "length" {
		t.Errorf("%v", err)
	}
	s := c.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "real", Input: input("busy")})
	for s.Next() {
		t.Errorf("an event: %s", s.Current().RawJSON())
	}
	if e, _ := errors.AsType[*openai.Error](s.Err()); e == nil || e.StatusCode != 429 {
		t.Errorf("%v", s.Err())
	}
}

func goResponses(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := must[*responses.Response](t)
	q := responses.ResponseNewParams{Model: "real", Instructions: openai.String("Be brief."), Input: input("weather?"),
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weather.Parameters, false)}}
	r := ask(c.Responses.New(ctx, q))
	if r.Status != "completed" || len(r.Output) != 1 || r.Output[0].Type != "function_call" || r.Output[0].Name != "get_weather" || r.Usage.InputTokens != 11 {
		t.Fatalf("%s", r.RawJSON())
	}
	q.PreviousResponseID = openai.String(r.ID)
	result := responses.ResponseInputItemParamOfFunctionCallOutput(r.Output[0].CallID, "21")
	q.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{result}}
	second := ask(c.Responses.New(ctx, q))
	if second.OutputText() != "It is 21 degrees." || second.PreviousResponseID != r.ID {
		t.Errorf("%s", second.RawJSON())
	}
	if got := h.server.last(); len(got.Messages) != 4 || got.Messages[0].Content != "Be brief." || got.Messages[3].Content != "21" {
		t.Errorf("the provider was asked %+v", got)
	}
	if got := ask(c.Responses.Get(ctx, second.ID, responses.ResponseGetParams{})); got.OutputText() != "It is 21 degrees." || got.Status != "completed" {
		t.Errorf("%s", got.RawJSON())
	}
	gone := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "real", Store: openai.Bool(false), Input: input("hello")}))
	e := new(openai.Error)
	if _, err := c.Responses.Get(ctx, gone.ID, responses.ResponseGetParams{}); !errors.As(err, &e) || e.StatusCode != 404 {
		t.Errorf("what isn't stored: %v", err)
	}
	if r := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "real", Input: input("long")})); r.Status != "incomplete" || r.IncompleteDetails.Reason != "max_output_tokens" || r.OutputText() != "It begins" {
		t.Errorf("%s", r.RawJSON())
	}
}

// goEvents: the events are those that are documented, in their order.
func goEvents(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	s := c.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "real", Input: input("hello")})
	var kinds []string
	text := ""
	for n := int64(0); s.Next(); n++ {
		e := s.Current()
		if e.SequenceNumber != n {
			t.Errorf("event %d: %s", n, e.RawJSON())
		}
		if e.Type == "response.output_text.delta" {
			text += e.Delta
		}
		kinds = append(kinds, strings.TrimPrefix(e.Type, "response."))
		if e.Type == "response.completed" && e.Response.OutputText() != text {
			t.Errorf("%q, and %s", text, e.RawJSON())
		}
	}
	const want = "created in_progress output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done completed"
	if got := strings.Join(kinds, " "); s.Err() != nil || got != want || text != "You said hello." {
		t.Errorf("%v: %s", s.Err(), got)
	}
	s = c.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "calls", Input: input("?"), Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weather.Parameters, false)}})
	kinds = nil
	for s.Next() {
		if k := s.Current().Type; strings.Contains(k, "function_call") || strings.Contains(k, "output_item") {
			kinds = append(kinds, strings.TrimPrefix(k, "response."))
		}
	}
	if got := strings.Join(kinds, " "); s.Err() != nil || got != "output_item.added output_item.done output_item.added function_call_arguments.delta function_call_arguments.done output_item.done" {
		t.Errorf("%v: %s", s.Err(), got)
	}
}

func goBackground(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := must[*responses.Response](t)
	r := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent/looks", Background: openai.Bool(true), Input: input("what is there?")}))
	if r.Status != "queued" {
		t.Errorf("%s", r.RawJSON())
	}
	for r.Status == "queued" || r.Status == "in_progress" {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		r = ask(c.Responses.Get(ctx, r.ID, responses.ResponseGetParams{}))
	}
	if r.Status != "completed" || !strings.HasSuffix(r.OutputText(), "There is one file.") {
		t.Errorf("%s", r.RawJSON())
	}
	waits := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent/touches", Background: openai.Bool(true), Input: input("make it")}))
	if r := ask(c.Responses.Cancel(ctx, waits.ID)); r.Status != "cancelled" {
		t.Errorf("%s", r.RawJSON())
	}
}

// goAgent: palyrad's own agent makes its calls here, and its session goes on.
func goAgent(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := must[*responses.Response](t)
	r := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent", Input: input("what is there?")}))
	if r.Status != "completed" || len(r.Output) != 3 || r.Output[1].Type != "palyra:tool_call" || !strings.Contains(r.Output[1].RawJSON(), `"outcome":"executed"`) {
		t.Fatalf("%s", r.RawJSON())
	}
	r = ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent", PreviousResponseID: openai.String(r.ID), Input: input("what did you say?")}))
	if r.OutputText() != "I said so." {
		t.Errorf("%s", r.RawJSON())
	}
	chat := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "agent", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("what is there?")}}))
	if chat.Choices[0].Message.Content != "I look.\n\nThere is one file." || len(chat.Choices[0].Message.ToolCalls) != 0 {
		t.Errorf("%s", chat.RawJSON())
	}
}

// goFunctions: the agent may call a function of the client's, and goes on with the result.
func goFunctions(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := must[*responses.Response](t)
	q := responses.ResponseNewParams{Model: "agent/calls", Input: input("weather?"), Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weather.Parameters, false)}}
	r := ask(c.Responses.New(ctx, q))
	n := len(r.Output)
	if r.Status != "completed" || n != 2 || r.Output[1].Type != "function_call" || r.Output[1].Name != "get_weather" {
		t.Fatalf("%s", r.RawJSON())
	}
	result := responses.ResponseInputItemParamOfFunctionCallOutput(r.Output[1].CallID, "rain")
	q.PreviousResponseID, q.Input = openai.String(r.ID), responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{result}}
	if r = ask(c.Responses.New(ctx, q)); r.OutputText() != "It rains." {
		t.Errorf("%s", r.RawJSON())
	}
}

// goApproval: a response that waits for a person is incomplete, and goes on without input.
func goApproval(t *testing.T, ctx context.Context, h *house, c openai.Client) {
	ask := must[*responses.Response](t)
	r := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent/touches", Input: input("make it")}))
	last := r.Output[len(r.Output)-1]
	if r.Status != "incomplete" || r.IncompleteDetails.Reason != "palyra:approval_required" || last.Type != "palyra:approval_request" {
		t.Fatalf("%s", r.RawJSON())
	}
	if got := ask(c.Responses.Get(ctx, r.ID, responses.ResponseGetParams{})); got.Status != "incomplete" {
		t.Errorf("%s", got.RawJSON())
	}
	h.palyra("approvals", "deny", last.ID)
	s := c.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "agent/touches", Input: input("make it")})
	var kinds []string
	waits := ""
	for s.Next() {
		kinds, waits = append(kinds, s.Current().Type), s.Current().Response.ID
	}
	ask(c.Responses.Cancel(ctx, waits))
	if n := len(kinds); s.Err() != nil || n == 0 || kinds[n-1] != "response.incomplete" {
		t.Errorf("%v: %v", s.Err(), kinds)
	}
	r2 := ask(c.Responses.New(ctx, responses.ResponseNewParams{Model: "agent/touches", PreviousResponseID: openai.String(r.ID)}))
	if r2.ID != r.ID || r2.Status != "completed" || !strings.HasSuffix(r2.OutputText(), "Done.") || !strings.Contains(r2.RawJSON(), `"outcome":"not_approved"`) {
		t.Errorf("%s", r2.RawJSON())
	}
}
