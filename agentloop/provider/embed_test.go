package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"palyra/agentloop/provider/wordhash"
	"palyra/agentloop/turn"
)

// vectorsOf returns the answer to a question about n texts, of dims dimensions if that isn't 0.
func vectorsOf(body io.Reader, n int, dims int64) (a turn.Answer, err error) {
	var b bytes.Buffer
	e := &turn.Embed{Input: slices.Repeat([]string{"a"}, n), Dimensions: dims}
	if err = DecodeVectors(body, e, (turn.Writer{W: &b}).Write); err != nil {
		if b.Len() > 0 {
			return a, fmt.Errorf("%w, behind %s", err, &b)
		}
		return a, err
	}
	return turn.ReadAnswer(&b)
}

// documented is an answer as OpenAI documents it, with what it might add.
const documented = `{"object":"list","data":[{"object":"embedding","embedding":[0.0023064255,-0.009327292,1e-3],"index":0},
 {"object":"embedding","index":1,"embedding":[-1,2,0],"more":{"a":[1]}}],"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8},"more":[{}]}
`

// TestEncodeEmbed: both of OpenAI's dialects are asked in one way, and no other is.
func TestEncodeEmbed(t *testing.T) {
	r := &turn.Request{Embed: &turn.Embed{Input: []string{"a", "b"}}}
	for _, dialect := range []string{turn.Responses, turn.Chat} {
		q, err := Encode(dialect, "m", r)
		if err != nil || q.Path != "/embeddings" || q.Headers["accept"] != "application/json" || string(q.Body) != `{"input":["a","b"],"model":"m"}` {
			t.Errorf("%s: %+v %s, %v", dialect, q, q.Body, err)
		}
	}
	r.Embed.Dimensions = 3
	if q, err := Encode(turn.Chat, "m", r); err != nil || string(q.Body) != `{"dimensions":3,"input":["a","b"],"model":"m"}` {
		t.Errorf("%s, %v", q.Body, err)
	}
	if _, err := Encode(turn.Messages, "m", r); err == nil || !strings.Contains(err.Error(), `"anthropic" have none`) {
		t.Errorf("%v", err)
	}
}

// TestDecodeVectors: the documented answer is read however it's cut into reads, and in whatever order
// its vectors come; cut anywhere before its end it's none.
func TestDecodeVectors(t *testing.T) {
	want := [][]float32{{0.0023064255, -0.009327292, 0.001}, {-1, 2, 0}}
	turned := strings.NewReplacer(`"index":0`, `"index":1`, `"index":1`, `"index":0`).Replace(documented)
	for name, c := range map[string]struct {
		r     io.Reader
		first int
	}{
		"as it is":   {strings.NewReader(documented), 0},
		"by bytes":   {iotest.OneByteReader(strings.NewReader(documented)), 0},
		"turned":     {strings.NewReader(turned), 1},
		"no indexes": {strings.NewReader(strings.NewReplacer(`,"index":0`, "", `"index":1,`, "").Replace(documented)), 0},
	} {
		a, err := vectorsOf(c.r, 2, 0)
		if err != nil || len(a.Vectors) != 2 || !slices.Equal(a.Vectors[c.first].Numbers(), want[0]) || !slices.Equal(a.Vectors[1-c.first].Numbers(), want[1]) || a.End != turn.EndStop || a.Usage != (turn.Usage{Input: 8}) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	whole := strings.TrimSpace(documented)
	for i := range whole {
		if _, err := vectorsOf(strings.NewReader(whole[:i]), 2, 0); classOf(err) != turn.Malformed {
			t.Errorf("the first %d bytes: %v", i, err)
		}
	}
	if _, err := vectorsOf(io.MultiReader(strings.NewReader(documented[:100]), iotest.ErrReader(io.ErrUnexpectedEOF)), 2, 0); err != io.ErrUnexpectedEOF {
		t.Errorf("a connection that breaks: %v", err)
	}
	if a, err := vectorsOf(strings.NewReader(`{"data":[{"embedding":[1]}],"usage":null}`), 1, 1); err != nil || a.Usage != (turn.Usage{}) {
		t.Errorf("without a usage: %+v, %v", a, err)
	}
}

func classOf(err error) string {
	if e, ok := errors.AsType[*turn.Error](err); ok {
		return e.Class
	}
	return ""
}

// TestHostileVectors: what a provider may not send is refused by name, and nothing of it is emitted.
func TestHostileVectors(t *testing.T) {
	of := func(elements ...string) string { return `{"data":[` + strings.Join(elements, ",") + `]}` }
	const one = `{"embedding":[1,2],"index":0}`
	long := "[" + strings.Repeat("0,", turn.MaxDimensions) + "0]"
	for _, c := range []struct {
		body  string
		n     int
		class string
		want  string
	}{
		{``, 1, turn.Malformed, "ended before"},
		{`hello`, 1, turn.Malformed, "isn't JSON"},
		{`<html>`, 1, turn.Malformed, "isn't JSON"},
		{`[]`, 1, turn.Malformed, "[ stands where { ought to"},
		{`"a"`, 1, turn.Malformed, "a stands where {"},
		{`{}`, 1, turn.Malformed, "0 vectors of 1 texts"},
		{`{"data":null}`, 1, turn.Malformed, "stands where [ ought to"},
		{`{"data":{}}`, 1, turn.Malformed, "{ stands where [ ought to"},
		{of(), 1, turn.Malformed, "0 vectors of 1 texts"},
		{of(one), 2, turn.Malformed, "1 vectors of 2 texts"},
		{of(one, `{"embedding":[1,2],"index":1}`), 1, turn.Malformed, "a vector of text 1"},
		{of(one, one), 2, turn.Malformed, "a vector of text 0"},
		{of(`{"embedding":[1],"index":-1}`), 1, turn.Malformed, "a vector of text -1"},
		{of(`{"embedding":[1],"index":1e30}`), 1, turn.Malformed, `"index" is of the type number`},
		{of(`{"embedding":[1],"index":"0"}`), 1, turn.Malformed, `"index" is of the type string`},
		{of(one, `{"embedding":[1],"index":1}`), 2, turn.Malformed, "a vector of 1 numbers beside one of 2"},
		{of(`{"embedding":[],"index":0}`), 1, turn.Malformed, "a vector of 0 numbers"},
		{of(`{"index":0}`), 1, turn.Malformed, "a vector of 0 numbers"},
		{of(`null`), 1, turn.Malformed, "a vector of 0 numbers"},
		{of(`7`), 1, turn.Malformed, "is of the type number"},
		{of(`{"embedding":"AACAPw=="}`), 1, turn.Malformed, `"embedding" is of the type string`},
		{of(`{"embedding":["1"]}`), 1, turn.Malformed, `"embedding" is of the type string`},
		{of(`{"embedding":[null]}`), 1, turn.Malformed, "null"},
		{of(`{"embedding":[[1]]}`), 1, turn.Malformed, `"embedding" is of the type array`},
		{of(`{"embedding":[NaN]}`), 1, turn.Malformed, "isn't JSON"},
		{of(`{"embedding":[1e39]}`), 1, turn.Malformed, `"embedding" is of the type number 1e39`},
		{of(`{"embedding":[1e999]}`), 1, turn.Malformed, `"embedding" is of the type number 1e999`},
		{of(`{"embedding":` + long + `}`), 1, turn.Malformed, "a vector of 4097 numbers"},
		{of(`{"embedding":[` + strings.Repeat("0,", 1<<20)), 1, turn.Malformed, "a part of the answer has more than 262144 bytes"},
		{of(`{"embedding":[` + strings.Repeat("[", 20000)), 1, turn.Malformed, "isn't JSON"},
		{`{"more":"` + strings.Repeat("x", 1<<20), 1, turn.Malformed, "a part of the answer has more"},
		{`{"` + strings.Repeat("x", 1<<20), 1, turn.Malformed, "a part of the answer has more"},
		{of(one) + "{}", 1, turn.Malformed, "goes on behind its end"},
		{of(one) + "x", 1, turn.Malformed, "goes on behind its end"},
		{of(one, `{"embedding":[1,2],"index":1}`)[:30] + `]}`, 2, turn.Malformed, ""},
		{`{"data":[` + one + `],"data":[` + one + `]}`, 1, turn.Malformed, "a vector of text 0"},
		{`{"data":[` + one + `],"usage":{"prompt_tokens":-1}}`, 1, turn.Malformed, "counts -1 tokens"},
		{`{"data":[` + one + `],"usage":{"prompt_tokens":1e30}}`, 1, turn.Malformed, "prompt_tokens"},
		{`{"error":{"code":"insufficient_quota","message":"No."}}`, 1, turn.Quota, "No."},
		{`{"error":"tea","data":[]}`, 1, turn.Transient, "tea"},
	} {
		_, err := vectorsOf(strings.NewReader(c.body), c.n, 0)
		if e, ok := errors.AsType[*turn.Error](err); !ok || e.Class != c.class || !strings.Contains(e.Message, c.want) || strings.Contains(err.Error(), "behind {") {
			t.Errorf("%.150s: %v; want %q", c.body, err, c.want)
		}
	}
	if _, err := vectorsOf(strings.NewReader(of(one)), 1, 3); err == nil || !strings.Contains(err.Error(), "2 numbers, and 3 were asked for") {
		t.Errorf("other dimensions: %v", err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"endless space":  {strings.Repeat(" ", 1<<10), "a part of the answer has more"},
		"endless vector": {"", "a part of the answer has more"},
		"endless data":   {`{"embedding":[1,2]},`, "a vector of text 3"},
	} {
		begin := `{"data":[`
		if c.text == "" {
			begin, c.text = begin+`{"embedding":[`, "1,"
		}
		if _, err := vectorsOf(io.MultiReader(strings.NewReader(begin), &endless{text: c.text}), 3, 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// More than an answer has room for is the question's fault.
	full := `{"embedding":[` + strings.Repeat("0,", turn.MaxDimensions-1) + `0]}`
	large := of(slices.Repeat([]string{full}, 400)...)
	if _, err := vectorsOf(strings.NewReader(large), 400, 0); classOf(err) != turn.ContextWindow {
		t.Errorf("too large: %v", err)
	}
}

// TestHash: the scripted provider's vectors are those of the words, as many as are asked for.
func TestHash(t *testing.T) {
	ask := func(e *turn.Embed) (turn.Answer, error) {
		var b bytes.Buffer
		if err := Hash(e, (turn.Writer{W: &b}).Write); err != nil {
			return turn.Answer{}, err
		}
		return turn.ReadAnswer(&b)
	}
	a, err := ask(&turn.Embed{Input: []string{"hello there", "Hello, there!", "tea"}})
	if err != nil || len(a.Vectors) != 3 || !bytes.Equal(a.Vectors[0], a.Vectors[1]) || bytes.Equal(a.Vectors[0], a.Vectors[2]) || len(a.Vectors[0]) != 4*wordhash.Dimensions || a.Usage.Input != 5 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err = ask(&turn.Embed{Input: []string{"hello"}, Dimensions: 4096}); err != nil || len(a.Vectors[0]) != 4*4096 {
		t.Errorf("%v", err)
	}
	if _, err := ask(&turn.Embed{Input: slices.Repeat([]string{"a"}, turn.MaxInputs), Dimensions: 4096}); classOf(err) != turn.ContextWindow {
		t.Errorf("too many: %v", err)
	}
}

// FuzzDecodeVectors: whatever comes is refused, or is an answer.
func FuzzDecodeVectors(f *testing.F) {
	f.Add([]byte(documented))
	f.Add([]byte(`{"error":{"message":"a"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := vectorsOf(bytes.NewReader(b), 2, 0)
		if err == nil && (len(a.Vectors) != 2 || a.End != turn.EndStop) || err != nil && classOf(err) == "" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}
