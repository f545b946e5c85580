package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// markProbes leave marks in what a cell can touch and look for those of others.
//
//	attack marks how=plant nonce=N   # leaves them, says PLANTED, stays until its input ends
//	attack marks how=look  nonce=N   # looks
//	attack marks how=both  nonce=N   # leaves them and looks itself, and from a child: all must be found
//
// Its detail is a JSON object: marks by name with "planted", "found" or the
// errno that stopped it, and the state of the process.
var markProbes = map[string]probe{"marks": marks}

// mark is one place. Look returns whether there is a mark of the nonce.
type mark struct {
	name  string
	plant func(nonce string) error
	look  func(nonce string) (bool, error)
}

// report of marks; field names are read by the test.
type marksReport struct {
	Planted map[string]string `json:"planted"` // "" or why not
	Found   map[string]bool   `json:"found"`
	Child   map[string]bool   `json:"child"` // as a child saw it; how=both only
	State   map[string]string `json:"state"` // before anything was planted
	After   map[string]string `json:"after"` // after
	Spaces  map[string]string `json:"spaces"`
}

func marks(a args) (string, error) {
	nonce := a.str("nonce")
	if s := processState(); s["Seccomp"] != "2" && a.str("how") != "look" {
		return "", errors.New("this is no cell: the marks would stay on the host")
	}
	h := new(held)
	all := h.marks()
	r := marksReport{Planted: map[string]string{}, Found: map[string]bool{}, State: processState(), Spaces: map[string]string{}}
	if links, err := filepath.Glob("/proc/self/ns/*"); err == nil {
		for _, l := range links {
			r.Spaces[filepath.Base(l)], _ = os.Readlink(l)
		}
	}
	how := a.str("how")
	if how != "look" {
		for _, m := range all {
			r.Planted[m.name] = ""
			if err := m.plant(nonce); err != nil {
				r.Planted[m.name] = err.Error()
			}
		}
		r.After = processState()
	}
	if how != "plant" {
		for _, m := range all {
			r.Found[m.name], _ = m.look(nonce)
		}
	}
	if how == "both" {
		var err error
		if r.Child, err = lookFromChild(nonce); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	if how == "plant" {
		emit(result{Case: "marks", Outcome: "PLANTED", Detail: string(b)})
		bufio.NewScanner(os.Stdin).Scan()
	}
	keep(h)
	return string(b), nil
}

// lookFromChild runs the probe once more in a child, which inherits.
func lookFromChild(nonce string) (map[string]bool, error) {
	self, err := os.Executable()
	if _, serr := os.Stat("/proc/self/exe"); serr == nil {
		self = "/proc/self/exe"
	} else if err != nil {
		return nil, err
	}
	out, err := exec.Command(self, "marks", "how=look", "nonce="+nonce).Output()
	if err != nil {
		return nil, failed("run a child", err)
	}
	for line := range bytes.Lines(out) {
		var res result
		var r marksReport
		if json.Unmarshal(line, &res) == nil && res.Outcome == "OPEN" && json.Unmarshal([]byte(res.Detail), &r) == nil {
			return r.Found, nil
		}
	}
	return nil, fmt.Errorf("a child told nothing: %s", out)
}

// held is what is planted in memory and in sockets, until the end.
type held struct {
	memory  [][]byte
	sockets []io.Closer
}

// number is the nonce as a key or port.
func number(nonce string, limit uint32) int {
	h := fnv.New32a()
	h.Write([]byte(nonce))
	return int(h.Sum32()%limit) + 1
}

func fileMark(dir string) mark {
	return mark{"file:" + dir,
		func(n string) error { return os.WriteFile(filepath.Join(dir, n), []byte(n), 0o666) },
		func(n string) (bool, error) { _, err := os.Lstat(filepath.Join(dir, n)); return err == nil, err }}
}

func ipcMark(name string, get, flags uintptr) mark {
	key := func(n string) uintptr { return uintptr(number(n, 1<<30)) }
	args := func(n string, f uintptr) []uintptr {
		if name == "msg" {
			return []uintptr{key(n), f}
		}
		return []uintptr{key(n), flags, f} // semget(key, count, flags), shmget(key, size, flags)
	}
	return mark{"sysv:" + name,
		func(n string) error { _, err := raw(name+"get", get, args(n, unix.IPC_CREAT|0o666)...); return err },
		func(n string) (bool, error) { _, err := raw(name+"get", get, args(n, 0)...); return err == nil, err }}
}

func (h *held) portMark(network string) mark {
	addr := func(n string) string { return "127.0.0.1:" + strconv.Itoa(20000+number(n, 20000)) }
	return mark{"port:" + network,
		func(n string) error {
			if network == "udp" {
				c, err := net.ListenPacket("udp", addr(n))
				if err == nil {
					h.sockets = append(h.sockets, c)
				}
				return err
			}
			l, err := net.Listen(network, addr(n))
			if err == nil {
				h.sockets = append(h.sockets, l)
			}
			return err
		},
		func(n string) (bool, error) { // taken: another process has it
			var err error
			if network == "udp" {
				var c net.PacketConn
				if c, err = net.ListenPacket("udp", addr(n)); err == nil {
					c.Close()
				}
			} else {
				var l net.Listener
				if l, err = net.Listen(network, addr(n)); err == nil {
					l.Close()
				}
			}
			return err != nil && strings.Contains(err.Error(), "in use"), err
		}}
}

// marks are the places.
func (h *held) marks() []mark {
	return []mark{
		fileMark("/tmp"), fileMark("/dev/shm"), fileMark("/workspace"),
		ipcMark("shm", unix.SYS_SHMGET, 4096), ipcMark("sem", unix.SYS_SEMGET, 1), ipcMark("msg", unix.SYS_MSGGET, 0),
		{"mqueue",
			func(n string) error { _, err := openQueue(n, unix.O_RDWR|unix.O_CREAT); return err },
			func(n string) (bool, error) {
				fd, err := openQueue(n, unix.O_RDONLY|unix.O_NONBLOCK)
				if err == nil {
					unix.Close(fd)
				}
				return err == nil, err
			}},
		{"key:user",
			func(n string) error { _, err := newKey(userKeyring, n, n); return err },
			func(n string) (bool, error) {
				_, err := searchKey(args{word: map[string]string{"desc": n}})
				return err == nil, err
			}},
		{"abstract",
			func(n string) error {
				l, err := net.Listen("unix", "@"+n)
				if err == nil {
					h.sockets = append(h.sockets, l)
				}
				return err
			},
			func(n string) (bool, error) {
				c, err := net.Dial("unix", "@"+n)
				if err == nil {
					c.Close()
				}
				return err == nil, err
			}},
		h.portMark("tcp"), h.portMark("udp"),
		{"proc-net-unix",
			func(n string) error { return nil }, // the abstract socket shows there
			func(n string) (bool, error) {
				b, err := os.ReadFile("/proc/net/unix")
				return bytes.Contains(b, []byte(n)), err
			}},
		{"environment",
			func(n string) error { return os.Setenv("PALYRA_MARK", turned(n)) },
			func(n string) (bool, error) { return slices.Contains(os.Environ(), "PALYRA_MARK="+turned(n)), nil }},
		{"memory",
			func(n string) error {
				// Store the complement, so that the search doesn't find its own needle.
				b := make([]byte, 64<<10)
				for i := range b {
					b[i] = ^n[i%len(n)]
				}
				h.memory = append(h.memory, b)
				return nil
			}, memoryHolds},
		{"descriptor",
			func(n string) error {
				dir, err := os.MkdirTemp("", "")
				if err != nil {
					return err
				}
				fd, err := unix.Open(filepath.Join(dir, n+".fd"), unix.O_CREAT|unix.O_RDWR, 0o600)
				if err == nil {
					err = unix.Dup2(fd, 77)
				}
				return err
			},
			func(n string) (bool, error) {
				links, err := filepath.Glob("/proc/self/fd/*")
				for _, l := range links {
					if to, _ := os.Readlink(l); strings.Contains(to, n) {
						return true, nil
					}
				}
				return false, err
			}},
		{"process",
			func(n string) error {
				// Reverse the nonce in its arguments, since the searcher's own hold it.
				return exec.Command("/bin/sh", "-c", "sleep 300; : "+turned(n)).Start()
			},
			func(n string) (bool, error) {
				files, err := filepath.Glob("/proc/[0-9]*/cmdline")
				for _, f := range files {
					if b, _ := os.ReadFile(f); bytes.Contains(b, []byte(turned(n))) {
						return true, nil
					}
				}
				return false, err
			}},
		{"cwd",
			func(n string) error {
				dir := filepath.Join(os.TempDir(), turned(n))
				if err := os.Mkdir(dir, 0o755); err != nil {
					return err
				}
				return os.Chdir(dir)
			},
			func(n string) (bool, error) { d, err := os.Getwd(); return strings.Contains(d, turned(n)), err }},
		{"hostname",
			func(n string) error { return unix.Sethostname([]byte(n[:min(len(n), 60)])) },
			func(n string) (bool, error) { h, err := os.Hostname(); return h == n[:min(len(n), 60)], err }},
		{"mount",
			func(n string) error { return unix.Mount(n, "/tmp", "tmpfs", 0, "") },
			func(n string) (bool, error) {
				b, err := os.ReadFile("/proc/self/mountinfo")
				return bytes.Contains(b, []byte(n)), err
			}},
		{"hint", // of how long what is written will last, on a file that may only be read
			func(string) error {
				_, err := hint(unix.F_SET_RW_HINT, lifeMedium)
				return err
			},
			func(string) (bool, error) {
				v, err := hint(unix.F_GET_RW_HINT, 0)
				return v == lifeMedium, err
			}},
		{"cgroup",
			func(n string) error { return os.Mkdir("/sys/fs/cgroup/"+n, 0o755) },
			func(n string) (bool, error) { _, err := os.Lstat("/sys/fs/cgroup/" + n); return err == nil, err }},
		stateMark("umask", func() error { unix.Umask(0o151); return nil }),
		stateMark("nofile", func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 99, Max: 99}) }),
		// The highest: no process may go down, whatever the test's own is.
		stateMark("nice", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, 19) }),
		stateMark("affinity", func() error { var s unix.CPUSet; s.Set(0); return unix.SchedSetaffinity(0, &s) }),
		stateMark("oom", func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("567"), 0o644) }),
		stateMark("ignored", func() error { signal.Ignore(unix.SIGUSR2, unix.SIGWINCH); return nil }),
		stateMark("session", func() error { return unix.Setpgid(0, 0) }),
		stateMark("personality", func() error { _, err := raw("personality", unix.SYS_PERSONALITY, 0x0040000); return err }),
		stateMark("timer", func() error {
			_, err := unix.Setitimer(unix.ITIMER_VIRTUAL, unix.Itimerval{Value: unix.Timeval{Sec: 3000}})
			return err
		}),
		stateMark("timerslack", func() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, 12345, 0, 0, 0) }),
		stateMark("given", func() error {
			_, err := unix.FcntlInt(0, unix.F_SETSIG, 12)
			if err == nil {
				_, err = unix.FcntlInt(0, unix.F_SETFL, unix.O_APPEND)
			}
			if err == nil {
				err = unix.Flock(0, unix.LOCK_EX|unix.LOCK_NB)
			}
			return err
		}),
		stateMark("coredump", func() error { return os.WriteFile("/proc/self/coredump_filter", []byte("0x7f"), 0o644) }),
	}
}

const lifeMedium = 3 // RWH_WRITE_LIFE_MEDIUM

// hint sets or reads the hint of a file of the template.
func hint(command uintptr, value byte) (uint64, error) {
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	b := make([]byte, 8)
	b[0] = value
	_, err = raw("fcntl", unix.SYS_FCNTL, uintptr(fd), command, address(b))
	return binary.LittleEndian.Uint64(b), err
}

// stateMark changes a part of the process's state, which tells by itself: the
// test compares the whole state of one cell with that of another. Here it is
// found if it is what the change made of it.
func stateMark(key string, change func() error) mark {
	return mark{"state:" + key,
		func(string) error { return change() },
		func(string) (bool, error) { return processState()[key] == changedState[key], nil }}
}

// changedState is what processState says after each stateMark. The system call
// answers 20 less the nice value.
var changedState = map[string]string{"umask": "0151", "nofile": "99", "nice": "1", "affinity": "1", "oom": "567", "timer": "true",
	"timerslack": "12345", "coredump": "0000007f", "personality": "262144"}

func turned(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// memoryHolds looks for the complement of the nonce in all of our memory that is
// no file.
func memoryHolds(n string) (bool, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false, err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return false, err
	}
	defer mem.Close()
	b := make([]byte, 1<<16)
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		var begin, end uint64
		if _, err := fmt.Sscanf(f[0], "%x-%x", &begin, &end); err != nil || f[1][0] != 'r' || len(f) > 5 && strings.HasPrefix(f[5], "/") {
			continue
		}
		for at := begin; at < min(end, begin+(64<<20)); at += uint64(len(b)) - 128 {
			k, _ := mem.ReadAt(b[:min(uint64(len(b)), end-at)], int64(at))
		scan:
			for i := 0; i+len(n) <= k; i++ {
				for j := range len(n) {
					if b[i+j] != ^n[j] {
						continue scan
					}
				}
				return true, nil
			}
			if k == 0 {
				break
			}
		}
	}
	return false, nil
}

// givenState is what a program could leave on the open file that its standard input
// is, and on the device of one that is empty.
func givenState() string {
	flags, err := unix.FcntlInt(0, unix.F_GETFL, 0)
	sig, err2 := unix.FcntlInt(0, unix.F_GETSIG, 0)
	at, _ := unix.Seek(0, 0, unix.SEEK_CUR)
	text := fmt.Sprintf("flags %#x %v, signal %d %v, at %d", flags&(unix.O_APPEND|unix.O_NONBLOCK|unix.O_ASYNC), err, sig, err2, at)
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return text
	}
	defer unix.Close(null) // and its lock with it
	return text + fmt.Sprintf(", lock of /dev/null: %v", unix.Flock(null, unix.LOCK_EX|unix.LOCK_NB))
}

// processState is what a process inherits or has from its start.
func processState() map[string]string {
	s := make(map[string]string)
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch k {
			case "SigIgn":
				s["ignored"] = strings.TrimSpace(v)
			case "Umask":
				s["umask"] = strings.TrimSpace(v)
			case "Cpus_allowed":
				s["affinity"] = strings.TrimSpace(v)
			case "SigBlk", "CapEff", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Groups":
				s[k] = strings.TrimSpace(v)
			}
		}
	}
	if b, err := os.ReadFile("/proc/self/limits"); err == nil {
		s["limits"] = string(b)
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		s["nofile"] = fmt.Sprint(l.Max)
	}
	if p, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		s["nice"] = fmt.Sprint(p)
	}
	for key, file := range map[string]string{"oom": "oom_score_adj", "coredump": "coredump_filter", "cgroup": "cgroup"} {
		if b, err := os.ReadFile("/proc/self/" + file); err == nil {
			s[key] = strings.TrimSpace(string(b))
		}
	}
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		if _, rest, ok := strings.Cut(string(b), ") "); ok {
			if f := strings.Fields(rest); len(f) > 5 {
				s["session"] = strings.Join(f[1:5], " ") // parent, group, session, terminal
			}
		}
	}
	if p, err := raw("personality", unix.SYS_PERSONALITY, 0xffffffff); err == nil {
		s["personality"] = fmt.Sprint(p)
	}
	if t, err := unix.Getitimer(unix.ITIMER_VIRTUAL); err == nil {
		s["timer"] = fmt.Sprint(t.Value.Sec > 0)
	}
	if v, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil {
		s["timerslack"] = fmt.Sprint(v)
	}
	if d, err := os.Getwd(); err == nil {
		s["cwd"] = d
	}
	if h, err := os.Hostname(); err == nil {
		s["hostname"] = h
	}
	pids, _ := filepath.Glob("/proc/[0-9]*")
	s["pids"] = strings.Join(pids, " ")
	for _, dir := range []string{"/tmp", "/dev/shm", "/workspace", "/"} {
		var names []string
		if entries, err := os.ReadDir(dir); err == nil {
			for _, e := range entries {
				names = append(names, e.Name())
			}
			s["names "+dir] = strings.Join(names, " ")
		}
	}
	s["given"] = givenState()
	var fds []string
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			kind, _, _ := strings.Cut(to, ":[")
			if strings.HasPrefix(kind, "/proc/") || strings.HasPrefix(kind, "anon_inode") {
				continue // this directory, and the runtime's own
			}
			fds = append(fds, filepath.Base(l)+" "+kind)
		}
	}
	s["descriptors"] = strings.Join(fds, ", ")
	env := os.Environ()
	slices.Sort(env)
	s["environment"] = strings.Join(env, " ")
	return s
}
