package turn

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestEmbed: a question for vectors is read as it was written, and stands alone.
func TestEmbed(t *testing.T) {
	r := &Request{Embed: &Embed{Input: []string{"a", "b"}, Dimensions: 8}}
	b, err := r.Encode()
	if err != nil || string(b) != `{"embed":{"dimensions":8,"input":["a","b"]}}` {
		t.Fatalf("%s, %v", b, err)
	}
	if back, err := ParseRequest(b); err != nil || !slices.Equal(back.Embed.Input, r.Embed.Input) || back.Embed.Dimensions != 8 {
		t.Errorf("%+v, %v", back, err)
	}
	for _, bad := range []string{
		`{"embed":{}}`,
		`{"embed":{"input":[]}}`,
		`{"embed":{"input":[""]}}`,
		`{"embed":{"input":"a"}}`,
		`{"embed":{"input":[[1,2]]}}`,
		`{"embed":{"input":["a"],"dimensions":-1}}`,
		`{"embed":{"input":["a"],"dimensions":4097}}`,
		`{"embed":{"input":["a"],"encoding_format":"float"}}`,
		`{"embed":{"input":["a"]},"messages":[{"role":"user","parts":[{"text":"a"}]}]}`,
		`{"embed":{"input":["a"]},"max_tokens":1}`,
		`{"embed":{"input":["a"]},"script":{"turns":[]}}`,
		`{"embed":{"input":[` + strings.Repeat(`"a",`, MaxInputs) + `"a"]}}`,
	} {
		if _, err := ParseRequest([]byte(bad)); err == nil {
			t.Errorf("%.80s is a request", bad)
		}
	}
	for dialect, ok := range map[string]bool{Responses: true, Chat: true, Scripted: true, Messages: false} {
		if err := r.Fits(dialect); (err == nil) != ok {
			t.Errorf("%s: %v", dialect, err)
		}
	}
}

// TestVectors: an answer has vectors of one length and nothing else.
func TestVectors(t *testing.T) {
	var b bytes.Buffer
	w := Writer{&b}
	all := [][]float32{{0.25, -1, 3e-9}, {0, 0, float32(math.MaxFloat32)}}
	for _, v := range all {
		if err := w.Write(Event{Vector: NewVector(v)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(Event{End: EndStop, Usage: &Usage{Input: 4}}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), `{"vector":"AACAPgAAgL`) {
		t.Errorf("%s", &b)
	}
	a, err := ReadAnswer(bytes.NewReader(b.Bytes()))
	if err != nil || len(a.Vectors) != 2 || !slices.Equal(a.Vectors[0].Numbers(), all[0]) || !slices.Equal(a.Vectors[1].Numbers(), all[1]) || a.Usage.Input != 4 {
		t.Errorf("%+v, %v", a, err)
	}
	const v = `{"vector":"AACAPw=="}` + "\n"
	for name, text := range map[string]string{
		"no vector":     `{"vector":""}` + "\n",
		"three bytes":   `{"vector":"AACA"}` + "\n",
		"no base64":     `{"vector":"A"}` + "\n",
		"a list":        `{"vector":[1]}` + "\n",
		"another size":  v + `{"vector":"AACAPwAAgD8="}` + "\n",
		"NaN":           `{"vector":"AADAfw=="}` + "\n",
		"infinity":      `{"vector":"AACAfw=="}` + "\n",
		"text, too":     v + `{"text":"a"}` + "\n",
		"behind a text": `{"text":"a"}` + "\n" + v,
		"too many":      strings.Repeat(v, MaxInputs+1),
	} {
		if _, err := ReadAnswer(strings.NewReader(text + `{"end":"stop"}`)); fault.ReasonOf(err) != "bad_answer" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
