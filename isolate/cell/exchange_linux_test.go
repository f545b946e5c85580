package cell

import (
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
)

// Who leaves hands the reading over to another question. If that is one that
// could not be sent, somebody else has to read all the same.
func TestUnsentQuestionPassesTheReadingOn(t *testing.T) {
	for range 20 { // which one the reading goes to is left to chance
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), buf: make([]byte, 64), pending: make(map[uint64]*question)}
		if c.raw, err = c.conn.SyscallConn(); err != nil {
			t.Fatal(err)
		}
		put := func() (uint64, *question) {
			id, q, err := c.put(0, nil, func(uint64) ([]byte, error) { return []byte{opQuery}, nil })
			if err != nil {
				t.Fatal(err)
			}
			return id, q
		}
		answer := func(id uint64) {
			if err := sys.SendPacket(fds[1], binary.LittleEndian.AppendUint64([]byte{opResult}, id), nil); err != nil {
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
			case <-time.After(20 * time.Second):
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

// What is known of a cell comes before its answer and is the question's; a second
// time it is the end of the connection, as is an answer without it.
func TestCellComesFirst(t *testing.T) {
	want := results()[0]
	cell, call := appendCell(nil, want.Evidence, nil), appendCall(nil, want)
	message := func(kind byte, id uint64, body []byte) []byte {
		return append(binary.LittleEndian.AppendUint64([]byte{kind}, id), body...)
	}
	for _, c := range []struct {
		name string
		send [][]byte
		ok   bool
	}{
		{"in order", [][]byte{message(opCell, 1, cell), message(opResult, 1, call)}, true},
		{"of another, which was given up", [][]byte{message(opCell, 1, cell), message(opCell, 9, cell), message(opResult, 9, call), message(opResult, 1, call)}, true},
		{"no cell", [][]byte{message(opResult, 1, call)}, false},
		{"twice", [][]byte{message(opCell, 1, cell), message(opCell, 1, cell), message(opResult, 1, call)}, false},
		{"cut", [][]byte{message(opCell, 1, cell[:len(cell)-1]), message(opResult, 1, call)}, false},
		{"without an id", [][]byte{message(opCell, 1, cell)[:8], message(opResult, 1, call)}, false},
	} {
		for _, others := range []int{0, 1} { // with others waiting it is read later
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			k := &Client{conn: os.NewFile(uintptr(fds[0]), "palyra"), buf: make([]byte, maxMessage), pending: make(map[uint64]*question)}
			if k.raw, err = k.conn.SyscallConn(); err != nil {
				t.Fatal(err)
			}
			ask := func(uint64) ([]byte, error) { return []byte{opQuery}, nil }
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
			var r reply
			msg, err := k.await(q)
			if err == nil {
				r, err = q.parseReply(msg)
			}
			if (err == nil) != c.ok || c.ok && !reflect.DeepEqual(r.Result, want) {
				t.Errorf("%s, %d others: %+v, %v; want success %v", c.name, others, r.Result, err, c.ok)
			}
			k.conn.Close()
			syscall.Close(fds[1])
		}
	}
}

// Of the requests that palyra-cell has in its queue when it dies, the last one that
// was sent was certainly never taken. Of every other nobody knows.
func TestUnread(t *testing.T) {
	for name, c := range map[string]struct {
		requests int
		cancel   bool // the first one, last
		overlap  bool // something else is being sent while the last one is
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
					client.begun.Add(1) // as another thread's that has not come to its call
				}
				_, q, err := client.put(0, nil, func(id uint64) ([]byte, error) {
					return binary.LittleEndian.AppendUint64([]byte{opCancel}, id), nil
				})
				if err != nil {
					t.Fatal(err)
				}
				asked = append(asked, q)
			}
			if c.cancel {
				if _, err := client.send([]byte{opCancel}, nil); err != nil {
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
			// What is sent from now on is never received either.
			if _, _, err := client.put(0, nil, func(uint64) ([]byte, error) { return []byte{opQuery}, nil }); fault.ReasonOf(err) != "cell_died" {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}
