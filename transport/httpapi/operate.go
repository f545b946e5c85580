package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// operate serves an operation whose input and output are JSON or bytes.
func operate(x *exchange) error {
	in, err := x.input()
	if err != nil {
		return err
	}
	do := func() (any, error) { return x.s.cfg.Hub.Do(x.r.Context(), x.caller, x.rt.Operation, in) }
	if x.rt.Idempotent && x.rt.in.Key == nil {
		return x.operateOnce(do)
	}
	out, err := do()
	if err != nil {
		return err
	}
	// Readers whose rights have changed come back and authenticate again. Tokens that were
	// made with a revoked one have ended with it.
	switch v := in.(type) {
	case hub.TokenChange:
		x.s.streams.cut(out.(hub.Token).Principal)
	case hub.MemberPut:
		x.s.streams.cut(v.Principal)
	case hub.MemberRemoval:
		x.s.streams.cut(v.Principal)
	}
	return x.answer(x.rt.Status, out)
}

// spent returns the part of an answer with a secret that may be recorded: not the secret's
// text, even for a client that sends the same key again.
type spent struct {
	ID string `json:"id"`
}

// operateOnce does an operation whose keys the hub doesn't keep, once for a key.
func (x *exchange) operateOnce(do func() (any, error)) error {
	out, had, err := x.once(func() (any, any, error) {
		out, err := do()
		if s, ok := out.(hub.TokenSecret); ok {
			return out, spent{s.ID}, err
		}
		return out, nil, err
	})
	switch {
	case err != nil:
		return err
	case had == nil:
		return x.answer(x.rt.Status, out)
	case x.rt.Out == api.Type[hub.TokenSecret]():
		return fault.New(fault.Busy, "exists", "create token", fmt.Errorf("the key made %.100s", had)).
			WithHint("its text was in the first answer only; revoke it and make another with a new key")
	}
	x.w.Header().Set("Idempotency-Replayed", "true")
	return x.bytes(x.rt.Status, hub.MediaJSON, had)
}

// answer answers with the output of the operation.
func (x *exchange) answer(status int, out any) error {
	place := ""
	switch v := out.(type) {
	case hub.None:
		x.deadline()
		x.w.WriteHeader(status)
		return nil
	case []byte:
		return x.bytes(status, x.rt.Media[0], v)
	case hub.Session:
		place = "/sessions/" + v.ID
	case hub.VaultResult:
		if !x.caller.ReadsPolicy {
			v.Run = redactRun(v.Run)
			out = v
		}
	case hub.Run:
		place = "/runs/" + v.ID
		if !x.caller.ReadsPolicy {
			out = redactRun(v)
		}
	}
	if place != "" && (x.rt.Idempotent || x.rt.Key) {
		x.w.Header().Set("Location", hub.Prefix+place)
	}
	if api.Versioned(x.rt.Operation) {
		return x.versioned(status, out, reflect.ValueOf(out).FieldByName("Version").Int())
	}
	return x.json(status, out)
}

func makeCall(x *exchange) error {
	in, err := x.input()
	if err != nil {
		return err
	}
	n := in.(hub.NewCall)
	if !x.async {
		run, err := hub.Call.Do(x.r.Context(), x.s.cfg.Hub, x.caller, n)
		if err != nil {
			return err
		}
		return x.answer(x.rt.Status, run)
	}
	if n.Session == "" {
		return usage("invalid_input", "call without waiting", errors.New("a call without a waiting client belongs to a session"))
	}
	run, err := hub.StartRun.Do(x.r.Context(), x.s.cfg.Hub, x.caller, hub.NewRun{Session: n.Session, Budget: n.Budget, IdempotencyKey: n.IdempotencyKey,
		Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}})
	if err != nil {
		return err
	}
	x.w.Header().Set("Preference-Applied", api.RespondAsync)
	return x.answer(http.StatusAccepted, run)
}

func getArtifact(x *exchange) error {
	in, err := x.input()
	if err != nil {
		return err
	}
	a, err := hub.GetArtifact.Do(x.r.Context(), x.s.cfg.Hub, x.caller, in.(hub.ArtifactQuery))
	if err != nil {
		return err
	}
	defer a.Close()
	return x.content(a)
}

func getOpenAPI(x *exchange) error {
	if x.caller.Role == "" { // for strangers answers are small
		return fault.New(fault.Denied, "not_a_member", "get document", nil)
	}
	b, err := x.s.openapi()
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, hub.MediaJSON, b)
}

func livez(x *exchange) error { return x.bytes(x.rt.Status, hub.MediaText, []byte("ok\n")) }

// readyz gives only the class of a problem: every client may ask.
func readyz(x *exchange) error {
	if err := x.s.cfg.Ready(x.r.Context()); err != nil {
		if _, ok := x.s.noise.take("not ready"); ok {
			x.s.log.Warn("not ready", "request", idOf(x.r), "error", err)
		}
		return fault.New(fault.Unavailable, "not_ready", "check readiness", errors.New("see the log of palyrad"))
	}
	return x.bytes(x.rt.Status, hub.MediaText, []byte("ok\n"))
}
