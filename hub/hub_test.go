package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// TestPlain: whatever crosses the interface is data: structs of this package, of
// package call and of call/diagnosis with snake_case names, of texts, numbers, times and lists. No pointer into the
// kernel can get out.
func TestPlain(t *testing.T) {
	streams := map[reflect.Type]bool{
		reflect.TypeFor[context.Context](): true, reflect.TypeFor[error](): true, reflect.TypeFor[io.Writer](): true,
		reflect.TypeFor[Tape](): true, reflect.TypeFor[Outputs](): true, reflect.TypeFor[Artifact](): true,
	}
	packages := []string{reflect.TypeFor[Caller]().PkgPath(), reflect.TypeFor[call.Card]().PkgPath(), reflect.TypeFor[Diagnosis]().PkgPath()}
	seen := make(map[reflect.Type]bool)
	var plain func(where string, x reflect.Type)
	plain = func(where string, x reflect.Type) {
		if streams[x] || seen[x] || x == reflect.TypeFor[time.Time]() || x == reflect.TypeFor[json.RawMessage]() || x == reflect.TypeFor[canon.Digest]() {
			return
		}
		seen[x] = true
		switch x.Kind() {
		case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		case reflect.Slice, reflect.Pointer:
			plain(where, x.Elem())
		case reflect.Map:
			plain(where, x.Elem())
		case reflect.Interface:
			if where != "Setting.Value" {
				t.Errorf("%s is a %v", where, x)
			}
		case reflect.Struct:
			if !slices.Contains(packages, x.PkgPath()) {
				t.Errorf("%s is a %v, which is of none of these packages", where, x)
			}
			for i := range x.NumField() {
				f := x.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				header := name == "-" // it crosses no wire, or beside the body
				if !f.IsExported() || !f.Anonymous && !snake.MatchString(name) && !header {
					t.Errorf("%s.%s has the name %q", x.Name(), f.Name, name)
				}
				if f.Type == reflect.TypeFor[time.Duration]() && !strings.HasSuffix(name, "_ns") && x != reflect.TypeFor[call.CardLimits]() { // cards of older versions say "wall"
					t.Errorf("%s.%s does not say that it is in nanoseconds", x.Name(), f.Name)
				}
				plain(x.Name()+"."+f.Name, f.Type)
			}
		default:
			t.Errorf("%s is a %v", where, x)
		}
	}
	for _, op := range Operations() {
		plain(op.ID, op.In)
		plain(op.ID, op.Out)
	}
	for _, data := range []any{RunChange{}, StepStarted{}, StepDecided{}, StepOutput{}, ApprovalResolved{}, OutputPart{}} {
		// The data of events.
		plain("event", reflect.TypeOf(data))
	}
}

func TestDenialOf(t *testing.T) {
	d := Denial{Layer: LayerPolicy, DecisionID: "0123", Reason: "not_permitted"}
	err := fmt.Errorf("call: %w", fault.New(fault.Denied, "not_permitted", "decide", &DenialError{d}))
	if got := DenialOf(err); got == nil || got.DecisionID != "0123" || !strings.Contains(err.Error(), "policy, decision 0123") {
		t.Errorf("%+v of %v", got, err)
	}
	if DenialOf(nil) != nil || DenialOf(errors.New("x")) != nil {
		t.Error("a denial out of nothing")
	}
	if got := (&DenialError{Denial{Layer: LayerAccess}}).Error(); got != "denied by access" {
		t.Error(got)
	}
}
