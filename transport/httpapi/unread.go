package httpapi

import (
	"errors"
	"net"
	"sync"
	"time"

	"palyra/internal/budget"
	"palyra/internal/fault"
)

// sendBuffer is what the kernel is asked to take of an answer before the client reads, and
// doubles. It's memory of this process's cgroup that no other budget counts.
const sendBuffer = 16 << 10

// receiveBuffer is what the kernel is asked to take over TCP before we read, and doubles. What
// waits at a unix socket is memory of the sender's cgroup.
const receiveBuffer = 32 << 10

// unread are the connections to the unix socket that were closed before the client had read
// the answer. The kernel keeps the rest until the client reads or closes, so these stay open
// and count until then, for the user at the other end. A user with unreadEach of them gets no new
// connection. The connections that were open by then can come to it, too: there are at most
// ConnsPerCaller.
type unread struct {
	mu     sync.Mutex
	conns  []leftover           // guarded by mu; oldest first
	count  map[budget.Owner]int // guarded by mu; above 0
	runs   bool                 // guarded by mu; watch is running
	looked time.Time            // guarded by mu; when last
	over   bool                 // guarded by mu; the server has ended
}

type leftover struct {
	net.Conn
	owner budget.Owner
}

const (
	unreadEach  = 256
	unreadMost  = 4096        // beyond it the oldest isn't watched any more
	unreadEvery = time.Second // how often they are looked at
	// A user who left too much can have its own looked at by connecting, but not all the time.
	unreadPause = 10 * time.Millisecond
)

// shut closes a connection, now or when the client has read all.
func (u *unread) shut(c net.Conn, o budget.Owner) error {
	uc, ok := c.(*net.UnixConn)
	if !ok || o.Reserve || unsent(uc) == 0 {
		return c.Close()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return c.Close()
	}
	err := errors.Join(uc.CloseWrite(), uc.CloseRead()) // the client sees the end behind what it hasn't read
	u.conns = append(u.conns, leftover{c, o})
	u.count[o]++
	if len(u.conns) > unreadMost {
		u.dropLocked(0)
	}
	if !u.runs {
		u.runs = true
		go u.watch()
	}
	return err
}

// full returns fault.Unavailable "too_many" if an owner has left too much unread.
func (u *unread) full(o budget.Owner) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if o.Reserve || u.count[o] < unreadEach {
		return nil
	}
	if time.Since(u.looked) > unreadPause { // it may have read since
		u.lookLocked(func(l budget.Owner) bool { return l == o })
	}
	if u.count[o] < unreadEach {
		return nil
	}
	return fault.New(fault.Unavailable, "too_many", "serve connection", errors.New("this caller has left answers unread"))
}

func (u *unread) dropLocked(i int) {
	l := u.conns[i]
	_ = l.Close()
	u.conns = append(u.conns[:i], u.conns[i+1:]...)
	if u.count[l.owner]--; u.count[l.owner] == 0 {
		delete(u.count, l.owner)
	}
}

// watch closes the connections of which all was read. It ends when none is left.
func (u *unread) watch() {
	tick := time.NewTicker(unreadEvery)
	defer tick.Stop()
	for range tick.C {
		if !u.look() {
			return
		}
	}
}

func (u *unread) look() (more bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lookLocked(func(budget.Owner) bool { return true })
	u.runs = len(u.conns) > 0
	return u.runs
}

func (u *unread) lookLocked(at func(budget.Owner) bool) {
	u.looked = time.Now()
	for i := len(u.conns) - 1; i >= 0; i-- {
		if !at(u.conns[i].owner) {
			continue
		}
		if u.over || unsent(u.conns[i].Conn.(*net.UnixConn)) == 0 {
			u.dropLocked(i)
		}
	}
}

// drop closes the oldest to get its descriptor, and reports whether there was one.
func (u *unread) drop() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.conns) == 0 {
		return false
	}
	u.dropLocked(0)
	return true
}

// end closes all of them.
func (u *unread) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	for len(u.conns) > 0 {
		u.dropLocked(len(u.conns) - 1)
	}
}
