package serve

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"strconv"
	"sync"

	"palyra/isolate/internal/sys"
)

// idPool hands out host user ids, one per running cell, so that no cell has rights over
// another. Only a palyra-cell that is root uses it. systemd's UIDS-GIDS document lists the
// range as unused. A random start keeps two palyra-cell processes apart without coordination.
type idPool struct {
	mu   sync.Mutex
	next uint32 // guarded by mu
}

const (
	idFirst = 0x70000000
	idCount = 0x0fffffff
)

func (p *idPool) init() {
	var b [4]byte
	rand.Read(b[:])
	p.next = binary.NativeEndian.Uint32(b[:]) % idCount
}

func (p *idPool) take() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = (p.next + 1) % idCount
	return idFirst + p.next
}

// writeIDMaps maps one id of a child's user namespace to one of ours: user_namespaces(7). The
// child must be waiting.
func (s *server) writeIDMaps(pid int, innerUID, outerUID, innerGID, outerGID uint32) error {
	dir, err := s.reader.Process(pid)
	if err != nil {
		return err
	}
	defer sys.Close(dir)
	for _, w := range [...]struct{ name, text string }{
		{"setgroups", "deny"},
		{"uid_map", utoa(innerUID) + " " + utoa(outerUID) + " 1"},
		{"gid_map", utoa(innerGID) + " " + utoa(outerGID) + " 1"},
	} {
		if err := sys.WriteAt(dir, w.name, w.text); err != nil {
			return err
		}
	}
	return nil
}

// mapNamespace returns a user namespace that holds only an id map, from owner (the workspace's,
// on disk) to the cell's host id, for an id-mapped mount. The child that creates it waits for
// the map and ends.
func (r *run) mapNamespace(ownerUID, ownerGID uint32) (*os.File, error) {
	gateR, gateW, err := sys.Pipe()
	if err != nil {
		return nil, err
	}
	defer sys.Close(gateR)
	t := sys.Tape{{Call: "read", Args: []sys.Arg{sys.FD("gate", gateR), sys.Bytes("answer", make([]byte, 1), "1"), sys.Int(1)},
		Why: "carry a user namespace until its id map is written"},
		{Call: "close", Args: []sys.Arg{sys.Int(-1)}, Why: "end: this always fails"}}
	a, err := r.s.memory.NewArena(t, false, 0)
	if err != nil {
		sys.Close(gateW)
		return nil, err
	}
	defer a.Free()
	var pid, pidfd int
	r.at.run(func(t *thread) {
		if err = t.enter(); err == nil {
			pid, pidfd, err = a.Start(sys.CloneFlagUser, -1)
		}
	})
	if err != nil {
		sys.Close(gateW)
		return nil, err
	}
	defer sys.Close(pidfd)
	var ns *os.File
	if err = r.s.writeIDMaps(pid, ownerUID, r.uid, ownerGID, r.gid); err == nil {
		ns, err = os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	}
	sys.KillPidfd(pidfd)
	sys.Close(gateW)
	if _, _, rerr := sys.Reap(pid); err == nil && rerr != nil {
		ns.Close()
		return nil, rerr
	}
	return ns, err
}
