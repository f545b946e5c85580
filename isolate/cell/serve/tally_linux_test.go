package serve

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

func TestItems(t *testing.T) {
	const usual = "pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t7\n"
	for _, c := range []struct {
		text string
		want int64
	}{
		{usual, 0},
		{usual + "lock:\t1: POSIX  ADVISORY  WRITE 9 00:2a:7 0 0\nlock:\t2: POSIX\n", 2 * itemSize},
		{usual + "scm_fds: 3\n", itemSize + 3*1000},
		{"", 0},
	} {
		a := tally{accounts: accounts{socket: 1000}}
		if a.items(c.text); a.sum != c.want {
			t.Errorf("%q counts %d, want %d", c.text, a.sum, c.want)
		}
	}
}

// TestGrouped: with a cgroup that counts memory, a sample is of what the kernel charges to none.
func TestGrouped(t *testing.T) {
	a := tally{accounts: accounts{socket: 1000}, grouped: true}
	if a.items("pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t7\nlock:\t1: POSIX\ninotify wd:1\nscm_fds: 3\n"); a.sum != itemSize {
		t.Errorf("a lock, a watch and three descriptors count %d, want %d", a.sum, itemSize)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	seen := make(map[string]bool)
	count := func(grouped bool) int64 {
		x := tally{accounts: accounts{socket: 1000}, grouped: grouped, limit: 1 << 40, buf: make([]byte, 4<<10), seen: seen,
			families: make(map[string]family)}
		clear(seen)
		if !x.process(os.Getpid()) {
			t.Fatal("we have ended")
		}
		return x.sum
	}
	if all, some := count(false), count(true); some < folderSize || some > 1<<20 || all < 4*some {
		t.Errorf("with a cgroup %d bytes count, without one %d", some, all)
	}
	before := count(true)
	for range 64 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if more := count(true) - before; more < 64*fileSize {
		t.Errorf("64 descriptors count %d, want %d each", more, fileSize)
	}
	for object := range seen { // the program chooses how many paths its files have, and how long ones
		if strings.HasPrefix(object, "/") {
			t.Errorf("a sample keeps the path %q", object)
		}
	}
}

// TestCorked: what waits at a UDP socket for the rest of its datagram, and in its queue of errors,
// counts with a cgroup, too, which the kernel doesn't charge for it.
func TestCorked(t *testing.T) {
	count := func() int64 {
		x := tally{accounts: accounts{socket: 1000}, grouped: true, inet: true, limit: 1 << 40, buf: make([]byte, 4<<10),
			seen: make(map[string]bool), families: make(map[string]family)}
		if !x.process(os.Getpid()) {
			t.Fatal("we have ended")
		}
		return x.sum
	}
	const (
		sent        = 60000
		more        = 0x8000  // MSG_MORE
		whenSent    = 2 | 256 // SOF_TIMESTAMPING_TX_SOFTWARE, TX_SCHED
		controlSize = 24      // struct cmsghdr and a number, on the 64-bit architectures
	)
	to := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}
	for name, send := range map[string]func(fd int) error{
		"corked": func(fd int) error { return syscall.Sendto(fd, make([]byte, sent), more, to) },
		"errors": func(fd int) error {
			c := binary.NativeEndian.AppendUint64(nil, 20) // without padding
			c = binary.NativeEndian.AppendUint32(c, syscall.SOL_SOCKET)
			c = binary.NativeEndian.AppendUint32(c, syscall.SO_TIMESTAMPING)
			c = binary.NativeEndian.AppendUint32(c, whenSent)
			return syscall.Sendmsg(fd, make([]byte, sent), append(c, make([]byte, controlSize-len(c))...), to, 0)
		},
	} {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		before := count()
		if err := send(fd); err != nil {
			t.Fatal(err)
		}
		if held := count() - before; held < sent {
			t.Errorf("%s: a socket that holds %d bytes counts as %d", name, sent, held)
		}
		syscall.Close(fd)
	}
}

// TestOnTheWay: a removed file in a message that nobody has read counts like an open one. Where a
// sample can't look, it says so, and that for long ends the call.
func TestOnTheWay(t *testing.T) {
	dir := t.TempDir()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(ends[0])
	defer syscall.Close(ends[1])
	send := func(fd int) {
		t.Helper()
		if err := syscall.Sendmsg(ends[0], []byte("x"), syscall.UnixRights(fd), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	file := func() {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), os.Remove(f.Name())); err != nil {
			t.Fatal(err)
		}
		send(int(f.Fd()))
	}
	look := func(want removed, unread bool) {
		t.Helper()
		x := tally{limit: 1 << 40, buf: make([]byte, 4<<10), seen: make(map[string]bool), families: make(map[string]family), private: []string{dir},
			removed: make(map[string]int64), shown: make(map[string]bool)}
		if !x.process(os.Getpid()) {
			t.Fatal("we have ended")
		}
		if got := x.withheld(1); got.inodes != want.inodes || got.bytes < want.bytes || x.unread != unread {
			t.Errorf("%+v held, unread %t; want %+v, %t", got, x.unread, want, unread)
		}
	}
	read := func() {
		t.Helper()
		control := make([]byte, 64)
		_, n, _, _, err := syscall.Recvmsg(ends[1], make([]byte, 1), control, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := syscall.ParseSocketControlMessage(control[:n])
		if err != nil {
			t.Fatal(err)
		}
		fds, err := syscall.ParseUnixRights(&m[0])
		if err != nil {
			t.Fatal(err)
		}
		sys.CloseAll(fds)
	}
	look(removed{}, false)
	file()
	look(removed{1 << 20, 1}, false)
	look(removed{1 << 20, 1}, false) // it's still there
	file()
	look(removed{1 << 20, 1}, true) // behind the first message
	read()
	look(removed{1 << 20, 1}, false)
	read()
	look(removed{}, false)
	send(ends[0]) // in which others may wait
	look(removed{}, true)

	p, now := new(process), time.Now()
	for i, c := range []struct {
		after        time.Duration
		unread, want bool
	}{{0, true, false}, {unreadFor - 1, true, false}, {unreadFor, false, false}, {unreadFor + 1, true, false}, {2*unreadFor + 1, true, true}} {
		if got := p.hides(c.unread, now.Add(c.after)); got != c.want {
			t.Errorf("sample %d: %t, want %t", i, got, c.want)
		}
	}
}

// TestWaits: a system call that waits holds files of which another thread has closed the
// descriptor.
func TestWaits(t *testing.T) {
	private := []string{t.TempDir()}
	found := func() bool {
		x := tally{limit: 1 << 40, buf: make([]byte, 4<<10), seen: make(map[string]bool), families: make(map[string]family), private: private,
			removed: make(map[string]int64), shown: make(map[string]bool)}
		if !x.process(os.Getpid()) {
			t.Fatal("we have ended")
		}
		return x.unread
	}
	name := filepath.Join(t.TempDir(), "f")
	open := func() int {
		fd, err := syscall.Open(name, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	held, waits := open(), open()
	if err := syscall.Flock(held, syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- syscall.Flock(waits, syscall.LOCK_EX) }()
	for here := false; !here; { // until it waits
		threads, err := sys.ListAt(sys.AtCWD, "/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range threads {
			buf := make([]byte, 1<<10)
			_, fd := sys.WaitsWith("/proc/self/task/"+tid, &buf)
			here = here || fd == waits
		}
	}
	if found() {
		t.Error("a lock is waited for, with an open file")
	}
	syscall.Close(waits)
	if !found() {
		t.Error("the file that a thread waits with is closed, and isn't noticed")
	}
	syscall.Close(held)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = syscall.Write(ends[0], make([]byte, 1<<12))
	}
	if err := syscall.SetNonblock(ends[0], false); err != nil {
		t.Fatal(err)
	}
	go func() { done <- syscall.Sendmsg(ends[0], []byte("x"), nil, nil, syscall.MSG_NOSIGNAL) }()
	for !found() { // until it waits
	}
	syscall.Close(ends[1])
	if err := <-done; err == nil {
		t.Error("sendmsg to nobody worked")
	}
	syscall.Close(ends[0])
}

// TestOverlaid: a folder that workspace and layer both have counts with its names, those that
// were there before, too.
func TestOverlaid(t *testing.T) {
	lower, upper := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(lower, "both"), filepath.Join(upper, "both"), filepath.Join(upper, "new")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(lower, "both/a"), filepath.Join(upper, "both/b"), filepath.Join(upper, "new/c")} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open := func(dir string) *os.File {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	o := &overlaid{lower: open(lower), upper: open(upper), view: "/workspace", most: 1 << 20, held: make(map[string]int64)}
	look := func(path string, want int64) {
		t.Helper()
		o.seen = make(map[string]bool)
		if got := o.names(path); got != want {
			t.Errorf("%q: %d, want %d", path, got, want)
		}
	}
	const folder, name = 2 * nameSize, 2 * (nameSize + 1)
	look("/usr/bin", 0)
	look("/workspaces/both", 0)
	look("/workspace/new", 0) // the layer's alone: nothing is merged
	if len(o.held) != 0 {
		t.Errorf("%d names of the program's choice are kept from sample to sample", len(o.held))
	}
	look("/workspace/both", 2*folder+2*name)
	look("/workspace", 2*folder+2*nameSize+8+2*(2*nameSize+4+3))
	if err := os.RemoveAll(filepath.Join(upper, "both")); err != nil {
		t.Fatal(err)
	}
	look("/workspace/both (deleted)", 2*folder+2*name)
	look("", 1<<20) // its path is too long to be told
}

// TestMappingOfNothing: all of a shared mapping but one untouched page was unmapped. Root
// counts all its pages; other users know that they can't tell.
func TestMappingOfNothing(t *testing.T) {
	const size = 4 << 20
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < size; i += 4096 {
		b[i] = 1
	}
	if err := syscall.Madvise(b, syscall.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	for _, exact := range []bool{os.Getuid() == 0, false} {
		a, err := newAccounts(exact)
		if err != nil {
			t.Fatal(err)
		}
		x := tally{accounts: a, limit: 1 << 40, seen: make(map[string]bool)}
		x.mappings("/proc/self")
		if exact && x.sum < size || !exact && x.hit() != "uncounted" {
			t.Errorf("exact %t: %d bytes, over %q", exact, x.sum, x.hit())
		}
	}
	if err := syscall.Munmap(b); err != nil {
		t.Fatal(err)
	}
}

// TestFamilies: processes forked from each other are one family, whose mappings count for each
// other process of it. A process after an exec isn't of it.
func TestFamilies(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// Each process announces itself, the last one after its exec.
	sh := exec.Command("sh", "-c", "exec 3<&0; (echo; read x <&3; :) & (echo; read x <&3; :) & sh -c 'echo; read x <&3; :'; wait")
	sh.Stdin = r
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	defer sh.Wait()
	defer w.Close()
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	a := tally{accounts: accounts{socket: 1000}, limit: 1 << 40}
	a.tree(os.Getpid())
	var sizes []int64
	for kin, f := range a.families {
		if kin == "" || kin == "0" || f.mappings < f.processes {
			t.Errorf("family %q: %+v", kin, f)
		}
		sizes = append(sizes, f.processes)
	}
	slices.Sort(sizes)
	if !slices.Equal(sizes, []int64{1, 3}) {
		t.Errorf("families of %v processes, want 1 and 3", sizes)
	}
}

// TestLate: a sample ends at the call's deadline, however much there is to count.
func TestLate(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	for _, c := range []struct {
		due  time.Time
		want bool // counted
	}{{time.Time{}, true}, {time.Now().Add(time.Hour), true}, {time.Now(), false}} {
		a := tally{limit: 1 << 40, due: c.due}
		if a.tree(os.Getpid()); (a.sum > 0) != c.want {
			t.Errorf("due at %v: %d bytes counted", c.due, a.sum)
		}
	}
}

// TestLongLine: a line of maps that is longer than what is read at once is one line, whatever
// the program has its rest look like.
func TestLongLine(t *testing.T) {
	dir := t.TempDir()
	const shared = "7f0000000000-7f0000002000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n"
	long := "100000000-100001000 r--p 00000000 00:02 8 /" + strings.Repeat("x", 16<<10)
	long = long[:16<<10] + "100000000-100001000 rw-s 00000000 00:01 7 zero\n"
	if err := os.WriteFile(dir+"/maps", []byte(long+shared), 0o600); err != nil {
		t.Fatal(err)
	}
	a := tally{accounts: accounts{exact: true, shared: "00:01"}, limit: 1 << 30, seen: make(map[string]bool)}
	private := a.mappings(dir)
	if want := int64(2*mappingSize + 0x2000); private != 1 || a.sum != want {
		t.Errorf("%d private, %d bytes, want 1 and %d", private, a.sum, want)
	}
}

// TestConnections: of a table of sockets those count that no descriptor is of.
func TestConnections(t *testing.T) {
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(state, queues, inode string) string {
		return "   0: 0100007F:8A77 0100007F:999E " + state + " " + queues + " 00:00000000 00000000  1000        0 " + inode + " 1 0 20 4 0 10 -1\n"
	}
	for _, c := range []struct {
		name, counts, table string
		want                int64
	}{
		{"no counts", "", heading + line("01", "00000000:00000001", "0"), 0},
		{"none in use", "sockets: used 9\nTCP: inuse 0 orphan 7 tw 3 alloc 1 mem 4\n", heading + line("01", "00000000:00000001", "0"), 3 * waitSize},
		{"one with a descriptor", "TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 4\n", heading + line("01", "00000010:00000001", "77"), 0},
		{"others", "TCP: inuse 4 orphan 1 tw 1 alloc 1 mem 4\n", heading + line("01", "00000000:00000000", "0") + line("08", "00000000:00000001", "0") +
			line("04", "00013940:00000000", "0") + line("01", "00000002:00000001", "0") + line("06", "00000000:00000000", "0") + "short\n",
			4*sys.SocketSize + 4*native.MaxQueue + waitSize},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"sockstat": c.counts, "tcp": c.table} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := tally{limit: 1 << 40}
		if a.connections(dir, true); a.sum != c.want || a.possible != 0 {
			t.Errorf("%s: %d bytes, want %d", c.name, a.sum, c.want)
		}
		quick := tally{limit: 1 << 40}
		if quick.connections(dir, false); quick.sum > c.want || quick.sum+quick.possible < c.want {
			t.Errorf("%s: without the table %d to %d bytes, want %d in between", c.name, quick.sum, quick.sum+quick.possible, c.want)
		}
	}
}

// TestSampleOfCall: a call's terminals count, its network says whether sockets of the Internet's
// families may, and a sample that can't see all ends the call in the end.
func TestSampleOfCall(t *testing.T) {
	r := &run{s: &server{tier: tier.B}, spec: new(isolate.Spec), deadline: time.Now().Add(time.Hour)}
	r.spec.Limits.Memory = 1 << 40
	p := &process{run: r, call: r, pid: os.Getpid()} // without a child
	plain := p.tally()
	if plain.inet {
		t.Error("there are sockets of the Internet's families without a network")
	}
	r.terminal = new(sys.Terminal)
	if held := p.tally().sum - plain.sum; held != isolate.MaxTerminals*terminalSize {
		t.Errorf("a call's terminals count as %d bytes, want %d", held, isolate.MaxTerminals*terminalSize)
	}
	r.spec.Network = isolate.NetworkLoopback
	if !p.tally().inet {
		t.Error("no socket of the Internet's families counts on the loopback")
	}
	for _, c := range []struct {
		t    tally
		want string
	}{{tally{}, ""}, {tally{concealed: true}, hitUncounted}, {tally{unread: true}, hitUncounted}} {
		p.unread = time.Now().Add(-unreadFor)
		if got, _ := p.diskHit(&c.t); got != c.want {
			t.Errorf("concealed %t, unread %t: %q, want %q", c.t.concealed, c.t.unread, got, c.want)
		}
	}
}
