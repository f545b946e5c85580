package serve

import (
	"errors"
	"os"
	"testing"
)

// TestSessionsWaitForTheirOwn: a network that is being made holds up the calls of its session, and
// none of another one. One that couldn't be made is tried again by the next call, and the last call
// that leaves closes it.
func TestSessionsWaitForTheirOwn(t *testing.T) {
	s := &sessions{used: make(map[string]*sessionNetwork)}
	stay := func(*os.File) error { return nil }
	file := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		t.Cleanup(func() { r.Close() })
		return r
	}
	begun, going := make(chan struct{}), make(chan struct{})
	type joined struct {
		n   *sessionNetwork
		err error
	}
	first, second := make(chan joined, 1), make(chan joined, 1)
	go func() {
		n, err := s.enter("a", func() (network, error) {
			close(begun)
			<-going
			return network{file: file()}, nil
		}, stay)
		first <- joined{n, err}
	}()
	<-begun
	go func() {
		n, err := s.enter("a", func() (network, error) { return network{}, errors.New("a second one") }, stay)
		second <- joined{n, err}
	}()
	broken := errors.New("no namespace")
	if _, err := s.enter("b", func() (network, error) { return network{}, broken }, stay); !errors.Is(err, broken) {
		t.Errorf("another session's: %v", err)
	}
	b, err := s.enter("b", func() (network, error) { return network{file: file()}, nil }, stay)
	if err != nil {
		t.Fatal("after one that couldn't be made: ", err)
	}
	s.count(b, &run{})
	close(going)
	one, two := <-first, <-second
	if one.err != nil || two.err != nil || one.n != two.n || one.n == b {
		t.Fatalf("%+v, %+v", one, two)
	}
	r, q := &run{}, &run{}
	s.count(one.n, r)
	s.count(two.n, q)
	if most := s.leave(one.n, r); most != 2 || one.n.net.file == nil {
		t.Errorf("two were in it, not %d", most)
	}
	if _, err := s.enter("a", nil, func(*os.File) error { return broken }); !errors.Is(err, broken) || one.n.net.file == nil {
		t.Errorf("one that can't enter: %v", err)
	}
	if most := s.leave(two.n, q); most != 2 || one.n.net.file != nil || len(s.used) != 1 {
		t.Errorf("the last one left: %d, %v, %d networks", most, one.n.net.file, len(s.used))
	}
}
