package canon

import (
	"bytes"
	"testing"

	"palyra/internal/fault"
)

// odd prints itself as the encoders would, or not.
type odd struct {
	Text string            `json:"text"`
	N    int64             `json:"n"`
	M    map[string]uint64 `json:"m"`
	Raw  []string          `json:"raw"`

	printed int
}

func (o *odd) PrintCanonical(w *Writer) {
	o.printed++
	w.Raw(`{"m":`)
	PrintMap(w, o.M, (*Writer).Uint)
	w.Raw(`,"n":`)
	w.Int(o.N)
	w.Raw(`,"raw":`)
	w.Strings(o.Raw)
	w.Raw(`,"text":`)
	w.String(o.Text)
	w.Raw(`}`)
}

// TestPrinter: a type prints itself; where something has no certain form there
// Marshal says what it says of any other type.
func TestPrinter(t *testing.T) {
	o := &odd{Text: "<\u00fc\">", N: -5, M: map[string]uint64{"b": 1, "a": 2}, Raw: []string{}}
	got, err := Marshal(o)
	if want := `{"m":{"a":2,"b":1},"n":-5,"raw":[],"text":"<ü\">"}`; err != nil || string(got) != want || o.printed != 1 {
		t.Errorf("got %s, %v, printed %d times, want %s", got, err, o.printed, want)
	}
	for _, c := range []struct {
		v      odd
		reason string
	}{
		{odd{Text: "\xff"}, "json_utf8"},
		{odd{N: 1<<53 + 1}, "json_number"},
		{odd{M: map[string]uint64{"\xff": 1}}, "json_utf8"},
		{odd{M: map[string]uint64{"a": 1<<53 + 1}}, "json_number"},
		{odd{Raw: []string{"a", "\xff"}}, "json_utf8"},
	} {
		if b, err := Marshal(&c.v); fault.ReasonOf(err) != c.reason {
			t.Errorf("%+v: got %s, %v, want %s", c.v, b, err, c.reason)
		}
	}
	if b, err := Marshal((*odd)(nil)); err != nil || string(b) != "null" {
		t.Errorf("nil: got %s, %v", b, err)
	}
	var raw Writer
	raw.JSON(nil)
	raw.JSON([]byte(`{"a":[1]}`))
	if raw.bad || !bytes.Equal(raw.b, []byte(`null{"a":[1]}`)) {
		t.Errorf("got %s, %v", raw.b, raw.bad)
	}
	for _, in := range []string{``, `{"b":1,"a":2}`, ` 1`, `1 2`, `"\u0041"`} {
		var w Writer
		if w.JSON([]byte(in)); !w.bad {
			t.Errorf("%q was taken for canonical", in)
		}
	}
}
