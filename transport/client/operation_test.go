package client

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/transport/api"
	"palyra/transport/httpapi"
)

// catcher is a hub that keeps what reaches it.
type catcher struct {
	op *hub.Operation
	in any
}

func (c *catcher) Authenticate(context.Context, hub.Credential) (hub.Caller, error) {
	return hub.Caller{User: "uid:0", Role: "owner", ReadsPolicy: true}, nil
}

func (c *catcher) Do(_ context.Context, _ hub.Caller, op *hub.Operation, in any) (any, error) {
	c.op, c.in = op, in
	return reflect.New(op.Out).Elem().Interface(), nil
}

// TestEveryInputTravels: whatever an operation's input holds, the hub behind the
// socket is given the same, wherever in the request it was: a field without a place
// would be lost.
func TestEveryInputTravels(t *testing.T) {
	h := &catcher{}
	socket, _ := serveHub(t, h, httpapi.Limits{})
	c := dial(t, Config{Socket: socket})
	for _, op := range hub.Operations() {
		switch op {
		case hub.ReadTape.Operation, hub.ReadOutput.Operation, hub.GetArtifact.Operation, hub.Backup.Operation:
			// Streams have tests of their own.
			continue
		}
		in := reflect.New(op.In).Elem()
		sample(in, op)
		if _, err := c.Do(t.Context(), nobody, op, in.Interface()); err != nil {
			t.Errorf("%s: %v", op.ID, err)
			continue
		}
		if got := h.in; h.op != op || !reflect.DeepEqual(got, in.Interface()) {
			t.Errorf("%s got\n%+v, want\n%+v", op.ID, got, in.Interface())
		}
		for _, f := range api.InputOf(op).Path {
			if !strings.Contains(op.Path, "{"+f.Name) {
				t.Errorf("%s: no {%s} in the path", op.ID, f.Name)
			}
		}
		if want := strings.Count(op.Path, "{"); len(api.InputOf(op).Path) != want {
			t.Errorf("%s: %d parameters of %d in the path", op.ID, len(api.InputOf(op).Path), want)
		}
	}
}

// sample fills an input with values that are good where they stand.
func sample(v reflect.Value, op *hub.Operation) {
	in := api.InputOf(op)
	hex := strings.Repeat("0123456789abcdef", 2)
	words := map[string]string{"session": "ses_" + hex, "run": "run_" + hex, "approval": "apr_" + hex, "grant": "grt_" + hex, "layer": "src-0123456789abcdef", "server": "docs", "workspace": "src", "device": "laptop", "pairing": "par_" + hex, "token": "tok_" + hex, "passkey": "psk_" + hex,
		"decision": hex, "principal": "user:a/b c", "name": "0/x001/234.p/9", "after": "", "digest": "sha256:" + hex + hex}
	at := func(index []int) reflect.Value {
		if len(index) == 0 {
			return v
		}
		return v.FieldByIndex(index)
	}
	if in.BodyType != nil {
		fillBody(at(in.Body))
	}
	for _, f := range append(in.Path, in.Query...) {
		x := at(f.Index)
		switch word := words[f.Name]; {
		case f.Number && x.CanUint():
			x.SetUint(7)
		case f.Number:
			x.SetInt(7)
		case f.Flag:
			x.SetBool(true)
		case f.Many:
			x.Set(reflect.ValueOf(f.Enum[:2]))
		case len(f.Enum) > 0:
			x.SetString(f.Enum[len(f.Enum)-1])
		case f.Of != "":
			x.SetString(words[f.Of])
		case word != "":
			x.SetString(strings.ReplaceAll(word, " c", "")) // a query has no space
		}
	}
	if in.Match != nil {
		at(in.Match).SetInt(3)
	}
	if in.Key != nil && (op.Idempotent || op.Key) {
		at(in.Key).SetString("key")
	}
}

// fillBody fills every field of a body.
func fillBody(v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[json.RawMessage]():
		v.Set(reflect.ValueOf(json.RawMessage(`{"a":"<b>"}`)))
		return
	case reflect.TypeFor[time.Duration]():
		v.SetInt(int64(time.Hour))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fillBody(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillBody(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fillBody(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillBody(k)
		fillBody(e)
		v.SetMapIndex(k, e)
	case reflect.String:
		v.SetString("ses_" + strings.Repeat("0", 32))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(5)
	case reflect.Uint64:
		v.SetUint(5)
	}
}

var _ httpapi.Hub = (*catcher)(nil)
