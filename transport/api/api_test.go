package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// TestEveryKindHasAStatus: a kind that is added to fault is noticed here.
func TestEveryKindHasAStatus(t *testing.T) {
	for k := fault.Kind(0); !strings.HasPrefix(k.String(), "kind_"); k++ {
		c, ok := classes[k]
		if !ok {
			t.Errorf("kind %v has no status", k)
		}
		if c.status < 400 || c.status > 599 || c.title == "" {
			t.Errorf("kind %v: %+v", k, c)
		}
	}
	if got := StatusOf(fault.New(200, "x", "y", nil)); got != 500 {
		t.Errorf("unknown kind: %d", got)
	}
}

// TestDocumentedStatuses holds the page to the table.
func TestDocumentedStatuses(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/http.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- kinds: held to transport/api by a test -->\n")
	got, _, ok := strings.Cut(rest, "<!-- end -->")
	var want []string
	for k := fault.Kind(0); int(k) < len(classes); k++ {
		want = append(want, fmt.Sprintf("%v %d", k, classes[k].status))
	}
	if got = strings.Join(strings.Fields(got), " "); !ok || got != strings.Join(want, ", ") {
		t.Errorf("docs/formats/http.md has\n%s\nwant\n%s", got, strings.Join(want, ", "))
	}
}

// TestRoundTrip: an error comes out of a problem as it went in, as far as it may be shown.
func TestRoundTrip(t *testing.T) {
	d := hub.Denial{DecisionID: "0011", Layer: hub.LayerPolicy, Reason: "forbidden", Policies: []string{"a", "b"}, PolicySet: canon.Sum([]byte("1")), Capsule: canon.Sum([]byte("2")),
		Errors: []string{"e"}, Fix: "permit (…);", Permission: "run.start"}
	for _, tt := range []struct {
		name string
		err  error
		kind fault.Kind
		hint string
	}{
		{"usage", fault.New(fault.Usage, "invalid_input", "parse id", errors.New("no id")).WithHint("look"), fault.Usage, "look"},
		{"busy", fault.New(fault.Busy, "queue_full", "start run", nil), fault.Busy, ""},
		{"conflict", fault.New(fault.Busy, "version_conflict", "end session", nil), fault.Busy, ""},
		{"unavailable", fault.New(fault.Unavailable, "disk_full", "start run", nil), fault.Unavailable, ""},
		{"wrapped", fmt.Errorf("outer: %w", fault.New(fault.NotFound, "not_found", "read run", nil)), fault.NotFound, ""},
		{"denied", fault.New(fault.Denied, "forbidden", "call", &hub.DenialError{Denial: d}).WithHint("h"), fault.Denied, "h"},
		{"bad state", fault.New(fault.BadState, "config_invalid", "load", errors.New("/secret")).WithHint("check"), fault.BadState, "check"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := ProblemOf(tt.err, "1234", true)
			b, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var q Problem
			if err := canon.Decode(b, &q, canon.Limits{}); err != nil {
				t.Fatal(err)
			}
			got := q.Err("op")
			if fault.KindOf(got) != tt.kind || fault.ReasonOf(got) != fault.ReasonOf(tt.err) || fault.HintOf(got) != tt.hint {
				t.Errorf("got %v %q hint %q, want %v %q %q", fault.KindOf(got), fault.ReasonOf(got), fault.HintOf(got), tt.kind, fault.ReasonOf(tt.err), tt.hint)
			}
			if !errors.Is(got, fault.Code(fault.ReasonOf(tt.err))) || errors.Is(got, fault.ErrLocked) {
				t.Errorf("%v isn't %q, or locked", got, fault.ReasonOf(tt.err))
			}
			if want := hub.DenialOf(tt.err); !reflect.DeepEqual(hub.DenialOf(got), want) {
				t.Errorf("denial %+v, want %+v", hub.DenialOf(got), want)
			}
			if classes[tt.kind].open && !strings.Contains(got.Error(), tt.err.Error()) {
				t.Errorf("text %q lacks %q", got, tt.err)
			}
			if strings.Contains(string(b), "/secret") {
				t.Errorf("what is inside is shown: %s", b)
			}
		})
	}
}

// TestNothingFromInside: an error that isn't about the request shows only its class and the
// id.
func TestNothingFromInside(t *testing.T) {
	for _, err := range []error{
		errors.New("open /secret: no"), fault.New(fault.Internal, "oops", "read /secret", nil).WithHint("cat /secret"),
		fault.New(fault.Integrity, "bad_tree", "check /secret", nil), fault.New(99, "x", "/secret", nil),
	} {
		for _, trusted := range []bool{true, false} {
			b, _ := json.Marshal(ProblemOf(err, "77", trusted))
			if strings.Contains(string(b), "secret") || !strings.Contains(string(b), "urn:palyra:request:77") {
				t.Errorf("%v: %s", err, b)
			}
		}
	}
	// What is wrong with a policy directory is told to a caller who may read policy, and to no other.
	bad := fault.New(fault.BadState, "policy_invalid", `read list of hosts "npm.hosts"`, errors.New("secret")).WithHint("secret")
	for _, trusted := range []bool{true, false} {
		p := ProblemOf(fmt.Errorf("reload: %w", bad), "77", trusted)
		if told := strings.Contains(p.Detail, "npm.hosts") && p.Hint == "secret" && p.Status == 500; told != trusted {
			t.Errorf("trusted %t: %+v", trusted, p)
		}
	}
	// A caller who may not read policy learns only the class of a refusal and the
	// decision's id.
	d := &hub.DenialError{Denial: hub.Denial{DecisionID: "0011", Layer: hub.LayerPolicy, Policies: []string{"secret"}, Fix: "secret"}}
	for _, k := range []fault.Kind{fault.Denied, fault.NotApproved, fault.Refused} {
		p := ProblemOf(fault.New(k, "secret", "secret", d).WithHint("secret"), "", false)
		want := Problem{Type: ProblemType + k.String(), Title: classes[k].title, Status: classes[k].status, Kind: k.String(), Decision: "0011"}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%v: %+v, want %+v", k, p, want)
		}
		b, _ := json.Marshal(ProblemOf(fault.New(k, "secret", "secret", nil), "", false))
		if strings.Contains(string(b), "secret") {
			t.Errorf("%v without a denial: %s", k, b)
		}
	}
}

// TestContextErrors are no bugs.
func TestContextErrors(t *testing.T) {
	if got := StatusOf(fmt.Errorf("x: %w", context.DeadlineExceeded)); got != 504 {
		t.Errorf("deadline: %d", got)
	}
	if got := StatusOf(context.Canceled); got != 409 {
		t.Errorf("canceled: %d", got)
	}
}

// TestProblemOfOthers: a proxy in between has no kinds.
func TestProblemOfOthers(t *testing.T) {
	for status, want := range map[int]fault.Kind{401: fault.Denied, 403: fault.Denied, 404: fault.NotFound, 409: fault.Busy, 418: fault.Usage, 429: fault.Unavailable,
		500: fault.Internal, 502: fault.Unavailable, 504: fault.Timeout} {
		if got := fault.KindOf((&Problem{Status: status}).Err("op")); got != want {
			t.Errorf("status %d: %v, want %v", status, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\r\n  b\tc" + strings.Repeat("ä", 1000)); len(got) > maxDetail+4 || strings.ContainsAny(got, "\r\n\t") || !strings.HasPrefix(got, "a b c") {
		t.Errorf("%.40q, %d bytes", got, len(got))
	}
}

type inner struct {
	A string `json:"a"`
	b int
}

type sample struct {
	inner
	N    uint64            `json:"n"`
	P    *inner            `json:"p"`
	O    *inner            `json:"o,omitempty"`
	L    []inner           `json:"l"`
	M    map[string]int    `json:"m,omitempty"`
	T    time.Time         `json:"t"`
	D    canon.Digest      `json:"d"`
	Raw  json.RawMessage   `json:"raw"`
	B    []byte            `json:"b"`
	F    [2]bool           `json:"f"`
	Page hub.Page[inner]   `json:"page"`
	Skip chan int          `json:"-"`
	Doc  string            `json:"doc" doc:"what it is"`
	K    fault.Kind        `json:"k"`
	Tree *sample           `json:"tree,omitempty"`
	Any  any               `json:"any"`
	Dur  time.Duration     `json:"dur"`
	Strs map[string]string `json:"strs"`
}

// TestSchema holds the schema of a type that has everything to what it must be.
func TestSchema(t *testing.T) {
	s := &schemas{defs: object{}, types: map[string]reflect.Type{}}
	s.of(Type[sample]())
	got, err := json.Marshal(s.defs["Sample"])
	if err != nil {
		t.Fatal(err)
	}
	want := `{"additionalProperties":false,"properties":{
"a":{"type":"string"},"any":{"description":"any JSON value"},"b":{"contentEncoding":"base64","type":"string"},
"d":{"pattern":"^(sha256:[0-9a-f]{64})?$","type":"string"},"doc":{"description":"what it is","type":"string"},
"dur":{"description":"nanoseconds","type":"integer"},
"f":{"items":{"type":"boolean"},"maxItems":2,"minItems":2,"type":"array"},"k":{"minimum":0,"type":"integer"},
"l":{"items":{"$ref":"#/components/schemas/Inner"},"type":"array"},"m":{"additionalProperties":{"type":"integer"},"type":"object"},
"n":{"minimum":0,"type":"integer"},"o":{"$ref":"#/components/schemas/Inner"},
"p":{"anyOf":[{"$ref":"#/components/schemas/Inner"},{"type":"null"}]},"page":{"$ref":"#/components/schemas/Pageinner"},
"raw":{"description":"any JSON value"},"strs":{"additionalProperties":{"type":"string"},"type":"object"},
"t":{"format":"date-time","type":"string"},"tree":{"$ref":"#/components/schemas/Sample"}},
"required":["a","n","p","l","t","d","raw","b","f","page","doc","k","any","dur","strs"],"type":"object"}`
	if want = strings.ReplaceAll(want, "\n", ""); string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_ = inner{}.b
}

// TestSchemaRefusesWhatItCannotSay instead of guessing.
func TestSchemaRefusesWhatItCannotSay(t *testing.T) {
	for name, typ := range map[string]reflect.Type{"channel": Type[chan int](), "own JSON": Type[json.Number](), "complex": Type[complex64]()} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil && name != "own JSON" {
					t.Error("there is a schema")
				}
			}()
			(&schemas{defs: object{}, types: map[string]reflect.Type{}}).of(typ)
		})
	}
	if _, err := Document([]*hub.Operation{{ID: "a", Method: "GET", Path: "/x"}, {ID: "b", Method: "GET", Path: "/x"}}); err == nil {
		t.Error("two operations in one place")
	}
}
