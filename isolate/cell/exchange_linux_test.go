package cell

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// TestUnsentQuestionPassesTheReadingOn: a caller that leaves hands the reading over to another
// question. If that one could not be sent, a third one must read.
func TestUnsentQuestionPassesTheReadingOn(t *testing.T) {
	for range 20 { // chance decides which question gets the reading
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), buf: make([]byte, 64), pending: make(map[uint64]*question)}
		if c.raw, err = c.conn.SyscallConn(); err != nil {
			t.Fatal(err)
		}
		put := func() (uint64, *question) {
			id, q, err := c.put(0, nil, func(uint64) ([]byte, error) { return []byte{wire.OpQuery}, nil })
			if err != nil {
				t.Fatal(err)
			}
			return id, q
		}
		answer := func(id uint64) {
			if err := sys.SendPacket(fds[1], binary.LittleEndian.AppendUint64([]byte{wire.OpResult}, id), nil); err != nil {
				t.Fatal(err)
			}
		}
		await := func(q *question) chan error {
			done := make(chan error, 1)
			go func() { _, err := c.await(q); done <- err }()
			return done
		}
		soon := func(what string, done chan error) {
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: nobody reads its answer", what)
			}
		}

		id1, q1 := put()
		one := await(q1)
		for reads := false; !reads; runtime.Gosched() {
			c.mu.Lock()
			reads = c.reading
			c.mu.Unlock()
		}
		id2, q2 := put()
		two := await(q2)
		for q2.wake(); len(q2.turn) > 0; runtime.Gosched() { // until it has looked, and waits
		}
		_, _, err = c.put(0, nil, func(uint64) ([]byte, error) {
			answer(id1)
			soon("the first", one) // it leaves; the second and this question wait
			return nil, errors.New("cannot be sent")
		})
		if err == nil {
			t.Error("a question that cannot be sent was asked")
		}
		answer(id2)
		soon("the second", two)
		c.conn.Close()
		syscall.Close(fds[1])
	}
}

// TestAnswers: an answer reaches the question whose id it has, and no other. An unreadable
// answer is an error of that question; an answer without an id ends the connection.
func TestAnswers(t *testing.T) {
	want := &isolate.Result{Outcome: isolate.Exited, Evidence: &evidence.Evidence{Tier: "c", Executor: "x",
		Limits: evidence.Limits{Soft: map[string]int64{"cpu": 1}}, Exit: evidence.Exit{Code: 3}, Degraded: []string{"a", "b"}}}
	message := func(id uint64, r *isolate.Result) []byte {
		return wire.AppendResult(binary.LittleEndian.AppendUint64([]byte{wire.OpResult}, id), r)
	}
	good := message(1, want)
	for _, c := range []struct {
		name string
		send [][]byte
		want string // the reason; "": the result
	}{
		{"alone", [][]byte{good}, ""},
		{"after another's, which was given up", [][]byte{message(9, new(isolate.Result)), good}, ""},
		{"cut", [][]byte{good[:len(good)-1]}, "layout"},
		{"without an id", [][]byte{good[:8]}, "cell_died"},
		{"of no kind", [][]byte{append([]byte{'I'}, good[1:]...)}, "cell_died"},
	} {
		for _, others := range []int{0, 1} { // waiting questions
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			k := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), buf: make([]byte, wire.MaxMessage), pending: make(map[uint64]*question)}
			if k.raw, err = k.conn.SyscallConn(); err != nil {
				t.Fatal(err)
			}
			ask := func(uint64) ([]byte, error) { return []byte{wire.OpQuery}, nil }
			_, q, err := k.put(0, nil, ask)
			if err != nil {
				t.Fatal(err)
			}
			for range others {
				if _, _, err := k.put(0, nil, ask); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range c.send {
				if err := sys.SendPacket(fds[1], b, nil); err != nil {
					t.Fatal(err)
				}
			}
			var r wire.Reply
			msg, err := k.await(q)
			if err == nil {
				r, err = parseReply(msg)
			}
			got := fault.ReasonOf(err)
			if errors.Is(err, wire.ErrCodec) {
				got = "layout"
			}
			if got != c.want || err == nil && !reflect.DeepEqual(r.Result, want) {
				t.Errorf("%s, %d others: %+v, %v; want %q", c.name, others, r.Result, err, c.want)
			}
			k.conn.Close()
			syscall.Close(fds[1])
		}
	}
}

// TestUnread: of the requests in a dead palyra-cell's queue, only the last sent is certain not
// to have been taken. The others are unknown.
func TestUnread(t *testing.T) {
	for name, c := range map[string]struct {
		requests int
		cancel   bool // the first one, last
		overlap  bool // another message is being sent at the same time
		taken    int
		unread   []bool // by request
	}{
		"not taken":              {1, false, false, 0, []bool{true}},
		"taken":                  {1, false, false, 1, []bool{false}},
		"the second not taken":   {2, false, false, 1, []bool{false, true}},
		"none taken":             {2, false, false, 0, []bool{false, true}},
		"both taken":             {2, false, false, 2, []bool{false, false}},
		"canceled, neither":      {1, true, false, 0, []bool{false}},
		"taken, then canceled":   {1, true, false, 1, []bool{false}},
		"sent with another":      {1, false, true, 0, []bool{false}},
		"the second beside more": {2, false, true, 1, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			client := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), buf: make([]byte, 64), pending: make(map[uint64]*question)}
			defer client.conn.Close()
			if client.raw, err = client.conn.SyscallConn(); err != nil {
				t.Fatal(err)
			}
			var asked []*question
			for i := range c.requests {
				if c.overlap && i == c.requests-1 {
					client.begun.Add(1) // as another thread that hasn't made its call yet
				}
				_, q, err := client.put(0, nil, func(id uint64) ([]byte, error) {
					return binary.LittleEndian.AppendUint64([]byte{wire.OpCancel}, id), nil
				})
				if err != nil {
					t.Fatal(err)
				}
				asked = append(asked, q)
			}
			if c.cancel {
				if _, err := client.send([]byte{wire.OpCancel}, nil); err != nil {
					t.Fatal(err)
				}
			}
			for range c.taken {
				if _, _, err := sys.ReceivePacket(fds[1], make([]byte, 64), nil); err != nil {
					t.Fatal(err)
				}
			}
			sys.Close(fds[1])
			for i, q := range asked {
				if _, err := client.await(q); fault.ReasonOf(err) != "cell_died" || errors.Is(err, errUnread) != c.unread[i] {
					t.Errorf("request %d: %v, want unread %v", i, err, c.unread[i])
				}
			}
			// Later messages are never received either.
			if _, _, err := client.put(0, nil, func(uint64) ([]byte, error) { return []byte{wire.OpQuery}, nil }); fault.ReasonOf(err) != "cell_died" {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

type killed int

func (k *killed) Kill() error { *k++; return nil }

// TestOverdue: a palyra-cell that owes an answer is told to end that run. If it doesn't, but
// answers another question, only that run is given up; else palyra-cell is killed.
func TestOverdue(t *testing.T) {
	for _, well := range []bool{true, false} {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var kills killed
		c := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), proc: &kills, buf: make([]byte, 1024), pending: make(map[uint64]*question)}
		if c.raw, err = c.conn.SyscallConn(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1024)
		next := func() []byte {
			n, _, err := sys.ReceivePacket(fds[1], b, nil)
			if err != nil {
				t.Fatal(err)
			}
			return b[:n]
		}
		ask := func() *question {
			_, q, err := c.put(time.Hour, nil, func(uint64) ([]byte, error) { return []byte{wire.OpQuery}, nil })
			if err != nil {
				t.Fatal(err)
			}
			next()
			return q
		}
		other, q := ask(), ask()
		waits := make(chan error, 2)
		for _, x := range []*question{q, other} {
			go func() { _, err := c.await(x); waits <- err }()
		}
		late := func(q *question) {
			c.mu.Lock()
			q.due = time.Now().Add(-time.Second)
			c.mu.Unlock()
			c.ring()
		}
		late(q)
		if want := binary.LittleEndian.AppendUint64([]byte{wire.OpCancel}, q.id); !bytes.Equal(next(), want) || kills != 0 {
			t.Errorf("overdue: sent %q, killed %d times; want %q and none", b, kills, want)
		}
		if in := time.Until(c.alarm); in <= 0 || in > answerGrace {
			t.Errorf("it is looked at again in %v, want at most %v", in, answerGrace)
		}
		late(q)
		var r wire.Request
		if m := next(); m[0] != wire.OpQuery || wire.Decode(m[1:], &r) != nil || kills != 0 {
			t.Errorf("overdue again: sent %q, killed %d times; want a question and none", m, kills)
		}
		if well {
			answer, err := json.Marshal(wire.Reply{ID: r.ID})
			if err != nil {
				t.Fatal(err)
			}
			if err := sys.SendPacket(fds[1], append([]byte{wire.OpReply}, answer...), nil); err != nil {
				t.Fatal(err)
			}
			if err := <-waits; fault.ReasonOf(err) != "cell_died" {
				t.Errorf("the run that does not end: %v, want cell_died", err)
			}
		} else {
			c.mu.Lock()
			asking := c.pending[r.ID]
			c.mu.Unlock()
			if late(asking); kills != 1 {
				t.Errorf("no answer to that either: killed %d times, want once", kills)
			}
		}
		sys.Close(fds[1])
		if err := <-waits; fault.ReasonOf(err) != "cell_died" {
			t.Errorf("at its end: %v, want cell_died", err)
		}
		c.mu.Lock()
		if c.overdue != nil {
			c.overdue.Stop()
		}
		c.mu.Unlock()
		c.conn.Close()
	}
}
