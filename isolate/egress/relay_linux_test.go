package egress

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"palyra/internal/budget"
	"palyra/isolate/evidence"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	y, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*net.TCPConn{x, y} {
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
	}
	return x, y
}

// relayed is a relay between a program and a host of the test's.
func relayed(t *testing.T, bulks *budget.Pool) (program, host *net.TCPConn, r *relay, ended chan string) {
	t.Helper()
	program, inside := pair(t)
	outside, host := pair(t)
	r, err := newRelay(inside, outside, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r.bulks, r.owner = bulks, budget.Owner{Name: "a"}
	for _, d := range []*direction{&r.sent, &r.received} {
		d.left, d.total = []allowance{{new(atomic.Int64), "all"}}, new(atomic.Int64)
		d.left[0].left.Store(1 << 40)
	}
	ended = make(chan string, 1)
	go func() { ended <- r.run(t.Context()) }()
	return program, host, r, ended
}

// TestBulks: a direction that has much to pass gets a bulk, and passes without one while another
// connection, which isn't read, has the last; each byte comes, and all bulks come back.
func TestBulks(t *testing.T) {
	const n = 32 << 20
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	want := sha256.Sum256(data)
	bulks := pool(1, 0)

	stuck, silent, _, stuckEnded := relayed(t, bulks)
	var filling sync.WaitGroup
	filling.Go(func() { silent.Write(bytes.Repeat([]byte{1}, n)) })
	for bulks.Held() == 0 {
		if _, err := stuck.Read(make([]byte, 1)); err != nil { // it never reads faster than this
			t.Fatal(err)
		}
	}
	program, host, r, ended := relayed(t, bulks)
	filling.Go(func() {
		host.Write(data)
		host.CloseWrite()
	})
	got := sha256.New()
	if _, err := io.Copy(got, program); err != nil {
		t.Fatal(err)
	}
	if [32]byte(got.Sum(nil)) != want || r.received.n.Load() != n || r.received.total.Load() != n {
		t.Errorf("other bytes came than were sent, or %d were counted", r.received.n.Load())
	}
	program.Close()
	host.Close()
	if how := <-ended; how != evidence.ConnClosed {
		t.Errorf("it ended with %q", how)
	}
	stuck.SetLinger(0)
	stuck.Close()
	<-stuckEnded
	filling.Wait()
	if bulks.Held() != 0 {
		t.Errorf("%d bulks are held by no connection", bulks.Held())
	}
}
