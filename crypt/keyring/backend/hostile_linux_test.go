package backend

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// fake is a Secret Service in this process. Honest, it keeps one item; a test replaces methods of
// it by hostile ones.
type fake struct {
	conn *dbus.Conn

	mu     sync.Mutex // each call has its own goroutine
	key    []byte
	value  []byte
	locked bool
	item   bool
}

// set changes the service's state.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

const (
	fakeSession = dbus.ObjectPath("/org/freedesktop/secrets/session/s")
	fakeColl    = dbus.ObjectPath("/org/freedesktop/secrets/collection/c")
	fakeItem    = dbus.ObjectPath("/org/freedesktop/secrets/collection/c/1")
	fakePrompt  = dbus.ObjectPath("/org/freedesktop/secrets/prompt/1")
)

// methods are an interface's, by their names.
type methods map[string]any

func serve(t *testing.T, hostile map[string]methods) *fake {
	t.Helper()
	f := &fake{conn: client(t)}
	none := []dbus.ObjectPath{}
	found := func() (open, shut []dbus.ObjectPath) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case !f.item:
			return none, none
		case f.locked:
			return none, []dbus.ObjectPath{fakeItem}
		}
		return []dbus.ObjectPath{fakeItem}, none
	}
	all := map[string]methods{
		"Service": {
			"OpenSession": func(_ string, in dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
				kx, public := newExchange()
				f.set(func() { f.key, _ = kx.key(in.Value().([]byte)) })
				return dbus.MakeVariant(public), fakeSession, nil
			},
			"ReadAlias": func(alias string) (dbus.ObjectPath, *dbus.Error) {
				if alias == "default" {
					return fakeColl, nil
				}
				return ssNone, nil
			},
			"SearchItems": func(map[string]string) ([]dbus.ObjectPath, []dbus.ObjectPath, *dbus.Error) {
				open, shut := found()
				return open, shut, nil
			},
			"Unlock": func(paths []dbus.ObjectPath) ([]dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if f.locked {
					return none, fakePrompt, nil
				}
				return paths, ssNone, nil
			},
		},
		"Collection": {
			"CreateItem": func(_ map[string]dbus.Variant, w wire, _ bool) (dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
				f.set(func() {
					f.value, _ = decrypt(f.key, w.Parameters, w.Value)
					f.item = true
				})
				return fakeItem, ssNone, nil
			},
		},
		"Item": {
			"GetSecret": func(dbus.ObjectPath) (wire, *dbus.Error) {
				f.mu.Lock()
				v := f.value
				f.mu.Unlock()
				return f.sealed(v), nil
			},
			"Delete": func() (dbus.ObjectPath, *dbus.Error) {
				f.set(func() { f.item = false })
				return ssNone, nil
			},
		},
		"Prompt": {
			"Prompt": func(string) *dbus.Error {
				f.set(func() { f.locked = false })
				return f.completed(false)
			},
			"Dismiss": func() *dbus.Error { return nil },
		},
	}
	for iface, ms := range all {
		for name, m := range hostile[iface] {
			if _, ok := ms[name]; !ok {
				t.Fatalf("no method %s.%s", iface, name)
			}
			ms[name] = m
		}
		path := map[string]dbus.ObjectPath{"Service": ssPath, "Collection": fakeColl, "Item": fakeItem, "Prompt": fakePrompt}[iface]
		if err := f.conn.ExportMethodTable(ms, path, "org.freedesktop.Secret."+iface); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := f.conn.RequestName(ssName, 0); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(r, err)
	}
	return f
}

// completed tells of the answer to the prompt. Its zero value is for methods that return it.
func (f *fake) completed(dismissed bool) *dbus.Error {
	_ = f.conn.Emit(fakePrompt, ssPrompt+"Completed", dismissed, dbus.MakeVariant([]dbus.ObjectPath{fakeColl}))
	return nil
}

// sealed is a value for the bus. The key is agreed when it's asked for.
func (f *fake) sealed(v []byte) wire {
	f.mu.Lock()
	defer f.mu.Unlock()
	iv, sealed := encrypt(f.key, v)
	return wire{fakeSession, iv, sealed, "text/plain"}
}

// hold puts an identity into an honest service.
func (f *fake) hold(id *seal.IdentityKey, locked bool) {
	f.set(func() { f.value, f.item, f.locked = bytes.TrimSpace(id.Encode()), true, locked })
}

// TestHonest is the control of TestHostile: the same service without lies.
func TestHonest(t *testing.T) {
	bus(t)
	f := serve(t, nil)
	if err := Try(t.Context(), ssPlace); err != nil {
		t.Fatal(err)
	}
	id := newIdentity(t)
	f.hold(id, false)
	got, err := Load(t.Context(), placed(t, ssPlace, id))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, id)
}

// TestHostile: what a service answers is checked, and a wrong answer is no identity, no missing item
// and no panic.
func TestHostile(t *testing.T) {
	var f *fake
	value := func(w wire) map[string]methods {
		return map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (wire, *dbus.Error) { return w, nil }}}
	}
	sealed := func(v []byte, change func(*wire)) map[string]methods {
		return map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (wire, *dbus.Error) {
			w := f.sealed(v)
			change(&w)
			return w, nil
		}}}
	}
	public := func(b any) map[string]methods {
		return map[string]methods{"Service": {"OpenSession": func(string, dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
			return dbus.MakeVariant(b), fakeSession, nil
		}}}
	}
	search := func(m any) map[string]methods { return map[string]methods{"Service": {"SearchItems": m}} }
	other := newIdentity(t)
	for _, c := range []struct {
		name   string
		lies   map[string]methods
		reason string
	}{
		{"another identity", sealed(bytes.TrimSpace(other.Encode()), func(*wire) {}), "key_corrupt"},
		{"no identity", sealed([]byte("hello"), func(*wire) {}), "key_corrupt"},
		{"an empty value", sealed(nil, func(*wire) {}), "key_corrupt"},
		{"a value of another session", sealed([]byte("x"), func(w *wire) { w.Session = "/other" }), "bad_answer"},
		{"a short initial vector", sealed([]byte("x"), func(w *wire) { w.Parameters = w.Parameters[1:] }), "bad_answer"},
		{"no whole block", sealed([]byte("x"), func(w *wire) { w.Value = w.Value[1:] }), "bad_answer"},
		{"a long value", sealed(make([]byte, 64<<10), func(*wire) {}), "bad_answer"},
		{"a value in clear", value(wire{fakeSession, []byte{}, []byte("palyra-identity-1:x"), "text/plain"}), "bad_answer"},
		{"a value of another type", map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (string, *dbus.Error) { return "x", nil }}}, "bad_answer"},
		{"a secret without parts", map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (struct{ A dbus.ObjectPath }, *dbus.Error) {
			return struct{ A dbus.ObjectPath }{fakeSession}, nil
		}}}, "bad_answer"},
		{"no answer at all", map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) *dbus.Error { return nil }}}, "bad_answer"},
		{"the public key 1", public([]byte{1}), "bad_answer"},
		{"a public key of text", public("key"), "bad_answer"},
		{"two items", search(func(map[string]string) ([]dbus.ObjectPath, []dbus.ObjectPath, *dbus.Error) {
			return []dbus.ObjectPath{fakeItem, fakeItem}, nil, nil
		}), "key_corrupt"},
		{"items of another type", search(func(map[string]string) (string, string, *dbus.Error) { return "/a", "/b", nil }), "bad_answer"},
		{"one list of items", search(func(map[string]string) ([]dbus.ObjectPath, *dbus.Error) { return []dbus.ObjectPath{fakeItem}, nil }), "bad_answer"},
		{"an item that isn't there", search(func(map[string]string) ([]dbus.ObjectPath, []dbus.ObjectPath, *dbus.Error) {
			return []dbus.ObjectPath{"/elsewhere"}, nil, nil
		}), "keyring_unavailable"},
		{"an error with control characters", map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (wire, *dbus.Error) {
			return wire{}, dbus.NewError("org.evil.Error", []any{strings.Repeat("\x1b[31mred\n", 1000)})
		}}}, "keyring_unavailable"},
		{"locked after it was unlocked", map[string]methods{"Item": {"GetSecret": func(dbus.ObjectPath) (wire, *dbus.Error) {
			return wire{}, dbus.NewError("org.freedesktop.Secret.Error.IsLocked", nil)
		}}}, "keyring_unavailable: the keyring is locked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bus(t)
			f = serve(t, c.lies)
			id := newIdentity(t)
			f.hold(id, false)
			_, err := Load(t.Context(), placed(t, ssPlace, id))
			wantReason(t, err, c.reason)
			if errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it passes for a missing item: %v", err)
			}
			if err != nil && (len(err.Error()) > 1000 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' })) {
				t.Errorf("the error is %q", err)
			}
		})
	}
}

// TestHostileCollection: an identity isn't kept where a logout forgets it, and a service that keeps
// something else than it was given fails the round trip.
func TestHostileCollection(t *testing.T) {
	for _, c := range []struct {
		name   string
		lies   map[string]methods
		reason string
	}{
		{"the default collection is the session's", map[string]methods{"Service": {"ReadAlias": func(string) (dbus.ObjectPath, *dbus.Error) { return fakeColl, nil }}}, "keyring_unavailable"},
		{"there is no default collection", map[string]methods{"Service": {"ReadAlias": func(string) (dbus.ObjectPath, *dbus.Error) { return ssNone, nil }}}, "keyring_unavailable"},
		{"it forgets", map[string]methods{"Collection": {"CreateItem": func(map[string]dbus.Variant, wire, bool) (dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
			return fakeItem, ssNone, nil
		}}}, "state_missing"},
		{"it doesn't remove", map[string]methods{"Item": {"Delete": func() (dbus.ObjectPath, *dbus.Error) { return ssNone, nil }}}, "bad_answer"},
		{"the prompt is no object", map[string]methods{"Collection": {"CreateItem": func(map[string]dbus.Variant, wire, bool) (dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
			return ssNone, "/nowhere", nil
		}}}, "keyring_unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bus(t)
			serve(t, c.lies)
			wantReason(t, Try(t.Context(), ssPlace), c.reason)
		})
	}
}

// TestPrompt: a person may unlock the keyring or not; the answer counts if the service gives it, and
// the wait ends with the context and with the service.
func TestPrompt(t *testing.T) {
	var f *fake
	id := newIdentity(t)
	p := placed(t, ssPlace, id)
	asked := make(chan struct{}, 1)
	for _, c := range []struct {
		name   string
		prompt func() *dbus.Error
		then   func(t *testing.T, cancel func()) // once it has asked
		reason string
	}{
		{"unlocked", nil, nil, ""},
		{"dismissed", func() *dbus.Error { return f.completed(true) }, nil, "keyring_unavailable: the keyring is locked"},
		{"an answer of another type", func() *dbus.Error {
			_ = f.conn.Emit(fakePrompt, ssPrompt+"Completed", "yes", "no")
			return nil
		}, nil, "bad_answer"},
		{"no answer", func() *dbus.Error { asked <- struct{}{}; return nil }, func(_ *testing.T, cancel func()) { cancel() }, "canceled"},
		{"another program's answer", func() *dbus.Error { asked <- struct{}{}; return nil }, func(t *testing.T, _ func()) {
			// The signal is addressed to all; the bus gives it to no one who asked for the service's.
			c := client(t)
			if err := c.Emit(fakePrompt, ssPrompt+"Completed", false, dbus.MakeVariant("")); err != nil {
				t.Error(err)
			}
			var names []string // the bus has passed the signal on when it answers
			if err := c.BusObject().Call(busName+".ListNames", 0).Store(&names); err != nil {
				t.Error(err)
			}
			for _, n := range names { // and so is one to each of the bus's clients
				if strings.HasPrefix(n, ":") {
					m := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
						dbus.FieldPath: dbus.MakeVariant(fakePrompt), dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.Secret.Prompt"),
						dbus.FieldMember: dbus.MakeVariant("Completed"), dbus.FieldDestination: dbus.MakeVariant(n),
						dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(false, dbus.MakeVariant("")))}, Body: []any{false, dbus.MakeVariant("")}}
					c.Send(m, nil)
				}
			}
			if err := c.BusObject().Call(busName+".ListNames", 0).Err; err != nil {
				t.Error(err)
			}
			f.completed(true)
		}, "keyring_unavailable: the keyring is locked"},
		{"the service ends", func() *dbus.Error { asked <- struct{}{}; return nil }, func(*testing.T, func()) { f.conn.Close() }, "keyring_unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bus(t)
			lies := map[string]methods{}
			if c.prompt != nil {
				lies["Prompt"] = methods{"Prompt": func(string) *dbus.Error { return c.prompt() }}
			}
			f = serve(t, lies)
			f.hold(id, true)
			wantReason(t, try(t.Context(), ssPlace, manner{step: asking.step}), "keyring_unavailable: the keyring is locked") // doesn't ask
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				got, err := Load(ctx, p)
				if err == nil {
					same(t, got, id)
				}
				done <- err
			}()
			if c.then != nil {
				<-asked
				c.then(t, cancel)
			}
			wantReason(t, <-done, c.reason)
		})
	}
}

// TestSilent: whichever call a service doesn't answer, the caller waits as long as its context says.
func TestSilent(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for _, m := range []struct {
		iface, name string
		f           any
	}{
		{"Service", "OpenSession", func(string, dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
			<-release
			return dbus.MakeVariant(""), ssNone, nil
		}},
		{"Service", "SearchItems", func(map[string]string) ([]dbus.ObjectPath, []dbus.ObjectPath, *dbus.Error) {
			<-release
			return nil, nil, nil
		}},
		{"Item", "GetSecret", func(dbus.ObjectPath) (wire, *dbus.Error) { <-release; return wire{}, nil }},
		{"Prompt", "Prompt", func(string) *dbus.Error { <-release; return nil }},
	} {
		t.Run(m.name, func(t *testing.T) {
			bus(t)
			f := serve(t, map[string]methods{m.iface: {m.name: m.f}})
			f.hold(newIdentity(t), m.iface == "Prompt")
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := Load(ctx, ssPlace)
			wantReason(t, err, "timeout")
			if fault.KindOf(err) != fault.Timeout {
				t.Error(err)
			}
		})
	}
}
