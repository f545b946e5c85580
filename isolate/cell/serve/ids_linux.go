package serve

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"palyra/isolate/evidence"
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

// idMap is what a file such as /proc/self/uid_map says: ids of our user namespace, and what
// they are outside, user_namespaces(7).
type idMap []struct{ inner, outer, count uint32 }

func readIDMap(path string) (idMap, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseIDMap(string(b))
}

func parseIDMap(text string) (m idMap, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("parse id map %q: want three numbers", line)
		}
		var v [3]uint32
		for i := range v {
			n, err := strconv.ParseUint(f[i], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("parse id map %q: %w", line, err)
			}
			v[i] = uint32(n)
		}
		m = append(m, struct{ inner, outer, count uint32 }{v[0], v[1], v[2]})
	}
	if len(m) == 0 {
		return nil, errors.New("parse id map: empty")
	}
	return m, nil
}

// outside returns the id that one of ours is outside. One without any shows as the overflow
// id, inside and out.
func (m idMap) outside(id uint32) uint32 {
	for _, r := range m {
		if id >= r.inner && id-r.inner < r.count {
			return r.outer + (id - r.inner)
		}
	}
	return id
}

// outsideIDs puts the ids of a process as they are outside of our user namespace.
func (s *server) outsideIDs(p *evidence.Process) {
	p.HostUID, p.HostGID = s.userIDs.outside(p.HostUID), s.groupIDs.outside(p.HostGID)
	for i, g := range p.Groups {
		p.Groups[i] = s.groupIDs.outside(g)
	}
}

// writeIDMaps maps one id of a child's user namespace to one of ours: user_namespaces(7). The
// child must be waiting.
func (s *server) writeIDMaps(pid int, innerUID, outerUID, innerGID, outerGID uint32) error {
	return s.writeMaps(pid, utoa(innerUID)+" "+utoa(outerUID)+" 1", utoa(innerGID)+" "+utoa(outerGID)+" 1")
}

func (s *server) writeMaps(pid int, users, groups string) error {
	dir, err := s.reader.Process(pid)
	if err != nil {
		return err
	}
	defer sys.Close(dir)
	for _, w := range [...]struct{ name, text string }{
		{"setgroups", "deny"},
		{"uid_map", users},
		{"gid_map", groups},
	} {
		if err := sys.WriteAt(dir, w.name, w.text); err != nil {
			return err
		}
	}
	return nil
}

// mapNamespace returns a user namespace that holds only an id map, from owner (the workspace's,
// on disk) to the cell's host id, for an id-mapped mount; more is a further line of both maps.
// The child that creates it waits for the map and ends.
func (r *run) mapNamespace(ownerUID, ownerGID uint32, more string) (*os.File, error) {
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
	if err = r.s.writeMaps(pid, utoa(ownerUID)+" "+utoa(r.uid)+" 1"+more, utoa(ownerGID)+" "+utoa(r.gid)+" 1"+more); err == nil {
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
