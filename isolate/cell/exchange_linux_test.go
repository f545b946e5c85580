package cell

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

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
