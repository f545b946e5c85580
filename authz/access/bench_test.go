package access

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// full is a registry of 10,000 members and 100,000 tokens, as its storage has it.
func full() (*State, string, Key) {
	key := Key{b: [32]byte{1}}
	st := &State{Generation: 110_000, Members: make([]Member, 10_000), Tokens: make([]Token, 100_000)}
	for i := range st.Members {
		st.Members[i] = Member{Principal: fmt.Sprintf("user:person-%d", i), Role: Operator, AddedBy: "uid:0", Changed: time.Now().UTC(), Version: uint64(i + 1)}
	}
	st.Members[0].Role = Owner
	var shown string
	for i := range st.Tokens {
		id, secret, text := newSecret()
		st.Tokens[i] = Token{ID: id.String(), Principal: st.Members[i%len(st.Members)].Principal, Name: "token", Hash: key.hash(id, secret),
			Scopes: Operator.Permissions(), Created: time.Now().UTC(), Expires: time.Now().UTC().Add(24 * time.Hour)}
		if i == len(st.Tokens)/2 {
			shown = text.Reveal()
		}
	}
	return st, shown, key
}

// frozen is a Storage that only loads.
type frozen struct {
	Storage
	st *State
}

func (f frozen) Load(context.Context) (*State, error) { return f.st, nil }

// BenchmarkCheck is what each request of a token costs: who it is, and whether it
// may.
func BenchmarkCheck(b *testing.B) {
	st, text, key := full()
	r, err := Open(b.Context(), Config{Storage: frozen{st: st}, Key: key})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		h, err := r.Authenticate(text)
		if err == nil {
			err = r.Allow(h, SessionRead)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
